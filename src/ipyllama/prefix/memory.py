"""PrefixMemory: prompt prefixes that are computed once. joblib's words for joblib's ideas."""

from __future__ import annotations

import contextlib
import copy
import os
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import numpy as np
from numpy.typing import NDArray

from ipyllama.errors import BadOption, BadState, StoreError
from ipyllama.ledger import Ledger, common_prefix
from ipyllama.models import Progress
from ipyllama.prefix.block import Block
from ipyllama.prefix.blocks import BlockStore, Entry
from ipyllama.prefix.keys import Link, chain
from ipyllama.prefix.ram import RamTier
from ipyllama.prefix.rates import Rate, Rates
from ipyllama.prefix.records import Binding, Check, Counts, Found, Place, Stats
from ipyllama.prefix.replies import Replies, replies_location
from ipyllama.prefix.seen import Seen
from ipyllama.prefix.sizes import parse_bytes, parse_seconds
from ipyllama.prefix.store import StoreBackend, make_backend
from ipyllama.prefix.tier import TIMEOUT, RemoteOptions, RemoteTier
from ipyllama.prefix.writer import Writer

if TYPE_CHECKING:
    from ipyllama.prefix.bundle import Exported, Imported

BYTES_LIMIT: Final = "10G"
RAM_LIMIT: Final = 1 << 30
CHILDREN: Final = 64
"""Blocks after the same block that are looked at for the one most like a prompt: the latest."""
NOTICED: Final = 0.02
"""Seconds. A block that takes this much longer to restore than to compute is not kept."""


