"""Tables about the prefix memory: how it is, and what is kept in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from ipyllama.display.table import Table, status_table
from ipyllama.display.text import one_line
from ipyllama.display.units import format_ago, format_bytes, format_count, format_limit, format_seconds, plural

if TYPE_CHECKING:
    from ipyllama.prefix import PrefixInfo, Stats

PREVIEW: Final = 48
"""Characters of a prefix's text."""
_COLUMNS: Final = ("prefix", "tokens", "own", "shared", "spares", "last used", "in", "model")
_NAME: Final = 40
"""Characters of a model's name: it comes from a file."""
_NAMED: Final = 3
"""Damaged blocks that are named."""


def cache_table(stats: Stats, origin: str, *, on: bool = True, model: str = "") -> Table:
    """How a prefix memory is. `origin` tells why it is where it is."""
    counts = stats.counts
    facts = {"kept in": f"{stats.location or 'RAM only'} ({origin})"}
    if stats.remote:
        facts["looked for in"] = stats.remote
    if stats.location:
        facts["on disk"] = _fill(stats.disk_bytes, stats.bytes_limit, stats.disk_blocks)
    facts["in RAM"] = _fill(stats.ram_bytes, stats.ram_limit, stats.ram_blocks)
    spared = f", which spared {format_seconds(counts.seconds)} of computing" if counts.hits else ""
    facts["restored"] = f"{plural(counts.hits, 'block')}{spared}"
    facts["saved"] = plural(counts.saved, "block")
    if not on:
        facts["state"] = "off: nothing is looked up or saved (%llama cache on)"
    if stats.problem:
        facts["problem"] = stats.problem
    if damaged := [*counts.damaged, *counts.unsound]:
        facts["damaged"] = _named(damaged)
    return status_table(facts, " · ".join(filter(None, ("Prefix memory", model))))


def prefix_table(
    prefixes: Sequence[PrefixInfo], texts: Mapping[str, str] | None, *, now: float, number: int, empty: str
) -> Table:
    """The first `number` of the prefixes that are kept, one a row. `texts` are what they end with, by name; None where
    text is not to be shown. `now` in seconds since the epoch."""
    shown = prefixes[:number]
    hits, pins = any(info.hits for info in shown), any(info.pinned for info in shown)
    columns = _COLUMNS + ("hits",) * hits + ("pinned",) * pins + ("ends with",) * (texts is not None)
    rows = tuple(
        _row(info, now)
        + (format_count(info.hits) if info.hits else "",) * hits
        + (pinned_text(info),) * pins
        + (() if texts is None else (preview(info, texts),))
        for info in shown
    )
    problems = dict.fromkeys(info.problem for info in shown if info.problem)
    notes = [f"{_names(shown, problem)} cannot be used: {problem}" for problem in problems]
    if len(prefixes) > number:
        notes.append(f"{format_count(len(prefixes) - number)} more: -n {len(prefixes)}")
    if texts is None and shown:
        notes.append("text not shown: shared cache")
    note = f"({'; '.join(notes)})" if notes else ""
    right = frozenset({1, 2, 3, 4, len(_COLUMNS)} if hits else {1, 2, 3, 4})
    return Table(columns, rows, right=right, empty=empty, note=note)


def _row(info: PrefixInfo, now: float) -> tuple[str, ...]:
    return (
        info.name,
        format_count(info.n_tokens) if info.n_tokens else "?",
        format_bytes(info.own_bytes),
        format_bytes(info.shared_bytes) if info.shared_bytes else "",
        format_seconds(info.seconds) if not info.problem else "",
        format_ago(max(0.0, now - info.used)) if info.used is not None else "now",
        ", ".join(info.places),
        info.model[:_NAME] or "?",
    )


def _names(prefixes: Sequence[PrefixInfo], problem: str) -> str:
    return ", ".join(info.name for info in prefixes if info.problem == problem)


def pinned_text(info: PrefixInfo) -> str:
    """`yes`, `512 tokens` where only its beginning is, or nothing."""
    return "yes" if info.pinned >= info.n_tokens > 0 else f"{info.pinned:,} tokens" if info.pinned else ""


def preview(info: PrefixInfo, texts: Mapping[str, str]) -> str:
    """The end of a prefix's text, on one line."""
    text = one_line(texts.get(info.name, ""))
    if info.name not in texts:
        return "(cannot be used)" if info.problem else "(model not loaded)"
    if len(text) <= PREVIEW:
        return text
    end = text[1 - PREVIEW :]
    return f"… {end.partition(' ')[2] or end}"  # from a whole word on, where there are words


def _fill(nbytes: int, limit: int, blocks: int) -> str:
    return f"{format_bytes(nbytes)} of {format_limit(limit)}, {plural(blocks, 'block')}"


def _named(damaged: Sequence[str]) -> str:
    more = f" and {len(damaged) - _NAMED} more" if len(damaged) > _NAMED else ""
    return f"{plural(len(damaged), 'block')}: {'; '.join(damaged[:_NAMED])}{more}"
