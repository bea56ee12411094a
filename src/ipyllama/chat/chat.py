"""Chat: a conversation with a model, one prompt difference at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from html import escape
from textwrap import shorten
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Protocol

from ipyllama.chat.ledger import Loss, PromptPlan, Vocabulary, next_prompt
from ipyllama.chat.messages import Messages, conversation
from ipyllama.chat.template import ChatTemplate
from ipyllama.chat.tree import Tree
from ipyllama.chat.turn import Turn
from ipyllama.errors import BadOption, TemplateError
from ipyllama.ledger import Ledger
from ipyllama.options import GenerateOptions
from ipyllama.reply import Reply

if TYPE_CHECKING:
    from ipyllama.engine import Job


class Speaker(Protocol):
    """What a chat asks of a model; `LLM` has it."""

    @property
    def name(self) -> str: ...

    @property
    def vocab(self) -> Vocabulary: ...

    @property
    def template(self) -> ChatTemplate | None: ...

    def generate(
        self,
        ledger: Ledger,
        options: GenerateOptions,
        notes: tuple[str, ...] = (),
        wrap: Callable[[Reply, Ledger], Reply] = ...,
        *,
        fresh: bool = False,
    ) -> Job: ...


class Chat:
    """A conversation. Each answer is a `Turn`; the next one continues from the head, the turn that ran last.

    `system` is the system prompt of its beginning; None leaves it to the model's template. `template` are switches
    of the template, such as `enable_thinking=False`.
    """

    def __init__(self, llm: Speaker, system: str | None = None, name: str = "default", **template: Any) -> None:
        self.llm, self.name = llm, name
        self._system, self._switches = system, template
        self._tree = Tree()

    def ask(
        self,
        text: str,
        *,
        cell: str | None = None,
        after: Turn | EllipsisType | None = ...,
        system: str | None = None,
        **options: Any,
    ) -> Turn:
        """The answer to `text`. Arguments as in `start`.

        Ctrl-C raises `Interrupted`; its `reply` is the turn with what was generated, and the chat goes on from it.
        """
        turn = self.start(text, cell=cell, after=after, system=system, **options).result()
        assert isinstance(turn, Turn)
        return turn

    def start(
        self,
        text: str,
        *,
        cell: str | None = None,
        after: Turn | EllipsisType | None = ...,
        system: str | None = None,
        fresh: bool = False,
        notes: tuple[str, ...] = (),
        **options: Any,
    ) -> Job:
        """Like `ask`, but returns the `Job` at once; its reply is the `Turn`.

        `cell`: id of the notebook cell that owns the turn. A cell that owns one already answers again from the same
        point: after the newest answer of the cell before it; its earlier turn is replaced.
        `after`: the turn to continue from instead; None is the beginning of the conversation.
        `system`: another system prompt from here on. The model then reads the whole conversation under it, from the
        beginning; what was said stays. None keeps the one in force.
        `fresh`: compute the answer even if this very request was answered before.
        `notes` go into the reply. `options`: those of `GenerateOptions`, which has their meaning and defaults.

        Raises `TemplateError` if the model has no chat template or it refuses the messages, and `BadOption`. A job
        that fails, or that is interrupted before its first token, leaves the conversation as it was.
        """
        if not isinstance(text, str):
            raise BadOption(f"a message must be a text: got {type(text).__name__}")
        chosen = GenerateOptions().replace_from(options)
        parent = self._tree.parent_for(cell, after)
        if system is None:
            system = parent.system if parent else self._system
        plan = next_prompt(self.llm.vocab, self._render, parent, text, system)
        turn = partial(Turn.of, message=text, parent=parent, system=system, cell=cell, prompt=plan.text)
        wrap = partial(_record, self._tree, turn, plan.loss)
        return self.llm.generate(plan.ledger, chosen, (*notes, *_notes(plan)), wrap, fresh=fresh)

    @property
    def head(self) -> Turn | None:
        """The turn that ran last, None at the beginning."""
        return self._tree.head

    @property
    def turns(self) -> tuple[Turn, ...]:
        """From the beginning of the conversation to the head."""
        return self.head.path if self.head else ()

    @property
    def all_turns(self) -> tuple[Turn, ...]:
        """The turns of every branch, in the order of running; what a cell answered earlier is not among them."""
        return self._tree.turns

    @property
    def stale(self) -> tuple[Turn, ...]:
        """Turns that answered after one which has since been answered differently."""
        return tuple(turn for turn in self._tree.turns if self._tree.is_stale(turn))

    @property
    def system(self) -> str | None:
        """The system prompt that the next turn inherits."""
        return self.head.system if self.head else self._system

    @property
    def messages(self) -> Messages:
        """The conversation up to the head, as OpenAI-style dicts."""
        return self.head.messages if self.head else conversation(self._system, ())

    def reset(self) -> None:
        """Forget every turn: back to the beginning, with the system prompt of the beginning.

        A job that is still running then ends without a place in the conversation.
        """
        self._tree = Tree()

    def __len__(self) -> int:
        return len(self.turns)

    def __bool__(self) -> bool:
        return True  # a chat without turns is still a chat

    def __repr__(self) -> str:
        return f"<Chat {self.name!r} with {self.llm.name}: {len(self)} turn{'s' * (len(self) != 1)}>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        from ipyllama.display.markdown import markdown_html

        title, pairs = repr(self), [(f"{m['role']}", m["content"]) for m in self.messages]
        text = [title, *(f"{role}: {content}" for role, content in pairs)]
        html = [f"<p>{escape(title)}</p>"]
        for role, content in pairs:
            body = markdown_html(content) if role == "assistant" else f"<p>{escape(content)}</p>"
            html.append(f"<div><strong>{role}</strong>{body}</div>")
        return {"text/plain": "\n\n".join(text), "text/html": "\n".join(html)}

    def _render(self, messages: Messages) -> str:
        template = self.llm.template
        if template is None:
            raise TemplateError(f"{self.llm.name} has no chat template: use --raw, or complete(), to continue a text.")
        return template.render(messages, **self._switches)


def _notes(plan: PromptPlan) -> tuple[str, ...]:
    return (plan.loss.note,) if plan.loss else ()


def _record(tree: Tree, make: Callable[..., Turn], loss: Loss | None, reply: Reply, ledger: Ledger) -> Turn:
    """The turn of a finished reply, put into the tree unless nothing was said. Runs on the model's worker thread."""
    if loss is not None and reply.why is not None:
        reply = replace(reply, why=replace(reply.why, cause=loss.cause, detail=loss.note))
    turn = make(reply, ledger=ledger)
    if not reply.tokens or reply.finish_reason == "error":
        return turn
    stale = tree.add(turn)
    if stale:
        names = ", ".join(f'"{shorten(other.message, 40, placeholder="…")}"' for other in stale)
        note = f"these built on the earlier answer, run them again to bring them up to date: {names}"
        turn = replace(turn, notes=(*turn.notes, note))
        tree.add(turn)
    return turn
