"""PrefixMemory: prompt prefixes that are computed once. joblib's words for joblib's ideas."""

from __future__ import annotations

import copy
import logging
import os
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from ipyllama.errors import BadOption
from ipyllama.ledger import Ledger, as_ledger
from ipyllama.models import Progress
from ipyllama.prefix.pins import pin, pinned_bytes, unpin
from ipyllama.prefix.ram import RamTier
from ipyllama.prefix.rates import Rates
from ipyllama.prefix.records import Binding, Check, Counts, Place, Stats
from ipyllama.prefix.replies.memo import Replies, replies_location
from ipyllama.prefix.seen import Seen
from ipyllama.prefix.sizes import parse_bytes, parse_seconds
from ipyllama.prefix.store.backend import StoreBackend, make_backend
from ipyllama.prefix.store.blocks import BlockStore
from ipyllama.prefix.store.tier import TIMEOUT, RemoteOptions, RemoteTier
from ipyllama.prefix.store.writer import Writer, too_many_pins
from ipyllama.prefix.tiers import Tiers

if TYPE_CHECKING:
    from ipyllama.prefix.bundle import Exported, Imported
    from ipyllama.widgets.cache import CacheView

BYTES_LIMIT: Final = "10G"
RAM_LIMIT: Final = 1 << 30
_log: Final = logging.getLogger("ipyllama.prefix")


