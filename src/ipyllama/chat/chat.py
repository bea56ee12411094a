"""Chat: a conversation with a model, one prompt difference at a time."""

from __future__ import annotations

import reprlib
from collections.abc import Coroutine, Sequence
from dataclasses import fields, replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from ipyllama.chat.branch import start_branch
from ipyllama.chat.conversation import Conversation
from ipyllama.chat.ledger import next_prompt
from ipyllama.chat.messages import Messages, read_messages
from ipyllama.chat.prompts import Asked, Prompts
from ipyllama.chat.record import record
from ipyllama.chat.room import OnFull
from ipyllama.chat.speaker import Speaker
from ipyllama.chat.tree import Ask
from ipyllama.chat.turn import Message, Place, Turn, check_name
from ipyllama.engine import Job, Stream, gather
from ipyllama.errors import BadOption, ClosedError
from ipyllama.ledger import Ledger
from ipyllama.options import GenerateOptions, combinations, samples
from ipyllama.reply import Reply
from ipyllama.stop import Stop

if TYPE_CHECKING:
    from ipyllama.chat.saved import Saved
    from ipyllama.widgets.panel import ChatPanel
    from ipyllama.widgets.tree import TreeView


_PLACE: Final = {"cell", "name", "system", "think"}
_WHERE: Final = _PLACE | {"after", "on_full", "notes", "wait"}


