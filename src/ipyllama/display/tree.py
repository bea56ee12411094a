"""A conversation's tree as text and HTML: one line a turn, with the lines that tell what it continues beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import count
from typing import Any, Final

from ipyllama.display.reply import MUTED, NO_MATH
from ipyllama.display.text import one_line

WIDTH: Final = 36
"""Characters of a message and of its answer in text: a line then fits in a terminal."""
LONGEST: Final = 120
"""The same in HTML, where what does not fit in the window is hidden."""
_LINES: Final = "font-family:var(--jp-code-font-family,monospace);white-space:pre;flex:none"
_CUT: Final = "overflow:hidden;text-overflow:ellipsis;white-space:nowrap;min-width:0"
_MARK: Final = "flex:none;border:1px solid;border-radius:.7em;padding:0 .5em;line-height:1.4"


@dataclass(frozen=True, slots=True)
class TreeRow:
    """A turn as it is shown. `depth` is how many forks are above it; `first` marks the first turn of a fork."""

    number: int
    name: str | None
    message: str
    answer: str
    depth: int = 0
    first: bool = False
    head: bool = False
    stale: bool = False
    id: str = field(default="", compare=False)
    where: Mapping[str, float] | None = field(default=None, compare=False)
    """by place what share of the turn's prefix is there, as `Where.places` tells; None where nobody has looked"""


@dataclass(frozen=True, slots=True)
class ConversationTree:
    """The turns of a conversation, a turn before what continues it. Shows itself in a notebook and in a terminal."""

    title: str
    rows: Sequence[TreeRow]

    def __str__(self) -> str:
        if not self.rows:
            return f"{self.title}\n(nothing was said yet)"
        names = [f"{_graph(row, at)} {_label(row)}" for at, row in enumerate(self.rows)]
        width = max(map(len, names))
        said = (f"{short(row.message, WIDTH)} → {_answer(row, WIDTH)}" for row in self.rows)
        marks = ("".join(f"  [{mark}]" for mark in _marks(row)) for row in self.rows)
        lines = zip(names, said, marks, strict=True)
        return "\n".join([self.title, *(f"{name:<{width}}  {text}{mark}" for name, text, mark in lines)])

    def __repr__(self) -> str:
        return str(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": str(self), "text/html": self._html()}

    def _html(self) -> str:
        title = f'<div style="{MUTED};margin-bottom:.4em">{escape(self.title)}</div>'
        if not self.rows:
            return f'{title}<div style="{MUTED}">(nothing was said yet)</div>'
        return f'{title}\n<div style="line-height:1.5">\n' + "\n".join(map(_row_html, self.rows, count())) + "\n</div>"


def _graph(row: TreeRow, at: int) -> str:
    """Lines down to the turns that go on below, and a dot for this one, a full one at the head. Above the row `at` 0 is
    nothing that a line could come from."""
    fork = "├─" if at else "┌─"
    lines = "│ " * (row.depth - 1) + (fork if row.first else "│ ") if row.depth else ""
    return lines + ("●" if row.head else "○")


def _label(row: TreeRow) -> str:
    return f"{row.number} {row.name}" if row.name else str(row.number)


def _marks(row: TreeRow) -> list[str]:
    marks = [mark for mark, on in (("head", row.head), ("stale", row.stale)) if on]
    return marks if row.where is None else [*marks, where_text(row.where)]


def where_text(where: Mapping[str, float]) -> str:
    """`live, disk 40%`: the places of a prefix, with the share where it is not all there."""
    parts = (place if share >= 1 else f"{place} {max(1, int(share * 100))}%" for place, share in where.items())
    return ", ".join(parts) or "kept nowhere"


def _row_html(row: TreeRow, at: int) -> str:
    """One line, as wide as there is room: where the answer does not fit, its end is hidden."""
    label = f'<span style="{MUTED};flex:none">{row.number}</span>'
    if row.name:
        label += f' <strong style="flex:none">{escape(short(row.name, WIDTH))}</strong>'
    message = f'<span style="{_CUT};flex:0 1 auto">{escape(short(row.message, LONGEST))}</span>'
    answer = f'<span style="{_CUT};flex:0 4 auto;{MUTED}">→ {escape(_answer(row, LONGEST))}</span>'
    marks = " ".join(f'<span style="{MUTED};{_MARK}">{mark}</span>' for mark in _marks(row))
    said = f"{label} {message} {answer} {marks}".rstrip()
    faded = ";opacity:.6" if row.stale else ""
    graph = f'<span style="{_LINES}">{_graph(row, at)}</span>'
    return f'<div {NO_MATH} style="display:flex;align-items:baseline;gap:.5em{faded}">{graph} {said}</div>'


def _answer(row: TreeRow, width: int) -> str:
    return short(row.answer, width) or "(nothing)"


def short(text: str, width: int) -> str:
    """The beginning of a text, on one line; no more of it is looked at than is needed."""
    line = one_line(text[: 4 * width])
    if len(line) <= width and len(text) <= 4 * width:
        return line
    words = line[:width].rpartition(" ")[0] or line[: width - 1]
    return f"{words}…"