class PrefixMemory(Tiers):
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
        super().__init__()
        if backend == "local" and "://" in os.fspath(location or ""):
            if remote is not None:
                raise BadOption(f"{location} is a remote already: give location a folder, or leave out remote")
            location, remote, write_through = None, str(location), True
        if location is not None and backend == "local":
            location = Path(os.path.expanduser(location)).absolute()  # %cd does not move it
        self.location = Path(location) if location is not None else None
        self.age_limit, self.verbose = parse_seconds(age_limit), verbose
        self.rates, self.ram, self.counts = Rates(), RamTier(parse_bytes(ram_limit)), Counts()
        self.store = BlockStore(make_backend(backend, location)) if location is not None else None
        self.writer = Writer(self.store, parse_bytes(bytes_limit), self._warn, self.age_limit) if self.store else None
        self._bindings: dict[bytes, Binding] = {}
        self._views: weakref.WeakSet[PrefixMemory] = weakref.WeakSet([self])
        if isinstance(remote, str):
            remote = make_backend("fsspec", remote)
        options = RemoteOptions(write_through, remote_timeout)
        self.remote = RemoteTier(remote, options, self._warn) if remote is not None else None
        self.seen = Seen()
        self.paused = False
        self.replies = Replies(replies_location(self.location), self._warn)

    def __repr__(self) -> str:
        return f"<PrefixMemory: {' and '.join(filter(None, self.places)) or 'RAM only'}>"

    # -- a model's view -----------------------------------------------------------------------------------

    def bind(self, binding: Binding, ram_limit: int | str | None = None) -> Self:
        """The same store, asked about one model; RAM is the model's own."""
        bound = copy.copy(self)
        bound._binding, bound.rates, bound.counts = binding, Rates(), Counts()
        bound.outdated, bound._refused = set(), set()
        self._bindings[binding.root] = binding
        if self.writer is not None:
            self.writer.note(f"model-{binding.root.hex()[:16]}", binding.as_note())
        bound.ram = RamTier(self.ram.bytes_limit if ram_limit is None else parse_bytes(ram_limit))
        self._views.add(bound)
        return bound

    @property
    def bindings(self) -> dict[bytes, Binding]:
        """Every model that has used this memory, with its settings, by the key that its blocks begin with."""
        noted = self.store.notes().values() if self.store is not None else ()
        known = [binding for note in noted if (binding := Binding.of_note(note))]
        return {binding.root: binding for binding in known} | self._bindings

    @property
    def rams(self) -> list[RamTier]:
        """What every model that has used this memory keeps in RAM."""
        return [view.ram for view in list(self._views)]

    @property
    def hits(self) -> Counter[bytes]:
        """How often each block was restored since the memory was made, by its key."""
        return sum((view.counts.by_key.copy() for view in list(self._views)), Counter())

    @property
    def places(self) -> tuple[str, str]:
        """Where blocks are kept and looked for beside RAM: here and elsewhere; empty where nowhere."""
        return (str(self.location or ""), self.remote.name if self.remote else "")

    def check(self, tokens: Ledger | Sequence[int]) -> Check:
        """What a prompt of these tokens would find in RAM, on disk and at the remote. Raises `BadOption` for text."""
        ledger = as_ledger(tokens)
        links = [link for link in self.links(ledger) if link.end < len(ledger)]
        self.ask_remote(links)
        found = self.find(links)
        places: dict[Place, int] = {}
        for block in found:
            places[block.place] = places.get(block.place, 0) + len(block.link.tokens)
        n_found = sum(places.values())
        compute = self.rates.prefill.seconds(len(ledger) - n_found)
        return Check(len(ledger), n_found, places, self.restore_seconds(found), compute)

    # -- housekeeping -------------------------------------------------------------------------------------

    def reduce_size(
        self,
        bytes_limit: int | str | None = None,
        items_limit: int | None = None,
        age_limit: float | str | timedelta | None = None,
    ) -> int:
        """Delete what is worth least until the store keeps to these limits; returns how many blocks went.

        None is the limit that the memory was made with; `items_limit` counts blocks. What is pinned stays. Raises
        `StoreError`; it is `StoreFull` where what is pinned is over the limit.
        """
        if self.writer is None:
            return 0
        limit = self.writer.bytes_limit if bytes_limit is None else parse_bytes(bytes_limit)
        age = self.age_limit if age_limit is None else parse_seconds(age_limit)
        self.writer.flush()
        return self.writer.reduce(limit, items_limit, age)

    @property
    def bytes_limit(self) -> int:
        """Most bytes on disk. A smaller one holds from the next block on, or from `reduce_size()`; one that is smaller
        than what is pinned raises `StoreFull`, and nothing changes."""
        return self.writer.bytes_limit if self.writer else 0

    @bytes_limit.setter
    def bytes_limit(self, limit: int | str) -> None:
        if self.writer is not None:
            wanted = parse_bytes(limit)
            if (pinned := pinned_bytes(self)) > wanted:
                raise too_many_pins(pinned, wanted)
            self.writer.bytes_limit = wanted
            self.writer.resume()  # there may be room again

    def pin(self, *names: str) -> None:
        """Keep prefixes, by the names that `entries` gives, and all that they stand on: no limit and no age deletes
        them, in any process, until `unpin`.

        Raises `BadOption` for a name that is not there, and where nothing is kept on disk; `StoreFull` where they would
        take more than the limit, and nothing is pinned; `StoreError`.
        """
        pin(self, names)

    def unpin(self, *names: str) -> None:
        """The reverse of `pin`: of what these prefixes stand on nothing is pinned any more. Raises like `pin`."""
        unpin(self, names)

    def clear(self) -> None:
        """Forget everything, in RAM and on disk, of every model, also what is pinned. Raises `StoreError`."""
        for ram in self.rams:
            ram.clear()
        self.replies.clear()
        if self.store is not None:
            for key in self.store.pins():
                self.store.unpin(key)
        self.reduce_size(bytes_limit=0)

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until everything is on disk, and `remote_timeout` seconds at most until it is sent; False if that takes
        longer, or longer than `timeout` seconds."""
        began = time.monotonic()
        self.replies.flush()
        written = self.writer.flush(timeout) if self.writer else True
        left = None if timeout is None else max(0.0, timeout - (time.monotonic() - began))
        return (self.remote.flush(left) if self.remote else True) and written

    def rest(self) -> None:
        """Let the threads that save end once what waits is saved; they come back with the next block."""
        self.replies.rest()
        if self.writer is not None:
            self.writer.rest()

    def export(
        self,
        path: str | os.PathLike[str],
        prompts: Iterable[Ledger | Sequence[int]] | None = None,
        progress: Progress | None = None,
    ) -> Exported:
        """Write prefix states of this model to one file: all that are here, or the beginnings of `prompts` (ledgers, or
        lists of token ids). `progress` is called with (done, total, label), in blocks.

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
        damaged = self.store.verify(progress) if self.store else []
        self.counts.unsound += damaged
        return damaged

    def view(self) -> CacheView:
        """What is kept, as a view: look, sort, filter, pin, delete, verify, set the limit."""
        from ipyllama.widgets.cache import CacheView

        return CacheView(self)

    def stats(self) -> Stats:
        """What is where. Looks at every file of the store."""
        entries = list(self.store.entries()) if self.store else []
        return Stats(
            location=self.location,
            remote=self.remote.name if self.remote else "",
            disk_bytes=sum(entry.nbytes for entry in entries),
            disk_blocks=len(entries),
            bytes_limit=self.writer.bytes_limit if self.writer else 0,
            ram_bytes=self.ram.nbytes,
            ram_blocks=len(self.ram),
            ram_limit=self.ram.bytes_limit,
            counts=self.counts,
            problem=(self.writer.failed if self.writer else "") or (self.remote.problem if self.remote else ""),
        )

    # -- within -------------------------------------------------------------------------------------------

    def _warn(self, problem: str) -> None:
        if not self.verbose:
            return
        try:
            # From a thread that writes: no line of the user's, and none of ours, has anything to do with it.
            warnings.warn_explicit(problem, UserWarning, "ipyllama", 1)
        except UserWarning:  # where warnings are errors: this one costs no answer
            _log.warning(problem)
