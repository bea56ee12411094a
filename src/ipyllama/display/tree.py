"""A conversation's tree as text and HTML: one line a turn, indented where it forks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from textwrap import shorten
from typing import Any, Final

from ipyllama.display.reply import MUTED
from ipyllama.display.text import one_line

WIDTH: Final = 44
"""Characters of a message and of its answer."""


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


@dataclass(frozen=True, slots=True)
class ConversationTree:
    """The turns of a conversation, a turn before what continues it. Shows itself in a notebook and in a terminal."""

    title: str
    rows: Sequence[TreeRow]

    def __str__(self) -> str:
        if not self.rows:
            return f"{self.title}\n(nothing was said yet)"
        names = [_label(row) for row in self.rows]
        width = max(map(len, names))
        lines = [self.title]
        for row, name in zip(self.rows, names, strict=True):
            branch = "│ " * max(0, row.depth - 1) + ("" if not row.depth else "├─" if row.first else "│ ")
            lines.append(f"{branch}{name:<{width}}  {_said(row)}{_marks(row)}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": str(self), "text/html": self._html()}

    def _html(self) -> str:
        title = f'<div style="{MUTED};margin-bottom:.3em">{escape(self.title)}</div>'
        if not self.rows:
            return f'{title}<div style="{MUTED}">(nothing was said yet)</div>'
        return f'{title}\n<div style="line-height:1.6">\n' + "\n".join(map(_row_html, self.rows)) + "\n</div>"


def _label(row: TreeRow) -> str:
    return f"{row.number} {row.name}" if row.name else str(row.number)


def _said(row: TreeRow) -> str:
    return f"{_short(row.message)} → {_short(row.answer) or '(nothing)'}"


def _marks(row: TreeRow) -> str:
    return "".join(f"  [{mark}]" for mark, on in (("head", row.head), ("stale", row.stale)) if on)


def _row_html(row: TreeRow) -> str:
    line = "border-left:2px solid var(--jp-border-color1,rgba(127,127,127,.5));padding-left:.6em;" if row.depth else ""
    indent = f"margin-left:{1.2 * max(0, row.depth - 1) + 0.4:.1f}em;" if row.depth else ""
    faded = "opacity:.6;" if row.stale else ""
    label = f'<span style="{MUTED}">{row.number}</span>' + (f" <strong>{escape(row.name)}</strong>" if row.name else "")
    answer = escape(_short(row.answer)) or "(nothing)"
    marks = f'<span style="{MUTED}">{escape(_marks(row))}</span>' if row.head or row.stale else ""
    said = f'{escape(_short(row.message))} <span style="{MUTED}">→ {answer}</span>'
    return f'<div style="{indent}{line}{faded}">{label} {said}{marks}</div>'


def _short(text: str) -> str:
    return shorten(one_line(text), WIDTH, placeholder="…")
