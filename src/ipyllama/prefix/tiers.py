"""Blocks of one model in RAM, on disk and at a remote: which are at hand, what they take to bring back, where new ones
go."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ipyllama.errors import BadOption, BadState, StoreError
from ipyllama.ledger import Ledger, common_prefix
from ipyllama.prefix.keys import Link, chain
from ipyllama.prefix.ram import RamTier
from ipyllama.prefix.rates import Rate, Rates
from ipyllama.prefix.records import Binding, Counts, Found, Place
from ipyllama.prefix.store.block import Block, Unchecked
from ipyllama.prefix.store.blocks import BlockStore, Entry, block_name
from ipyllama.prefix.store.tier import RemoteTier
from ipyllama.prefix.store.writer import Writer

CHILDREN: Final = 64
"""Blocks after the same block that are looked at for the one most like a prompt: the latest."""
TELLING: Final = 1 << 20
"""Bytes. Restoring fewer tells of overheads, not of a rate."""
FLUSH: Final = 10.0
"""Seconds that what waits to be written is waited for, before a block is set aside."""
NOTICED: Final = 0.02
"""Seconds. A block that takes this much longer to restore than to compute is not kept."""


class Tiers:
    """RAM, disk and remote as one, for the model that `binding` names. The worker thread of that model asks."""

    ram: RamTier
    store: BlockStore | None
    remote: RemoteTier | None
    writer: Writer | None
    """saves blocks on disk; None where nothing does"""
    rates: Rates
    counts: Counts
    paused: bool
    """nothing is looked up and nothing saved"""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._binding: Binding | None = None
        self.outdated: set[bytes] = set()  # keys of blocks that another build or number of threads made
        self._refused: set[bytes] = set()  # keys of blocks that were set aside and not computed anew

    @property
    def binding(self) -> Binding:
        """Raises `BadOption` where the memory belongs to no model yet."""
        if self._binding is None:
            raise BadOption("this memory belongs to no model: ask the memory of a loaded one, llm.memory")
        return self._binding

    @property
    def model(self) -> str:
        """The name of the model that it belongs to; empty where that is none."""
        return self._binding.model if self._binding is not None else ""

    def links(self, ledger: Ledger, exact: int | None = None) -> list[Link]:
        """The blocks that a ledger is made of; after the position `exact` they are token-level ones."""
        return list(chain(self.binding.root, ledger, self.binding.cut, exact))

    def find(self, links: Iterable[Link]) -> list[Found]:
        """Those of consecutive blocks that are at hand, up to the first that is not. Reads no block."""
        found: list[Found] = []
        for link in links if not self.paused else ():
            place = self._place(link)
            if place is None:
                break
            found.append(Found(link, place))
        return found

    def child(self, parent: bytes, at: int, tokens: tuple[int, ...], n_ctx: int) -> Found | None:
        """Of the blocks after the block `parent`, which ends at `at`, the one that has most leading tokens in common
        with `tokens[at:]`; `take` may be 0. None where there is none that ends within `n_ctx`. Reads headers."""
        if self.paused:
            return None
        wanted, best = tokens[at:], None
        for link, place in self._children(parent):
            if link.start == at and link.end <= n_ctx:
                n = common_prefix(link.tokens, wanted)
                if best is None or n > best.n_tokens:
                    best = Found(link, place, None if n == len(link.tokens) else n)
        return best

    def ask_remote(self, links: Iterable[Link]) -> None:
        """Let the remote say which of these consecutive blocks it has, if it is worth asking: `find` knows then."""
        if self.remote is None or self.paused:
            return
        missing = [link for link in links if self._place(link) in (None, "remote")]
        n = sum(len(link.tokens) for link in missing)
        seconds = self.rates.prefill.seconds(n)
        if seconds > self.rates.remote.seconds(n * self.rates.bytes_per_token):
            self.remote.ask(missing, seconds)

    def restore_seconds(self, found: Sequence[Found]) -> float:
        """What bringing these blocks back is predicted to take."""
        return sum(
            self._rate(block.place).seconds(len(block.link.tokens) * self.rates.bytes_per_token) for block in found
        )

    def load(self, found: Found) -> Block | None:
        """A block that `find` saw. None, and it is quarantined if it is damaged, where it cannot be used after all."""
        return self.checked(found, self.fetch(found))

    def fetch(self, found: Found, out: NDArray[np.uint8] | None = None) -> Block | Unchecked | None:
        """Read a block that `find` saw, for `checked`; on any thread. `out` as in `read_unchecked`."""
        block: Block | Unchecked | None = self.ram.get(found.link.key)
        if block is None and self.store is not None:
            try:
                block = self.store.fetch(found.link.parent, found.link.key, out)
            except BadState as error:
                self.quarantine(found.link, str(error))
        if block is None and found.place == "remote" and self.remote is not None:
            block = self.remote.load(found.link, self._keep)
        return block

    def checked(self, found: Found, fetched: Block | Unchecked | None) -> Block | None:
        """The block that was fetched. None, and it is quarantined if it is damaged, where it cannot be used."""
        try:
            block = fetched.checked() if isinstance(fetched, Unchecked) else fetched
        except BadState as error:
            self.quarantine(found.link, str(error))
            return None
        if block is None or block.link != found.link:  # a hash alone is never believed
            return None
        if block.origin != self.binding.origin:
            self.outdated.add(found.link.key)
        return block

    # -- what the worker reports -------------------------------------------------------------------------

    def wants(self, link: Link) -> bool:
        """True if a block is worth copying out: it would be kept, and it is not at hand yet."""
        if self.paused:
            return False
        kept = self.ram.bytes_limit > 0 or (self.writer is not None and self.writer.ready)
        lost = self.restore_seconds([Found(link, "disk")]) - self.rates.prefill.seconds(len(link.tokens))
        return kept and lost < NOTICED and (link.key in self.outdated or self._place(link) in (None, "remote"))

    def restored(self, found: Sequence[Found], blocks: Sequence[Block], seconds: float) -> None:
        """Take note of a restore that worked, for the rates and the eviction."""
        self.ram.touch(block.link.key for block in blocks)
        with self._lock:
            self.counts.hits += len(blocks)
            self.counts.by_key.update(block.link.key for block in blocks)
            self.counts.seconds += sum(block.seconds for block in blocks)
        nbytes = sum(block.nbytes for block in blocks)
        if nbytes > TELLING and all(block.place == found[0].place for block in found):
            self._rate(found[0].place).learn(nbytes, seconds)

    def used(self, found: Iterable[Found]) -> None:
        """Note that these blocks were of use: what was not for longest goes first."""
        for block in found:
            if block.place == "disk" and self.store is not None:
                self.store.touch(block_name(block.link.parent, block.link.key))

    def save(self, block: Block) -> None:
        """Keep a block in RAM, and on disk soon, in place of one that another build or number of threads made."""
        self.ram.put(block)
        self.outdated.discard(block.link.key)
        self._refused.discard(block.link.key)
        self.rates.bytes_per_token = block.nbytes / len(block.link.tokens)
        if self.writer is not None:
            self.writer.put(block)
        if self.remote is not None:
            self.remote.put(block)
        with self._lock:
            self.counts.saved += 1

    def has_own(self, link: Link) -> bool:
        """True if what is here was made by this build and number of threads: nobody else's is worth more."""
        block = self.ram.get(link.key)
        if block is not None and block.origin == self.binding.origin:
            return True
        return self.store is not None and self.store.origin(link.parent, link.key) == self.binding.origin

    def quarantine(self, link: Link, why: str) -> None:
        """Never use this block again, until it is computed anew."""
        self._refused.add(link.key)
        if self.remote is not None:
            self.remote.refuse(link.key)
        if self.writer is not None:
            self.writer.flush(FLUSH)  # it may have come from the remote just now, and be written behind our back
        self.ram.drop(link.key)
        if self.store is not None:
            self.store.quarantine(link.parent, link.key)
        with self._lock:
            self.counts.damaged.append(f"tokens {link.start:,} to {link.end:,}: {why}")

    # -- within -------------------------------------------------------------------------------------------

    def _place(self, link: Link) -> Place | None:
        if link.key in self.ram:
            return "RAM"
        with contextlib.suppress(OSError, StoreError):  # a place that cannot be looked at has nothing
            if self.store is not None and self.store.has(link.parent, link.key):
                return "disk"
        return "remote" if self.remote is not None and self.remote.has(link.key) else None

    def _children(self, parent: bytes) -> Iterator[tuple[Link, Place]]:
        for link in self.ram.children(parent):
            yield link, "RAM"
        if self.store is None:
            return
        entries: list[Entry] = []
        with contextlib.suppress(OSError, StoreError):
            entries = sorted(self.store.children(parent), key=lambda entry: -entry.used)
        for entry in entries[:CHILDREN]:
            with contextlib.suppress(BadState, OSError):  # damaged, or gone in the meantime
                link = self.store.header(entry).link
                if link.parent == parent:
                    yield link, "disk"

    def _keep(self, block: Block) -> None:
        """What came from the remote is at hand from now on, unless there is better here."""
        if block.link.key in self._refused or (block.origin != self.binding.origin and self.has_own(block.link)):
            return
        self.ram.put(block)
        if self.writer is not None:
            self.writer.put(block)

    def _rate(self, place: Place) -> Rate:
        return {"RAM": self.rates.ram, "disk": self.rates.disk, "remote": self.rates.remote}[place]
