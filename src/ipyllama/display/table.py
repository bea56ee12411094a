"""Small tables: aligned text and HTML from the same cells."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from ipyllama.display.reply import MUTED, NO_MATH
from ipyllama.display.text import one_line
from ipyllama.display.units import format_bytes, format_count

_CELL: Final = "padding:.25em 1em .25em 0;vertical-align:top;text-align:"
_HEAD: Final = f"border-bottom:1px solid var(--jp-border-color1,rgba(127,127,127,.5));{_CELL}"
_SHORT: Final = 24
"""Characters up to which a cell stays on one line: a number beside its unit, two words together."""
_NAME: Final = f"color:var(--jp-ui-font-color2,#767676);font-weight:normal;{_CELL}"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under column names. `right` are the columns set flush right; `empty` is said where no row is.
    `note` stands below the rows."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    right: frozenset[int] = frozenset()
    empty: str = "(nothing)"
    note: str = ""

    def __str__(self) -> str:
        return table_text(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": table_text(self), "text/html": table_html(self)}


@dataclass(frozen=True, slots=True)
class ModelRow:
    """A model as `models_table` shows it: `size` in bytes, `n_ctx` in tokens; None is unknown."""

    name: str
    size: int
    quantisation: str
    n_ctx: int | None
    fits: bool | None
    where: str
    in_use: bool = False


def models_table(models: Iterable[ModelRow]) -> Table:
    """The models on this machine; an arrow marks the one that answers."""
    fits = {True: "yes", False: "no", None: "?"}
    rows = tuple(
        (
            "→" if model.in_use else "",
            model.name,
            format_bytes(model.size),
            model.quantisation or "?",
            format_count(model.n_ctx) if model.n_ctx else "?",
            fits[model.fits],
            model.where,
        )
        for model in models
    )
    columns = ("", "name", "size", "quantisation", "context", "fits", "where")
    return Table(columns, rows, right=frozenset({2, 4}), empty="no model on this machine yet: %llama load smollm2")


def status_table(status: Mapping[str, object], title: str = "") -> Table:
    """Facts by name, one a line, in the order given."""
    return Table(("", ""), tuple((name, str(value)) for name, value in status.items()), title)


def table_text(table: Table) -> str:
    """Aligned columns; wide (CJK, emoji) characters count for two."""
    lines = [table.title] if table.title else []
    cells = [[one_line(cell) for cell in row] for row in table.rows]
    if not cells:
        return "\n".join([*lines, table.empty])
    headed = any(table.columns)
    if headed:
        cells.insert(0, list(table.columns))
    widths = [max(text_width(row[i]) for row in cells) for i in range(len(table.columns))]
    if headed:
        cells.insert(1, ["-" * width for width in widths])
    lines += ["  ".join(_padded(row, widths, table.right)).rstrip() for row in cells]
    return "\n".join([*lines, table.note] if table.note else lines)


def table_html(table: Table) -> str:
    """A static table without style sheet; everything escaped."""
    title = f'<div style="{MUTED};margin-bottom:.3em">{escape(table.title)}</div>' if table.title else ""
    if not table.rows:
        return f'{title}<div style="{MUTED}">{escape(table.empty)}</div>'
    if any(table.columns):
        head = f"<thead><tr>{_cells(table.columns, table.right, 'th', _HEAD)}</tr></thead>\n"
        rows = [_cells(row, table.right, "td", _CELL) for row in table.rows]
    else:  # the first cell of a row names it
        head = ""
        rows = [
            _cells(row[:1], table.right, "th", _NAME) + _cells(row[1:], table.right, "td", _CELL) for row in table.rows
        ]
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    style = "border-collapse:collapse;font-size:inherit;margin:0"
    note = f'<div style="{MUTED};margin-top:.3em">{escape(table.note)}</div>' if table.note else ""
    return f'{title}<table {NO_MATH} style="{style}">\n{head}<tbody>\n{body}\n</tbody>\n</table>{note}'


def text_width(text: str) -> int:
    """Columns that the text takes in a terminal."""
    return sum(_char_width(char) for char in text)


def _char_width(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _padded(row: Sequence[str], widths: Sequence[int], right: frozenset[int]) -> Iterable[str]:
    for i, (cell, width) in enumerate(zip(row, widths, strict=True)):
        space = " " * (width - text_width(cell))
        yield space + cell if i in right else cell + space


def _cells(row: Sequence[str], right: frozenset[int], tag: str, style: str) -> str:
    return "".join(
        f'<{tag} style="{style}{_set(cell, "right" if i in right else "left")}">{escape(cell)}</{tag}>'
        for i, cell in enumerate(row)
    )


def _set(cell: str, side: str) -> str:
    return f"{side};white-space:nowrap" if len(cell) <= _SHORT else side
