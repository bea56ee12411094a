"""What to give up first: the block that saves the fewest seconds per byte, ends of chains before what they stand on."""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from ipyllama.prefix.store.blocks import Entry

HALF_LIFE: Final = 7 * 86400.0
"""Seconds without use after which a block is worth half."""
Beginnings = Mapping[str, Sequence[str]]
"""As `Heads.all` gives them."""


def stands_on(entry: Entry, heads: Beginnings) -> list[str]:
    """What a block is nothing without, 16 hex digits of each key: the block before it, and the one whose beginning it
    shares."""
    return [entry.parent, *heads.get(entry.short, ())]


def held(entries: Iterable[Entry], pins: Collection[bytes], heads: Beginnings) -> set[str]:
    """Names of the entries that pins hold: those with these keys, and all that they stand on."""
    if not pins:
        return set()
    by_key = {entry.short: entry for entry in entries}
    found: set[str] = set()
    wanted = [pin.hex()[:16] for pin in pins]
    while wanted:
        entry = by_key.get(wanted.pop())
        if entry is not None and entry.name not in found:
            found.add(entry.name)
            wanted += stands_on(entry, heads)
    return found


def eviction_order(entries: Iterable[Entry], seconds: Callable[[Entry], float], heads: Beginnings) -> Iterator[Entry]:
    """Entries, least valuable first; one that others stand on only after them. `seconds`: what computing it cost.

    Names that lead in circles, which no chain has, come last.
    """
    left = {entry.name: entry for entry in entries}
    below = {entry.short: entry for entry in left.values()}
    now = time.time()
    standing = Counter(under for entry in left.values() for under in stands_on(entry, heads))
    heap = [(_value(entry, seconds(entry), now), name) for name, entry in left.items() if not standing[entry.short]]
    heapq.heapify(heap)
    while heap:
        _, name = heapq.heappop(heap)
        entry = left.pop(name)
        yield entry
        for key in stands_on(entry, heads):
            standing[key] -= 1
            under = below.get(key)
            if under is not None and standing[key] == 0 and under.name in left:
                heapq.heappush(heap, (_value(under, seconds(under), now), under.name))
    yield from list(left.values())


def _value(entry: Entry, seconds: float, now: float) -> float:
    idle = max(0.0, now - entry.used)  # a clock that went back makes nothing worthless
    return float(seconds / max(1, entry.nbytes) * 0.5 ** (idle / HALF_LIFE))