class Chat(Conversation):
    """A conversation: a tree of turns. Each answer is a `Turn`; the next one continues from the head, the turn that
    ran last.

    `system` is the system prompt of its beginning; None leaves it to the model's template. `template` are switches
    of the template, such as `enable_thinking=False`.
    """

    def __init__(self, llm: Speaker, system: str | None = None, name: str = "default", **template: Any) -> None:
        super().__init__(llm, system, name)
        self._switches = template
        self._prompts = Prompts(lambda: self.llm, template)

    @classmethod
    def from_messages(cls, llm: Speaker, messages: Messages, name: str = "default", **template: Any) -> Chat:
        """A conversation that has been going on already: OpenAI-style dicts, a system message first if there is one,
        then users and assistants in turn. Nothing is computed before the next question.

        Raises `BadOption` for messages in another order, and for a last one of the user's, which is to be asked.
        """
        system, exchanges = read_messages(messages)
        chat, parent = cls(llm, system, name, **template), None
        for message, reply in exchanges:
            plan = next_prompt(llm.vocab, chat._prompts.render, parent, message, system)
            given = Reply(text=reply, model=llm.name)
            place = Place(message=message, parent=parent, system=system, prompt=plan.text, chat=chat)
            parent = Turn.of(given, place, plan.ledger)
            chat._tree.add(parent)
        return chat

    def ask(self, text: Message, **options: Any) -> Turn:
        """The answer to `text`. Arguments as in `start`.

        Ctrl-C raises `Interrupted`; its `reply` is the turn with what was generated, and the chat goes on from it.
        """
        with Stop():
            turn = self.start(text, **options).result()
        assert isinstance(turn, Turn)
        return turn

    def start(self, text: Message, *, fresh: bool = False, notes: tuple[str, ...] = (), **options: Any) -> Job:
        """Like `ask`, but returns the `Job` at once; its reply is the `Turn`.

        `text` may be a list of texts, which are joined: what a part holds that other messages begin with, too, such as
        a document before a question about it, is computed once (parts of less than 64 tokens are not worth it).
        `fresh`: compute the answer even if this very request was answered before. `notes` go into the reply.
        `options`: those of `GenerateOptions`, which has their meaning and defaults, and where the turn goes:

        - `cell`: id of the notebook cell that owns the turn. A cell that owns one already answers again from the same
          point: after the newest answer of the cell before it; its earlier turn is replaced.
        - `name`: what to call the turn; without a cell it replaces the turn that had the name.
        - `after`: the turn to continue from instead, or its name; None is the beginning of the conversation.
        - `system`: another system prompt from here on. The model then reads the whole conversation under it, from the
          beginning; what was said stays. None keeps the one in force.
        - `think`: whether the model is to think first, where its template has a switch for that; None leaves it to the
          template.
        - `on_full`: what to do when the conversation and the answer do not fit in the context: "error", "shift",
          "drop-oldest" or "summarise-by TURN", as `OnFull` describes them.
        - `wait`: waits for the job of a summary, which is needed first, and returns its reply; by default `Job.result`.

        Raises `TemplateError` if the model has no chat template or it refuses the messages, `PromptTooLong`,
        `UnknownTurn`, and `BadOption`. A job that fails, or is interrupted before its first token, leaves the
        conversation as it was.
        """
        where = {key: options.pop(key) for key in _WHERE & options.keys()}
        chosen = GenerateOptions().replace_from(options)
        asked = self._prepare(text, where, chosen)
        wrap = partial(record, self._tree, replace(asked.place, options=chosen), asked.plan.loss)
        chosen = asked.options(chosen)
        notes = (*notes, *asked.plan.notes)
        return self.llm.generate(asked.plan.ledger, chosen, notes, wrap, fresh=fresh, shift=asked.shift, caller=self)

    def aask(self, text: Message, **options: Any) -> Coroutine[Any, Any, Turn]:
        """Like `ask`, without blocking the event loop: `turn = await chat.aask(text)`.

        It continues from what is the head when this is called, so that several at once are branches. Cancelling the
        task ends the answer; the turn with what was generated is the head then, as after Ctrl-C.
        """
        return self.stream(text, **options).aresult()

    def stream(self, text: Message, **options: Any) -> Stream[Turn]:
        """Like `ask`, but gives out the text as it comes: `for piece in chat.stream(text)`, or `async for`; then
        `stream.reply` is the turn.

        It is asked when the loop begins, and continues from what is the head now. Leaving the loop ends the answer;
        `Stream` tells more.
        """
        where = {key: options[key] for key in _WHERE & options.keys()}
        on_full = OnFull.read(where.get("on_full"))
        after = self._place(text, where).parent
        start = partial(self.start, text, **(options | {"after": after}))
        return Stream(start, slow_start=on_full.how in ("shift", "summarise-by"))

    def start_many(
        self, text: Message, variants: Sequence[GenerateOptions], *, notes: tuple[str, ...] = (), **where: Any
    ) -> list[Job]:
        """Answers to one message in several ways, written at once. `where`: cell, name, after and system as in `start`.

        Each is a turn that can be continued, the first becomes the head. Turns after the first are called NAME.2,
        NAME.3 and so on. Answers may differ from those of single runs, within rounding. In a full context "shift" is
        "drop-oldest".
        """
        if not variants:
            raise BadOption("at least one way to answer is needed")
        longest = max(variants, key=lambda options: options.max_tokens)
        if OnFull.read(where.get("on_full")).how == "shift":
            where["on_full"] = "drop-oldest"
        asked = self._prepare(text, where, longest)
        places = [
            replace(
                asked.place, options=options, sample=n, n_samples=len(variants), name=_numbered(asked.place.name, n)
            )
            for n, options in enumerate(variants)
        ]
        ask = Ask()
        wraps = [partial(record, self._tree, each, asked.plan.loss, ask=ask) for each in places]
        ledgers, chosen = [asked.plan.ledger] * len(variants), [asked.options(each) for each in variants]
        return self.llm.generate_together(ledgers, chosen, (*notes, *asked.plan.notes), wraps, caller=self)

    def samples(self, text: Message, n: int, **options: Any) -> list[Turn]:
        """`n` answers to one message, written at once, each with the next seed. Arguments as in `start`."""
        where = {key: options.pop(key) for key in _WHERE & options.keys()}
        variants = samples(GenerateOptions().replace_from(options), n)
        with Stop():
            return _turns(self.start_many(text, variants, **where))

    def sweep(self, text: Message, **options: Any) -> list[Turn]:
        """Answers to one message, written at once: one for every combination of the options that are given as lists,
        as `temperature=[0.2, 0.7], top_k=[10, 40]`. Other arguments as in `start`."""
        where = {key: options.pop(key) for key in _WHERE & options.keys()}
        with Stop():
            return _turns(self.start_many(text, combinations(options), **where))

    def prompt(self, text: Message) -> Ledger:
        """What the model would read if this were asked now, in token ids. Nothing is asked."""
        return self._prepare(text, {}, GenerateOptions()).plan.ledger

    def _prepare(self, text: Message, where: dict[str, Any], options: GenerateOptions) -> Asked:
        self._require_open()
        on_full, wait = OnFull.read(where.get("on_full")), where.get("wait") or Job.result
        return self._prompts.ask(self._place(text, where), options, on_full, self._tree.named, wait)

    def _require_open(self) -> None:
        if self.llm.closed:
            raise ClosedError.of_model(self.llm.name)

    def _place(self, text: Message, where: dict[str, Any]) -> Place:
        """Where the turn of a message stands."""
        parts = [text] if isinstance(text, str) else text
        if not isinstance(parts, list | tuple) or not parts or not all(isinstance(part, str) for part in parts):
            raise BadOption(f"a message must be a text or a list of texts: got {reprlib.repr(text)}")
        for key in ("cell", "system"):
            if not isinstance(where.get(key), str | None):
                raise BadOption(f"{key} must be a text or None: got {type(where[key]).__name__}")
        after = where.get("after", ...)
        message = "".join(parts)
        cuts = set(accumulate(map(len, parts))) - {0, len(message)}
        known = {key: where[key] for key in _PLACE & where.keys()}
        place = Place(message=message, cuts=tuple(sorted(cuts)), **known)
        if place.name is not None:
            check_name(place.name)
        owned = self._tree.owned_by(place.cell, place.name)
        if place.name is None and owned is not None:
            place = replace(place, name=owned.name)
        parent = self._tree.parent_for(owned, after if after is None or after is ... else self._present(after))
        system = place.system
        if system is None:
            system = parent.system if parent else self._system
        place = replace(place, parent=parent, system=system, chat=self)
        if parent is not None:
            place = replace(place, dropped=parent.dropped, summary=parent.summary, moved=parent.moved)
        return place

    def again(self, turn: Turn | str, **options: Any) -> Turn:
        """Answer a turn's message again from the same point, as another branch; `options` are those that change."""
        turn = self._present(turn)
        chosen = {field.name: getattr(turn.options, field.name) for field in fields(turn.options)} | options
        after = self._tree.standing(turn.parent)
        return self.ask(turn.said, after=after, system=turn.system, **({"think": turn.think} | chosen))

    def start_branch(self, turn: Turn | str, at: int, token: int | str, **options: Any) -> Job:
        """Like `branch`, but returns the `Job` at once; its reply is the `Turn`."""
        self._require_open()
        turn = self[turn] if isinstance(turn, str) else turn
        return start_branch(self.llm, self._tree, turn, at, token, options)

    def branch(self, turn: Turn | str, at: int, token: int | str, **options: Any) -> Turn:
        """Another answer to a turn's message: the tokens before number `at` (from 0) stay, `token` comes next, by its
        id or its text, and the model goes on from there.

        Nothing before `at` is computed again where the model's state can be cut; others go back to the last place where
        it was kept. `options`: `name`, `notes` and `fresh` as in `start`, and those of sampling that change;
        `max_tokens` counts the whole answer. Draws begin anew with the seed. It is the head then. Raises `BadOption`,
        and `BadGrammar` for a token that the turn's grammar does not allow.
        """
        found = self.start_branch(turn, at, token, **options).result()
        assert isinstance(found, Turn)
        return found

    def fork(self, turn: Turn | str | None = None, name: str | None = None) -> Chat:
        """A conversation of its own that continues from a turn, or from the head. What both have in common is
        computed once."""
        turn = self.head if turn is None else self._present(turn)
        chat = Chat(self.llm, self._system, name or f"{self.name}-fork", **self._switches)
        parent = None
        for each in turn.path if turn else ():
            parent = replace(each, parent=parent, chat=chat)
            chat._tree.add(parent)
        return chat

    def panel(self, **options: Any) -> ChatPanel:
        """The conversation to look at and to go on with, outside of cells; see `widgets.panel.ChatPanel`. `options` are
        those of `GenerateOptions`."""
        from ipyllama.widgets.panel import ChatPanel

        return ChatPanel(self, **options)

    def tree_view(self) -> TreeView:
        """The tree as a view that follows the conversation: go to a turn, fork, rename, remove and undo there."""
        from ipyllama.widgets.tree import TreeView

        return TreeView(self)

    def resume(self, nth: int = 1) -> Saved | None:
        """Take over what an earlier process left in the folder of `keep`, the latest of them, or the `nth` latest; None
        where there is nothing.

        The next turn continues from where that one stood: its prompt is restored, not computed. Where other weights
        answered then, under the same name, what was said stays and is read anew. `undo` takes it back.
        Raises `BadState` where it is damaged, and `BadOption` where the conversation is not kept.
        """
        if self._saved is None:
            raise BadOption("this conversation is not saved: keep(folder) does that")
        if nth < 1:
            raise BadOption(f"1 is the latest, 2 the one before: got {nth}")
        saved = self._saved.load(self, nth)
        if saved is not None:
            self._tree.adopt(saved.turns, saved.head, saved.replaced)
        return saved


def _numbered(name: str | None, sample: int) -> str | None:
    return f"{name}.{sample + 1}" if name is not None and sample else name


def _turns(jobs: Sequence[Job]) -> list[Turn]:
    """The turns of jobs that run together. Ctrl-C ends them all and raises `Interrupted` with the first reply."""
    return [turn for turn in gather(jobs) if isinstance(turn, Turn)]
