"""Why prompts cost what they did: a table of turns, and both sides of the place where a prompt parts from another."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Final

from ipyllama.display.reply import MUTED
from ipyllama.display.table import Table
from ipyllama.display.text import one_line, printable
from ipyllama.display.units import format_count

if TYPE_CHECKING:
    from ipyllama.chat import Turn
    from ipyllama.explain import Explanation, Span
    from ipyllama.reply import Usage

QUESTION: Final = 40
"""Characters of a turn's message."""
_THERE: Final = ("[-", "-]", "rgba(219,68,55,.22)", "del")
_HERE: Final = ("{+", "+}", "rgba(15,157,88,.22)", "ins")
"""How `git diff --word-diff` marks what went and what came; colours that are readable on white and on black."""


def turns_table(turns: Sequence[Turn], asked: Turn, numbers: Sequence[int]) -> Table:
    """A row for each turn, with its number in the tree, 0 where it is no longer there; an arrow marks the one that was
    asked about."""
    rows = tuple(
        (
            "→" if turn is asked else "",
            str(number or ""),
            _shortened(one_line(turn.message)),
            format_count(turn.usage.prompt),
            *("" if turn.replayed else format_count(n) for n in _sources(turn.usage)),
            turn.why.cause if turn.why else _without_cause(turn),
        )
        for number, turn in zip(numbers, turns, strict=True)
    )
    columns = ("", "turn", "message", "prompt", "reused", "restored", "computed", "cause")
    return Table(columns, rows, right=frozenset({1, 3, 4, 5, 6}), empty="no turn yet: ask something in a %%llama cell")


def explanation_text(explanation: Explanation) -> str:
    """What was at hand, why no more, and both sides, with what differs as `[-before-]` and `{+now+}`."""
    lines = [str(explanation.why)]
    if explanation.here or explanation.there:
        lines += [
            f"  before  {_marked_text(explanation.there, _THERE)}",
            f"  now     {_marked_text(explanation.here, _HERE)}",
        ]
    return "\n".join(lines)


def explanation_html(explanation: Explanation) -> str:
    """The same; what differs has a background."""
    said = f'<div style="margin:.2em 0">{escape(str(explanation.why))}</div>'
    if not (explanation.here or explanation.there):
        return said
    sides = (("before", explanation.there, _THERE), ("now", explanation.here, _HERE))
    return said + "".join(
        f'<div style="display:flex;gap:1em;margin:.2em 0"><span style="{MUTED};min-width:4em">{name}</span>'
        f'<code style="background:none;white-space:pre-wrap">{_marked_html(spans, marks)}</code></div>'
        for name, spans, marks in sides
    )


def explanation_bundle(explanation: Explanation) -> dict[str, str]:
    return {"text/plain": explanation_text(explanation), "text/html": explanation_html(explanation)}


def _without_cause(turn: Turn) -> str:
    if turn.replayed:
        return "replayed"
    return "an earlier kernel's" if turn.usage.prompt else "nothing was read"


def _sources(usage: Usage) -> tuple[int, int, int]:
    return usage.reused, usage.restored, usage.computed


def _marked_text(spans: Sequence[Span], marks: tuple[str, ...]) -> str:
    opened, closed = marks[:2]
    return _visible("".join(f"{opened}{span.text}{closed}" if span.changed else span.text for span in spans)) or "(end)"


def _marked_html(spans: Sequence[Span], marks: tuple[str, ...]) -> str:
    colour, tag = marks[2:]
    style = f"background:{colour};text-decoration:none;border-radius:2px"
    shown = (
        f'<{tag} style="{style}">{escape(_visible(span.text))}</{tag}>' if span.changed else escape(_visible(span.text))
        for span in spans
    )
    return "".join(shown) or "(end)"


def _visible(text: str) -> str:
    """On one line, white space kept apart."""
    return printable(text).replace("\n", "⏎").replace("\t", "⇥")


def _shortened(text: str) -> str:
    return text if len(text) <= QUESTION else f"{text[: QUESTION - 1]}…"