class PrefixMemory:
    """Prefix states in RAM and, with a `location`, on disk. `location=None` keeps nothing on disk. `backend` names
    another kind of store there (`register_store_backend`).

    `bytes_limit` bounds the disk, `ram_limit` the RAM (numbers, or texts like "10G"); `age_limit` is the time without
    use after which a block is deleted ("30d", seconds, a timedelta; looked at once a day). With `verbose` 0 nothing is
    said where nothing can be saved. A store that is damaged, full or gone costs time, never an answer.

    `remote` is looked in for what is not here: a URL that fsspec speaks, such as "s3://bucket/folder", or a
    `StoreBackend`. What comes from it is kept here as well; with `write_through` what is saved here is sent there.
    What does not come within `remote_timeout` seconds, or the time that computing would take, is computed. A `location`
    with "://" in it is a remote that is written to, without a disk of one's own. Nothing is deleted from a remote.
    """

    def __init__(  # noqa: PLR0913 - joblib's words, each by name
        self,
        location: str | os.PathLike[str] | None = None,
        *,
        bytes_limit: int | str = BYTES_LIMIT,
        age_limit: float | str | timedelta | None = None,
        ram_limit: int | str = RAM_LIMIT,
        verbose: int = 1,
        backend: str = "local",
        remote: str | StoreBackend | None = None,
        write_through: bool = False,
        remote_timeout: float = TIMEOUT,
    ) -> None:
        if backend == "local" and "://" in os.fspath(location or ""):
            if remote is not None:
                raise BadOption(f"{location} is a remote already: give location a folder, or leave out remote")
            location, remote, write_through = None, str(location), True
        self.location = Path(location) if location is not None else None
        self.age_limit, self.verbose = parse_seconds(age_limit), verbose
        self.rates, self.ram, self.counts = Rates(), RamTier(parse_bytes(ram_limit)), Counts()
        self.store = BlockStore(make_backend(backend, location)) if location is not None else None
        self._writer = Writer(self.store, parse_bytes(bytes_limit), self._warn, self.age_limit) if self.store else None
        self._bindings: dict[bytes, Binding] = {}
        if isinstance(remote, str):
            remote = make_backend("fsspec", remote)
        options = RemoteOptions(write_through, remote_timeout)
        self.remote = RemoteTier(remote, options, self._warn) if remote is not None else None
        self.seen = Seen()
        self.paused = False
        self.replies = Replies(replies_location(self.location), self._warn)
        self._lock = threading.Lock()
        self._binding: Binding | None = None
        self._outdated: set[bytes] = set()  # keys of blocks that another build or number of threads made

    # -- a model's view -----------------------------------------------------------------------------------

    def bind(self, binding: Binding, ram_limit: int | str | None = None) -> Self:
        """The same store, asked about one model; RAM is the model's own."""
        bound = copy.copy(self)
        bound._binding, bound.rates, bound.counts = binding, Rates(), Counts()
        bound._outdated = set()
        self._bindings[binding.root] = binding
        if self._writer is not None:
            self._writer.note(f"model-{binding.root.hex()[:16]}", binding.as_note())
        bound.ram = RamTier(self.ram.bytes_limit if ram_limit is None else parse_bytes(ram_limit))
        return bound

    @property
    def binding(self) -> Binding:
        """Raises `BadOption` where the memory belongs to no model yet."""
        if self._binding is None:
            raise BadOption("this memory belongs to no model: ask the memory of a loaded one, llm.memory")
        return self._binding

    @property
    def bindings(self) -> dict[bytes, Binding]:
        """Every model that has used this memory, with its settings, by the key that its blocks begin with."""
        noted = self.store.notes().values() if self.store is not None else ()
        known = [binding for note in noted if (binding := Binding.of_note(note))]
        return {binding.root: binding for binding in known} | self._bindings

    @property
    def places(self) -> tuple[str, str]:
        """Where blocks are kept and looked for beside RAM: here and elsewhere; empty where nowhere."""
        return (str(self.location or ""), self.remote.name if self.remote else "")

    @property
    def writer(self) -> Writer | None:
        """What saves blocks on disk; None where nothing does."""
        return self._writer

    def links(self, ledger: Ledger, exact: int | None = None) -> list[Link]:
        """The blocks that a ledger is made of; after the position `exact` they are token-level ones."""
        return list(chain(self.binding.root, ledger, self.binding.cut, exact))

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

    def find(self, links: Iterable[Link]) -> list[Found]:
        """Those of consecutive blocks that are at hand, up to the first that is not. Reads no block."""
        found: list[Found] = []
        for link in links if not self.paused else ():
            place = self._place(link)
            if place is None:
                break
            found.append(Found(link, place))
        return found

    def check(self, tokens: Ledger | Sequence[int]) -> Check:
        """What a prompt of these tokens would find in RAM, on disk and at the remote."""
        ledger = tokens if isinstance(tokens, Ledger) else Ledger().append_prompt(tokens)
        links = [link for link in self.links(ledger) if link.end < len(ledger)]
        self.ask_remote(links)
        found = self.find(links)
        places: dict[Place, int] = {}
        for block in found:
            places[block.place] = places.get(block.place, 0) + len(block.link.tokens)
        n_found = sum(places.values())
        compute = self.rates.prefill.seconds(len(ledger) - n_found)
        return Check(len(ledger), n_found, places, self.restore_seconds(found), compute)

    def restore_seconds(self, found: Sequence[Found]) -> float:
        """What bringing these blocks back is predicted to take."""
        return sum(
            self._rate(block.place).seconds(len(block.link.tokens) * self.rates.bytes_per_token) for block in found
        )

    def wants(self, link: Link) -> bool:
        """True if a block is worth copying out: it would be kept, and it is not at hand yet."""
        if self.paused:
            return False
        kept = self.ram.bytes_limit > 0 or (self._writer is not None and self._writer.ready)
        lost = self.restore_seconds([Found(link, "disk")]) - self.rates.prefill.seconds(len(link.tokens))
        return kept and lost < NOTICED and (link.key in self._outdated or self._place(link) in (None, "remote"))

    def load(self, found: Found, out: NDArray[np.uint8] | None = None) -> Block | None:
        """A block that `find` saw. None, and it is quarantined if it is damaged, where it cannot be used after all."""
        block = self.ram.get(found.link.key) or self._read(found.link, out)
        if block is None and found.place == "remote" and self.remote is not None:
            block = self.remote.load(found.link, self._keep)
        if block is None or block.link != found.link:  # a hash alone is never believed
            return None
        if block.origin != self.binding.origin:
            self._outdated.add(found.link.key)
        return block

    def restored(self, found: Sequence[Found], blocks: Sequence[Block], seconds: float) -> None:
        """Take note of a restore that worked, for the rates and the eviction."""
        self.ram.touch(block.link.key for block in blocks)
        with self._lock:
            self.counts.hits += len(blocks)
            self.counts.seconds += sum(block.seconds for block in blocks)
        if found and all(block.place == found[0].place for block in found):
            self._rate(found[0].place).learn(sum(block.nbytes for block in blocks), seconds)

    def save(self, block: Block) -> None:
        """Keep a block in RAM, and on disk soon, in place of one that another build or number of threads made."""
        self.ram.put(block)
        self._outdated.discard(block.link.key)
        self.rates.bytes_per_token = block.nbytes / len(block.link.tokens)
        if self._writer is not None:
            self._writer.put(block)
        if self.remote is not None:
            self.remote.put(block)
        with self._lock:
            self.counts.saved += 1

    def quarantine(self, link: Link, why: str) -> None:
        """Never use this block again."""
        self.ram.drop(link.key)
        if self.store is not None:
            self.store.quarantine(link.parent, link.key)
        with self._lock:
            self.counts.damaged.append(f"tokens {link.start:,} to {link.end:,}: {why}")

    # -- housekeeping -------------------------------------------------------------------------------------

    def reduce_size(
        self,
        bytes_limit: int | str | None = None,
        items_limit: int | None = None,
        age_limit: float | str | timedelta | None = None,
    ) -> int:
        """Delete what is worth least until the store keeps to these limits; returns how many blocks went.

        None is the limit that the memory was made with; `items_limit` counts blocks. Raises `StoreError`.
        """
        if self._writer is None:
            return 0
        limit = self._writer.bytes_limit if bytes_limit is None else parse_bytes(bytes_limit)
        age = self.age_limit if age_limit is None else parse_seconds(age_limit)
        self._writer.flush()
        return self._writer.reduce(limit, items_limit, age)

    @property
    def bytes_limit(self) -> int:
        """Most bytes on disk. A smaller one holds from the next block on, or from `reduce_size()`."""
        return self._writer.bytes_limit if self._writer else 0

    @bytes_limit.setter
    def bytes_limit(self, limit: int | str) -> None:
        if self._writer is not None:
            self._writer.bytes_limit = parse_bytes(limit)

    def clear(self) -> None:
        """Forget everything, in RAM and on disk. Raises `StoreError`."""
        self.ram.clear()
        self.replies.clear()
        self.reduce_size(bytes_limit=0)

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until everything is on disk, and `remote_timeout` seconds at most until it is sent; False if that takes
        longer, or longer than `timeout` seconds."""
        began = time.monotonic()
        self.replies.flush()
        written = self._writer.flush(timeout) if self._writer else True
        left = None if timeout is None else max(0.0, timeout - (time.monotonic() - began))
        return (self.remote.flush(left) if self.remote else True) and written

    def export(
        self,
        path: str | os.PathLike[str],
        prompts: Iterable[Ledger | Sequence[int]] | None = None,
        progress: Progress | None = None,
    ) -> Exported:
        """Write prefix states of this model to one file: all that are on disk, or the beginnings of `prompts` (ledgers,
        or lists of token ids) that are here. `progress` is called with (done, total, label), in blocks.

        Whoever gets the file can read the prompts' token ids in it. Raises `StoreError` where it cannot be written.
        """
        from ipyllama.prefix.bundle import export_bundle

        return export_bundle(self, path, prompts, progress)

    def import_(self, path: str | os.PathLike[str], progress: Progress | None = None) -> Imported:
        """Take over the prefix states in a file that `export` wrote; what is damaged in it is refused, and named.

        A state from elsewhere is as good as who made it: it is checked for damage, and it can run no code. Raises
        `BadBundle` where the file is for another model or no bundle, `StoreError` where it does not fit or cannot be
        saved.
        """
        from ipyllama.prefix.bundle import import_bundle

        return import_bundle(self, path, progress)

    def verify(self, progress: Progress | None = None) -> list[str]:
        """Read every block on disk; damaged ones are quarantined and named."""
        return self.store.verify(progress) if self.store else []

    def stats(self) -> Stats:
        """What is where. Looks at every file of the store."""
        entries = list(self.store.entries()) if self.store else []
        return Stats(
            location=self.location,
            remote=self.remote.name if self.remote else "",
            disk_bytes=sum(entry.nbytes for entry in entries),
            disk_blocks=len(entries),
            bytes_limit=self._writer.bytes_limit if self._writer else 0,
            ram_bytes=self.ram.nbytes,
            ram_blocks=len(self.ram),
            ram_limit=self.ram.bytes_limit,
            counts=self.counts,
            problem=(self._writer.failed if self._writer else "") or (self.remote.problem if self.remote else ""),
        )

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
        """What came from the remote is at hand from now on."""
        self.ram.put(block)
        if self._writer is not None:
            self._writer.put(block)

    def _rate(self, place: Place) -> Rate:
        return {"RAM": self.rates.ram, "disk": self.rates.disk, "remote": self.rates.remote}[place]

    def _read(self, link: Link, out: NDArray[np.uint8] | None) -> Block | None:
        if self.store is None:
            return None
        try:
            return self.store.read(link.parent, link.key, out)
        except BadState as error:
            self.quarantine(link, str(error))
            return None

    def _warn(self, problem: str) -> None:
        if self.verbose:
            warnings.warn(problem, stacklevel=2)
