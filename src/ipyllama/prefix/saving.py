"""The way out of the context: blocks of what is evaluated are copied and handed to the memory."""

from __future__ import annotations

from collections.abc import Collection
from itertools import takewhile
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ipyllama import _core
from ipyllama.errors import CannotTrim
from ipyllama.prefix.keys import Link
from ipyllama.prefix.memory import PrefixMemory
from ipyllama.prefix.store.block import Block, Probe

N_PROBED: Final = 8
"""Logits that prove a restored state."""


class Saving:
    """Follows a ledger as it is evaluated. `n` is always how many of its tokens the sequence holds."""

    def __init__(self, sequence: _core.Sequence, memory: PrefixMemory) -> None:
        self._sequence, self._memory = sequence, memory
        self._links: list[Link] = []
        self._kept = 0  # how many of them the memory has, or will not take
        self._pending: tuple[Link, NDArray[np.uint8]] | None = None  # waits for its probe

    def follow(self, links: list[Link], n: int, restored: Collection[bytes] = ()) -> None:
        """These blocks are evaluated from now on; those with the keys `restored` have just come from the memory.

        What was evaluated while the memory was off, or was deleted since, is handed over again: nothing that is saved
        after it could be found without it.
        """
        self._links, self._pending = links, None
        self._kept = self._n_kept(n, restored)
        self._save_reached(n)

    def stepped(self, n: int, token: int | None) -> None:
        """A step was evaluated; `token` if it was of one."""
        self._save_pending(token)
        self._save_reached(n)

    def finish(self, links: list[Link], n: int) -> None:
        """The blocks are these after all: what was sampled is known now."""
        saved_to = self._links[self._kept - 1].end if self._kept else 0
        self._links = links
        self._kept = sum(link.end <= saved_to for link in links)
        self._save_reached(n)
        self._save_pending(None)

    def _n_kept(self, n: int, restored: Collection[bytes]) -> int:
        """How many of the blocks up to position n the memory has; what it has lost is saved again if all have room."""
        live = [link for link in self._links if link.end <= n]
        room = max(self._memory.ram.bytes_limit, self._memory.bytes_limit)
        fits = n * self._memory.rates.bytes_per_token <= room
        if not fits:
            return len(live)
        known = sum(1 for _ in takewhile(lambda link: link.key in restored, live))
        return known + len(self._memory.find(live[known:]))

    def _save_reached(self, n: int) -> None:
        """Copy out the blocks that the sequence has reached the end of."""
        while self._kept < len(self._links) and self._links[self._kept].end <= n:
            link = self._links[self._kept]
            self._kept += 1
            if not self._memory.wants(link):
                continue
            try:
                state = self._sequence.save(link.start, link.end)
            except CannotTrim:  # recurrent state has moved on; the chain ends here
                self._kept -= 1
                self._links = self._links[: self._kept]
                return
            if link.end == n:
                self._pending = (link, state)  # the next step may tell what the model says after it
            else:
                self._save(link, state, None)

    def _save_pending(self, token: int | None) -> None:
        if self._pending is None:
            return
        (link, state), self._pending = self._pending, None
        probe = None
        if token is not None:
            logits = self._sequence.logits()
            best = np.argsort(logits)[: -N_PROBED - 1 : -1]
            probe = Probe(token, tuple(best.tolist()), tuple(logits[best].tolist()))
        self._save(link, state, probe)

    def _save(self, link: Link, state: NDArray[np.uint8], probe: Probe | None) -> None:
        seconds = self._memory.rates.prefill.seconds(len(link.tokens))
        self._memory.save(Block(link, state, self._memory.binding.origin, seconds, probe))
