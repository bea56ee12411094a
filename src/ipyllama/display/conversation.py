"""A conversation as it was said: each message, the answer, what that cost, and which other answers there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Final

from ipyllama.display.reply import MUTED, NO_MATH, answer_html, footer_html
from ipyllama.display.text import one_line, printable, reply_text
from ipyllama.display.units import plural

if TYPE_CHECKING:
    from ipyllama.chat import Chat, Turn

NOTHING_YET: Final = "(nothing was said yet)"
_MESSAGE: Final = (
    "width:fit-content;max-width:85%;margin:1em 0 .5em auto;padding:.4em .8em;border-radius:8px;white-space:pre-wrap;"
    "overflow-wrap:anywhere;background:var(--jp-layout-color2,rgba(127,127,127,.14))"
)


@dataclass(frozen=True, slots=True)
class Said:
    """A turn on the way to the head, and its place among those that continue from the same point."""

    turn: Turn
    number: int
    """its number in the tree, 0 for one that was replaced"""
    at: int = 0
    of: int = 1
    before: Turn | None = None
    """where the branch before this one ends"""
    after: Turn | None = None
    stale: bool = False

    @property
    def label(self) -> str:
        """`turn 3 (draft) · stale`."""
        name = f" ({one_line(self.turn.name)})" if self.turn.name else ""
        number = f"turn {self.number}{name}" if self.number else f"an earlier answer{name}"
        return f"{number} · stale" if self.stale else number

    @property
    def marks(self) -> str:
        """`turn 3 (draft) · stale · branch 2 of 3`."""
        return f"{self.label} · branch {self.at + 1} of {self.of}" if self.of > 1 else self.label


def said(chat: Chat, upto: Turn | None) -> list[Said]:
    """What was said up to a turn."""
    children, stale = chat.children(), {turn.id for turn in chat.stale}
    numbers = {turn.id: number for number, turn in enumerate(chat.all_turns, start=1)}
    groups = {turn.id: group for group in children.values() for turn in group}

    def end(turn: Turn) -> Turn:
        """Of what continues a turn the newest, and so on."""
        while turn.id in children:
            turn = children[turn.id][-1]
        return turn

    def place(turn: Turn) -> Said:
        group = groups.get(turn.id, [turn])
        at = next(n for n, other in enumerate(group) if other.id == turn.id)
        before = end(group[at - 1]) if at else None
        after = end(group[at + 1]) if at + 1 < len(group) else None
        shown = _now(group[at])  # it may have another name, or notes, by now
        return Said(shown, numbers.get(turn.id, 0), at, len(group), before, after, turn.id in stale)

    return [place(turn) for turn in (upto.path if upto else ())]


def _now(turn: Turn) -> Turn:
    """Without the note of which turns became stale when it was answered: they may have been answered again since."""
    from ipyllama.chat.record import BUILT_ON_EARLIER

    return replace(turn, notes=tuple(note for note in turn.notes if not note.startswith(BUILT_ON_EARLIER)))


def conversation_title(chat: Chat, turns: int) -> str:
    return f"Chat {chat.name!r} with {chat.llm.name}: {plural(turns, 'turn')}"


def conversation_bundle(title: str, system: str | None, turns: Sequence[Said]) -> dict[str, str]:
    """`text/plain` and `text/html` of a conversation, the system prompt first if there is one."""
    return {"text/plain": _text(title, system, turns), "text/html": _html(title, system, turns)}


def _text(title: str, system: str | None, turns: Sequence[Said]) -> str:
    parts = [printable(title), *([f"system: {printable(system)}"] if system else [])]
    for each in turns:
        parts += [f"> {_indented(each.turn.message)}", f"{reply_text(each.turn)}\n— {each.marks}"]
    return "\n\n".join(parts if turns else [*parts, NOTHING_YET])


def _indented(text: str) -> str:
    return printable(text).replace("\n", "\n> ")


def _html(title: str, system: str | None, turns: Sequence[Said]) -> str:
    parts = [f'<div style="{MUTED}">{escape(title)}</div>']
    if system:
        parts.append(f'<div {NO_MATH} style="{MUTED};white-space:pre-wrap">system: {escape(printable(system))}</div>')
    for each in turns:
        parts.append(f'<div {NO_MATH} style="{_MESSAGE}">{escape(printable(each.turn.message))}</div>')
        parts.append(
            f'{answer_html(each.turn)}\n{footer_html(each.turn)}\n<div style="{MUTED}">{escape(each.marks)}</div>'
        )
    if not turns:
        parts.append(f'<div style="{MUTED}">{NOTHING_YET}</div>')
    return "\n".join(parts)
