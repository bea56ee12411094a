"""A turn: one user message and its reply, a node in the conversation tree."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from textwrap import shorten
from typing import TYPE_CHECKING, Any, Final

from ipyllama.chat.messages import Messages, conversation
from ipyllama.errors import BadOption
from ipyllama.ledger import Ledger
from ipyllama.options import GenerateOptions
from ipyllama.reply import Reply
from ipyllama.thinking import Parts, split_thinking

if TYPE_CHECKING:
    from ipyllama.chat.chat import Chat
    from ipyllama.engine import Stream
    from ipyllama.prefix.where import Where
    from ipyllama.widgets.tokens import TokenView

Message = str | Sequence[str]
"""What the user says: a text, or its parts."""
LONGEST_NAME: Final = 80
"""Characters."""


@dataclass(frozen=True, kw_only=True)  # without slots: of the two bases of a turn only one may have them
class Place:
    """Where a turn stands, and what was asked there."""

    message: str
    """what the user said"""
    cuts: tuple[int, ...] = field(default=(), repr=False, compare=False)
    """where in it a part ends that other messages may begin with, too: characters"""
    parent: Turn | None = field(default=None, repr=False, compare=False)
    """the turn before it, None at the beginning"""
    system: str | None = None
    """the system prompt it was answered under; None leaves it to the template"""
    cell: str | None = None
    """id of the notebook cell that owns it"""
    run: int = 0
    """where no cell owns it, which of all those of its conversation it is, from 1"""
    prompt: str = field(default="", repr=False, compare=False)
    """the text that the ledger's prompt stood for, up to where this reply begins"""
    name: str | None = None
    """what people call it, None if nothing"""
    sample: int = 0
    """which of several answers to the same message, from 0"""
    n_samples: int = 1
    """how many there were"""
    options: GenerateOptions = field(default_factory=GenerateOptions, repr=False, compare=False)
    """how it was answered"""
    think: bool | None = field(default=None, repr=False, compare=False)
    """whether the model was told to think first, or not to; None left it to the template"""
    dropped: int = 0
    """how many of the first turns of its path its prompt left out, because the context was full"""
    summary: tuple[str, str] | None = field(default=None, repr=False)
    """what stood in their place: a user's message and the answer to it"""
    moved: bool = field(default=False, repr=False, compare=False)
    """its KV was moved when turns were left out: it still knows of them"""
    chat: Chat | None = field(default=None, repr=False, compare=False)
    """the conversation that it is part of"""

    @property
    def said(self) -> list[str]:
        """The message in its parts, as it may be asked again."""
        return [self.message[start:end] for start, end in pairwise((0, *self.cuts, len(self.message)))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn(Reply, Place):
    """A reply that knows what it answers. Immutable: answering again makes another turn."""

    ledger: Ledger = field(repr=False)
    """the whole conversation up to here in token ids: prompts and what was sampled"""
    id: str = field(default="", compare=False)
    """16 hex digits that tell it from all others; the same turn answered again has the same"""

    @classmethod
    def of(cls, reply: Reply, place: Place, ledger: Ledger) -> Turn:
        """`reply` as a turn."""
        values = {item.name: getattr(source, item.name) for source in (reply, place) for item in fields(source)}
        turn = cls(ledger=ledger, **values)
        return replace(turn, id=_identify(turn))

    @property
    def parts(self) -> Parts:
        """The text as thinking and answer; some templates open the thinking themselves."""
        return split_thinking(self.text, self.prompt)

    @property
    def kept(self) -> bool:
        return self.chat is not None

    def ask(self, text: Message, **options: Any) -> Turn:
        """Continue the conversation from here. Arguments and errors as in `Chat.ask`."""
        return self._chat.ask(text, after=self, **options)

    def aask(self, text: Message, **options: Any) -> Coroutine[Any, Any, Turn]:
        """Continue the conversation from here, without blocking the event loop; see `Chat.aask`."""
        return self._chat.aask(text, after=self, **options)

    def stream(self, text: Message, **options: Any) -> Stream[Turn]:
        """Continue the conversation from here and give out the text as it comes; see `Chat.stream`."""
        return self._chat.stream(text, after=self, **options)

    def again(self, **options: Any) -> Turn:
        """Answer the same message from the same point, as another branch; `options` are those that change, as
        `seed=7`."""
        return self._chat.again(self, **options)

    def branch(self, at: int, token: int | str, **options: Any) -> Turn:
        """Another answer that keeps the tokens before `at`, puts `token` there and goes on; see `Chat.branch`."""
        return self._chat.branch(self, at, token, **options)

    def with_logprobs(self, n: int = 5) -> Turn:
        """The same with `logprobs`, `n` alternatives for each token. Where they are not known its tokens are evaluated
        again, which takes as long as writing them did."""
        from ipyllama.chat.branch import with_logprobs

        return with_logprobs(self, n)

    def token_view(self) -> TokenView:
        """Every token with how likely it was and what else could have stood there, to look at and to branch; where that
        is not known, it is found out as `with_logprobs` does."""
        from ipyllama.widgets.tokens import TokenView

        return TokenView(self if self.logprobs is not None else self.with_logprobs())

    def token_title(self) -> str:
        """What stands above its tokens."""
        from ipyllama.display.text import one_line

        return f'Tokens of the answer to "{shorten(one_line(self.message), 60, placeholder="…")}"'

    def fork(self, name: str | None = None) -> Chat:
        """A conversation of its own that continues from here. What both have in common is computed once."""
        return self._chat.fork(self, name)

    def where(self) -> Where:
        """How much of the conversation up to here is in the context, in RAM and on disk now."""
        return self._chat.llm.where([self.ledger])[0]

    def with_name(self, name: str | None) -> Turn:
        """The same turn under another name."""
        return replace(self, name=name)

    def without_tokens(self, parent: Turn | None) -> Turn:
        """The same after `parent`, for a model of another vocabulary: only what was said."""
        turn = replace(self, parent=parent, tokens=(), ledger=Ledger(), prompt="", moved=False)
        return replace(turn, id=_identify(turn))

    @property
    def _chat(self) -> Chat:
        if self.chat is None:
            raise BadOption("this turn belongs to no conversation: Chat.from_messages(llm, turn.messages) begins one")
        return self.chat

    @property
    def path(self) -> tuple[Turn, ...]:
        """From the beginning of the conversation to this turn."""
        turns = [self]
        while (earlier := turns[-1].parent) is not None:
            turns.append(earlier)
        return tuple(reversed(turns))

    @property
    def remembered(self) -> tuple[Turn, ...]:
        """The turns that stand in the prompt of one that continues this: its path, unless the context was full."""
        left = self.path[self.dropped :]
        return (summary_turn(*self.summary), *left) if self.summary else left

    @property
    def messages(self) -> Messages:
        """The conversation up to and with this reply, as OpenAI-style dicts, also what its prompt left out."""
        return conversation(self.system, exchanges(self.path))


def _identify(turn: Turn) -> str:
    """A turn's id follows from what it is: who answered what, after which turn, for which cell, in which tokens."""
    content: list[object] = [
        turn.parent.id if turn.parent else None,
        turn.cell,
        turn.run,
        turn.sample,
        turn.system,
        turn.message,
        turn.text,
    ]
    content.append([[segment.sampled, segment.tokens] for segment in turn.ledger.segments])
    return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()[:16]


def exchanges(turns: Sequence[Turn]) -> list[tuple[str, str]]:
    """What the user said and what was answered, of each turn."""
    return [(turn.message, turn.text) for turn in turns]


def summary_turn(message: str, text: str) -> Turn:
    """A turn that was never asked: it stands for others in a prompt."""
    return Turn.of(Reply(text), Place(message=message), Ledger())


def check_name(name: str) -> None:
    """Raise `BadOption` for what cannot be the name of a turn."""
    if not isinstance(name, str) or not name.strip() or name.lstrip("#").isdecimal() or not name.isprintable():
        raise BadOption(f"'{name}' cannot be the name of a turn: it needs a letter")
    if name == "none" or name != name.strip() or len(name) > LONGEST_NAME:
        why = "that is the beginning" if name == "none" else f"1 to {LONGEST_NAME} characters, no space at the ends"
        raise BadOption(f"'{name:.{LONGEST_NAME}}' cannot be the name of a turn: {why}")
