"""What to give up first: the block that saves the fewest seconds per byte, ends of chains before what they stand on."""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from ipyllama.prefix.local import Entry

HALF_LIFE: Final = 7 * 86400.0
"""Seconds without use after which a block is worth half."""


def eviction_order(entries: Iterable[Entry], seconds: Callable[[Entry], float]) -> Iterator[Entry]:
    """Entries, least valuable first; one that others stand on only after them. `seconds`: what computing it cost."""
    known = {entry.key.hex()[:16]: entry for entry in entries}
    now = time.time()
    standing = Counter(entry.parent for entry in known.values())
    heap = [(_value(entry, seconds(entry), now), name) for name, entry in known.items() if not standing[name]]
    heapq.heapify(heap)
    while heap:
        _, name = heapq.heappop(heap)
        entry = known[name]
        yield entry
        standing[entry.parent] -= 1
        if standing[entry.parent] == 0 and entry.parent in known:
            below = known[entry.parent]
            heapq.heappush(heap, (_value(below, seconds(below), now), entry.parent))


def _value(entry: Entry, seconds: float, now: float) -> float:
    idle = max(0.0, now - entry.used)  # a clock that went back makes nothing worthless
    return float(seconds / max(1, entry.nbytes) * 0.5 ** (idle / HALF_LIFE))
