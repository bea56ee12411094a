"""How well a search finds what answers: a table, and recall drawn over the number of documents looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Final

from ipyllama.display.table import Table

if TYPE_CHECKING:
    from ipyllama.rag.evaluate import Evaluation

_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 520, 240, 46, 14, 80, 36
_GRID: Final = "var(--jp-border-color2,rgba(127,127,127,.35))"
_MUTED: Final = "var(--jp-ui-font-color2,#767676)"
_COLORS: Final = ("var(--jp-info-color0,#0277bd)", "var(--jp-warn-color0,#c66900)", "var(--jp-success-color0,#2e7d32)")
_DASHES: Final = ("6 3", "2 3", "none")
_APART: Final = 15
"""Pixels between two labels, at least."""


@dataclass(frozen=True, slots=True)
class RecallPlot:
    """Recall at 1, 2, ... k for each way to search."""

    lines: Mapping[str, Sequence[float]]

    def __str__(self) -> str:
        return "\n".join(f"{name}: " + " ".join(f"{share:.0%}" for share in line) for name, line in self.lines.items())

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": str(self), "text/html": recall_html(self.lines)}


def evaluation_table(evaluation: Evaluation) -> Table:
    """A row for each way to search."""
    k = evaluation.k
    shown = sorted({1, min(3, k), k})
    rows = tuple(
        (
            found.mode,
            *(f"{found.recall[at - 1]:.1%}" for at in shown),
            f"{found.mrr:.3f}",
            f"{found.seconds * 1000:.1f} ms",
            f"{found.slowest * 1000:.1f} ms",
        )
        for found in evaluation.found
    )
    columns = ("search", *(f"recall@{at}" for at in shown), "MRR", "median", "95th percentile")
    title = f"{evaluation.n_questions:,} questions to the index {evaluation.name}"
    missed = len(evaluation.missed)
    note = f"hybrid does not find {missed:,} of them among the first {k}" if missed else ""
    return Table(columns, rows, title, right=frozenset(range(1, len(columns))), note=note)


def recall_html(lines: Mapping[str, Sequence[float]]) -> str:
    """A drawing without script; its colours follow the front end's theme."""
    k = max((len(line) for line in lines.values()), default=0)
    low = _floor(min((min(line) for line in lines.values() if line), default=0.0))
    said = "; ".join(f"{name}: {', '.join(f'{share:.0%}' for share in line)}" for name, line in lines.items())
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(f"Recall at 1 to {k}. {said}")}" '
        f'style="max-width:{_WIDTH}px;width:100%;height:auto;font:12px var(--jp-ui-font-family,sans-serif)">'
    ]
    for step in range(5):
        share = low + (1 - low) * step / 4
        y = _y(share, low)
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" style="stroke:{_GRID}"/>')
        parts.append(_label(_LEFT - 8, y + 4, f"{share:.0%}", "end"))
    for at in range(1, k + 1):
        if k <= 10 or at in (1, k) or at % 5 == 0:
            parts.append(_label(_x(at, k), _HEIGHT - _BOTTOM + 18, str(at), "middle"))
    parts.append(_label((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 2, "documents looked at", "middle"))
    named = _apart([(_y(line[-1], low), name) for name, line in lines.items() if line])
    for number, (name, line) in enumerate(lines.items()):
        color, dash = _COLORS[number % len(_COLORS)], _DASHES[number % len(_DASHES)]
        points = " ".join(f"{_x(at, k):.1f},{_y(share, low):.1f}" for at, share in enumerate(line, 1))
        style = f"fill:none;stroke:{color};stroke-width:2;stroke-dasharray:{dash}"
        parts.append(f'<polyline points="{points}" style="{style}"/>')
        if name in named:
            parts.append(_label(_WIDTH - _RIGHT + 8, named[name] + 4, name, "start", color))
    return "\n".join([*parts, "</svg>"])


def _floor(share: float) -> float:
    """Where the axis begins: a multiple of 20% below all that is drawn."""
    return int(share * 5) / 5 if share < 1 else 0.8


def _x(at: int, k: int) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * ((at - 1) / (k - 1) if k > 1 else 0.5)


def _y(share: float, low: float) -> float:
    return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - share) / (1 - low)


def _label(x: float, y: float, text: str, anchor: str, color: str = _MUTED) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" style="fill:{color};text-anchor:{anchor}">{escape(text)}</text>'


def _apart(ends: Sequence[tuple[float, str]]) -> dict[str, float]:
    """Heights of labels, pushed down where they would lie over each other."""
    placed: dict[str, float] = {}
    above = float("-inf")
    for y, name in sorted(ends):
        above = max(y, above + _APART)
        placed[name] = above
    return placed
