"""The cells of a context as text and static HTML: what they hold, and where that came from."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, Final

from ipyllama.display.reply import MUTED
from ipyllama.display.text import one_line
from ipyllama.display.units import format_count, plural

if TYPE_CHECKING:
    from ipyllama.engine.kv import KVMap, KVRun, Origin

ORIGINS: Final[dict[Origin, tuple[str, str]]] = {
    "reused": ("█", "#2f9e63"),
    "restored": ("▓", "#3f7fd4"),
    "computed": ("▒", "#d9822b"),
    "generated": ("◆", "#9a63d1"),
}
"""How each is drawn, in text and in colour; readable on white and on black."""
_FREE: Final = "var(--jp-border-color2,rgba(127,127,127,.25))"
_STRIPES: Final = "repeating-linear-gradient(45deg,rgba(255,255,255,.45) 0 2px,transparent 2px 6px)"
WIDTH: Final = 64
"""Characters of a bar."""


def kv_text(kv: KVMap) -> str:
    """A bar of all cells, then a line for each sequence."""
    bar = "".join(sign * n for sign, n in _scaled(kv))
    counts = [f"{sign} {name} {format_count(kv.count(name))}" for name, (sign, _) in ORIGINS.items()]
    lines = [_head(kv), f"[{bar}]", f"{'  '.join(counts)}  · free {format_count(kv.free)}"]
    lines += [f"  {line}" for line in _sequence_lines(kv)]
    return "\n".join([*lines, *filter(None, [kv.note])])


def kv_html(kv: KVMap) -> str:
    """The same with colours; cells that several sequences hold are striped."""
    segments = "".join(_segment(run, kv.n_cells) for run in kv.runs)
    legend = "".join(_key(name, kv.count(name), colour) for name, (_, colour) in ORIGINS.items())
    legend += _key("free", kv.free, _FREE)
    if kv.shared:
        legend += _key("shared", kv.shared, f"{_STRIPES},#777")
    lines = "<br>".join(map(escape, filter(None, [*_sequence_lines(kv), kv.note])))
    return (
        f'<div style="margin-bottom:.35em">{escape(_head(kv))}</div>\n'
        f'<div role="img" aria-label="{escape(_spoken(kv))}" style="display:flex;height:18px;border-radius:3px;'
        f'overflow:hidden;background:{_FREE}">{segments}</div>\n'
        f'<div style="display:flex;flex-wrap:wrap;gap:.2em 1.2em;margin:.4em 0;{MUTED}">{legend}</div>\n'
        f'<div style="{MUTED}">{lines}</div>'
    )


def kv_bundle(kv: KVMap) -> dict[str, str]:
    return {"text/plain": kv_text(kv), "text/html": kv_html(kv)}


def _head(kv: KVMap) -> str:
    share = kv.used / kv.n_cells if kv.n_cells else 0.0
    model = f" · {one_line(kv.model)}" if kv.model else ""
    return f"KV cells{model}: {format_count(kv.used)} of {format_count(kv.n_cells)} in use ({share:.0%})"


def _spoken(kv: KVMap) -> str:
    return ", ".join([*(f"{name} {format_count(kv.count(name))}" for name in ORIGINS), f"free {format_count(kv.free)}"])


def _sequence_lines(kv: KVMap) -> Iterator[str]:
    for number, tokens in kv.sequences.items():
        shared = sum(len(run.tokens) for run in kv.runs if run.shared and number in run.sequences)
        with_others = f", {format_count(shared)} of them shared" if shared else ""
        last = max(run.start + len(run.tokens) for run in kv.runs if number in run.sequences) - 1
        yield f"sequence {number}: {plural(tokens, 'token')}{with_others}, positions 0 to {format_count(last)}"


def _scaled(kv: KVMap) -> Iterator[tuple[str, int]]:
    """Signs and how often: every run that there is shows, the rest is free."""
    left = WIDTH
    for sign, runs in groupby(kv.runs, key=lambda run: ORIGINS[run.origin][0]):
        cells = sum(len(run.tokens) for run in runs)
        n = min(left, max(1, round(cells / max(1, kv.n_cells) * WIDTH)))
        left -= n
        yield sign, n
    yield "·", left


def _segment(run: KVRun, n_cells: int) -> str:
    share = len(run.tokens) / max(1, n_cells) * 100
    colour = ORIGINS[run.origin][1]
    background = f"{_STRIPES},{colour}" if run.shared else colour
    end = run.start + len(run.tokens) - 1
    numbers = ", ".join(map(str, run.sequences))
    what = f"{plural(len(run.tokens), 'token')} {run.origin}, positions {run.start:,} to {end:,}, sequence {numbers}"
    return f'<div title="{escape(what)}" style="flex:0 0 {share:.3f}%;min-width:2px;background:{background}"></div>'


def _key(name: str, count: int, colour: str) -> str:
    swatch = f'<span style="display:inline-block;width:.8em;height:.8em;border-radius:2px;background:{colour}"></span>'
    return f"<span>{swatch} {name} {format_count(count)}</span>"
