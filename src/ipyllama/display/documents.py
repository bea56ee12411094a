"""What is in an index of documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ipyllama.display.table import Table
from ipyllama.display.units import format_count

_SHOWN: Final = 20


def documents_table(title: str, sources: Mapping[str, int], problems: Mapping[str, str]) -> Table:
    """Documents with their chunks: first what is odd about the last ones that were added."""
    odd = [(name, format_count(sources[name]) if name in sources else "—", why) for name, why in problems.items()]
    fine = [(name, format_count(n), "") for name, n in sources.items() if name not in problems]
    rows = [*odd, *fine]
    more = len(rows) - _SHOWN
    note = f"and {more:,} more: sources() lists all documents, problems all that is odd" if more > 0 else ""
    columns = ("document", "chunks", "") if odd else ("document", "chunks")
    shown = tuple(row[: len(columns)] for row in rows[:_SHOWN])
    return Table(columns, shown, title, right=frozenset({1}), empty="no document yet: index.add(sources)", note=note)


def problems_table(problems: Mapping[str, str]) -> Table:
    """What was left out, or is odd, and why: the first ones."""
    more = len(problems) - _SHOWN
    note = f"and {more:,} more: index.add(...).problems has all" if more > 0 else ""
    return Table(("document", "problem"), tuple(problems.items())[:_SHOWN], note=note)
