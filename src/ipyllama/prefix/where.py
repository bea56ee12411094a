"""Where prefixes are kept: in the context, in RAM, on disk. For people to look at; nothing is planned by it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from ipyllama.errors import StoreError
from ipyllama.ledger import Ledger
from ipyllama.prefix.keys import Link
from ipyllama.prefix.memory import PrefixMemory

_Places = tuple[bool, bool]


@dataclass(frozen=True, slots=True)
class Where:
    """How many of a prompt's leading tokens are in each place; the same tokens may be in several."""

    n_tokens: int
    live: int
    """in the context now"""
    ram: int
    disk: int

    @property
    def places(self) -> dict[str, float]:
        """By place the share of the prompt that is there, those with nothing left out. The last token counts as there:
        it is evaluated anew in any case."""
        counts = {"live": self.live, "RAM": self.ram, "disk": self.disk}
        return {place: 1.0 if n >= self.n_tokens - 1 else n / self.n_tokens for place, n in counts.items() if n}

    def __str__(self) -> str:
        counts = f"{self.live:,} live, {self.ram:,} in RAM, {self.disk:,} on disk"
        return f"of {self.n_tokens:,} tokens {counts}"


def where_are(memory: PrefixMemory, ledgers: Sequence[Ledger], held: Callable[[Sequence[int]], int]) -> list[Where]:
    """Where the beginnings of these prompts are, in their order. `held` tells how many leading tokens are live.

    Reads no block. What several prompts have in common is looked for once.
    """
    look = _Look(memory)
    found = {}
    for number in sorted(range(len(ledgers)), key=lambda number: -len(ledgers[number])):  # long ones answer for others
        ledger = ledgers[number]
        ram, disk = look.at(ledger)
        found[number] = Where(len(ledger), held(ledger.tokens), ram, disk)
    return [found[number] for number in range(len(ledgers))]


class _Look:
    """One look at RAM and disk."""

    def __init__(self, memory: PrefixMemory) -> None:
        self._memory = memory
        self._places: dict[bytes, _Places] = {}
        self._seen: dict[tuple[int, int], tuple[Ledger, list[Link]]] = {}  # by number and identity of a segment

    def at(self, ledger: Ledger) -> tuple[int, int]:
        """Leading tokens in RAM and on disk."""
        links = self._links(ledger)
        return self._end(links, 0), self._end(links, 1)

    def _end(self, links: Iterable[Link], place: int) -> int:
        return max((link.end for link in takewhile(lambda link: self._of(link)[place], links)), default=0)

    def _of(self, link: Link) -> _Places:
        if link.key not in self._places:
            memory, on_disk = self._memory, False
            with contextlib.suppress(OSError, StoreError):
                on_disk = memory.store is not None and memory.store.has(link.parent, link.key)
            self._places[link.key] = link.key in memory.ram, on_disk
        return self._places[link.key]

    def _links(self, ledger: Ledger) -> list[Link]:
        """The blocks of a ledger; of a longer one those that lie in it, where that begins with the same segments."""
        n = len(ledger.segments)
        longer, links = self._seen.get((n, id(ledger.segments[-1])), (None, [])) if n else (None, [])
        if longer is not None and longer.segments[:n] == ledger.segments:
            return [link for link in links if link.end < len(ledger)]
        links = self._memory.links(ledger)
        for number, segment in enumerate(ledger.segments, start=1):
            self._seen.setdefault((number, id(segment)), (ledger, links))
        return [link for link in links if link.end < len(ledger)]
