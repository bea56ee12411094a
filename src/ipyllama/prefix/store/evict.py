"""What to give up first: the block that saves the fewest seconds per byte, ends of chains before what they stand on."""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final

from ipyllama.prefix.store.blocks import Entry

HALF_LIFE: Final = 7 * 86400.0
"""Seconds without use after which a block is worth half."""


def held(entries: Iterable[Entry], pins: Collection[bytes]) -> set[str]:
    """Names of the entries that pins hold: those with these keys, and all that they stand on."""
    if not pins:
        return set()
    by_key = {entry.key.hex()[:16]: entry for entry in entries}
    found: set[str] = set()
    for pin in pins:
        entry = by_key.get(pin.hex()[:16])
        while entry is not None and entry.name not in found:
            found.add(entry.name)
            entry = by_key.get(entry.parent)
    return found


def eviction_order(entries: Iterable[Entry], seconds: Callable[[Entry], float]) -> Iterator[Entry]:
    """Entries, least valuable first; one that others stand on only after them. `seconds`: what computing it cost.

    Names that lead in circles, which no chain has, come last.
    """
    left = {entry.name: entry for entry in entries}
    below = {entry.key.hex()[:16]: entry for entry in left.values()}
    now = time.time()
    standing = Counter(entry.parent for entry in left.values())
    heap = [
        (_value(entry, seconds(entry), now), name) for name, entry in left.items() if not standing[entry.key.hex()[:16]]
    ]
    heapq.heapify(heap)
    while heap:
        _, name = heapq.heappop(heap)
        entry = left.pop(name)
        yield entry
        standing[entry.parent] -= 1
        under = below.get(entry.parent)
        if under is not None and standing[entry.parent] == 0 and under.name in left:
            heapq.heappush(heap, (_value(under, seconds(under), now), under.name))
    yield from list(left.values())


def _value(entry: Entry, seconds: float, now: float) -> float:
    idle = max(0.0, now - entry.used)  # a clock that went back makes nothing worthless
    return float(seconds / max(1, entry.nbytes) * 0.5 ** (idle / HALF_LIFE))
