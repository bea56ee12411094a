"""Saving off the hot path: a thread of its own writes blocks to the store, within its limits."""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ipyllama.errors import BadState, StoreBusy, StoreError, StoreFull
from ipyllama.prefix.store.block import Block, encode
from ipyllama.prefix.store.blocks import BlockStore, Entry, Usage
from ipyllama.prefix.store.evict import eviction_order, held, stands_on
from ipyllama.prefix.store.heads import write_sharing

PENDING_LIMIT: Final = 512 << 20
"""Bytes that may wait to be written; what comes on top is not saved."""
EVICT_TO: Final = 0.95
"""Share of the limit that is left after an eviction, so that not every block needs one."""
TENDED: Final = 86400.0
"""Seconds between two looks at every block: what was not used for too long goes, and the sum is counted anew."""
QUARANTINED: Final = 7 * 86400.0
"""Seconds that a damaged block is kept to be looked at, if there is room."""
BUSY: Final = 10.0
"""Seconds without saving once other processes have kept the store busy: at exit nobody waits for each block anew."""
RETRY: Final = 60.0
"""Seconds after a failure until saving is tried again; they double each time."""
_log: Final = logging.getLogger("ipyllama.prefix")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a store may hold."""

    nbytes: float
    items: float = math.inf
    oldest: float = -math.inf
    """blocks that were last used before that go, seconds since the epoch"""


class Writer:
    """Writes in the order of arrival. What goes wrong is told once; after a while, or `resume()`, it tries again."""

    def __init__(
        self, store: BlockStore, bytes_limit: int, warn: Callable[[str], None], age_limit: float | None = None
    ) -> None:
        self.store, self.bytes_limit, self.age_limit = store, bytes_limit, age_limit
        self.failed = ""
        self._warn = warn
        self._retry, self._wait, self._busy = 0.0, RETRY, -math.inf
        self._queue: queue.SimpleQueue[Block | None] = queue.SimpleQueue()
        self._pending = 0
        self._idle = threading.Condition()
        self._costs: dict[bytes, float] = {}
        self._notes: dict[str, dict[str, Any]] = {}
        self._thread: threading.Thread | None = None
        _alive.add(self)

    @property
    def ready(self) -> bool:
        """False for a while after a failure: what is put now is not saved."""
        return not self.failed or time.monotonic() >= self._retry

    def put(self, block: Block) -> None:
        """Save a block soon. Returns at once."""
        if not self.ready:
            return
        with self._idle:
            if block.nbytes > self.bytes_limit or self._pending + block.nbytes > PENDING_LIMIT:
                return
            self._pending += block.nbytes
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="ipyllama-writer", daemon=True)
                self._thread.start()
        self._queue.put(block)

    def note(self, name: str, content: dict[str, Any]) -> None:
        """Leave a note in the store, as `BlockStore.put_note`, when the next block is written."""
        self._notes[name] = content

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until everything is written; False if that took longer than `timeout` seconds."""
        with self._idle:
            return self._idle.wait_for(lambda: self._pending == 0, timeout)

    def resume(self) -> None:
        """Try again after a failure."""
        self.failed, self._wait = "", RETRY

    def rest(self) -> threading.Thread | None:
        """Let the thread end once what waits is written; the next block starts another. Returns it, if there is one."""
        with self._idle:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
        return thread

    def close(self) -> None:
        """Write what waits and stop."""
        thread = self.rest()
        if thread is not None:
            thread.join()

    def abandon(self) -> None:
        """After a fork, in the child: the thread is not there, and what waits is the parent's to write."""
        self._thread, self._pending, self._idle = None, 0, threading.Condition()
        self._queue = queue.SimpleQueue()

    def reduce(self, bytes_limit: int, items_limit: int | None, age_limit: float | None) -> int:
        """Delete the least valuable blocks until there are no more than that; returns how many went.

        Raises `StoreFull` where pins hold more bytes, after all others are gone.
        """
        limits = Limits(bytes_limit, math.inf if items_limit is None else items_limit, _oldest(age_limit))
        with self.store.locked():
            usage, deleted = self._evict(limits)
            self.store.set_usage(usage)
        if usage.nbytes > bytes_limit:
            raise too_many_pins(usage.nbytes, bytes_limit)
        return deleted

    def write(self, block: Block) -> bool:
        """Save a block now; False if the store has it. Raises `StoreError`."""
        if self._has(block):
            return False
        parts = encode(block)
        size = sum(part.nbytes for part in parts)
        with self.store.locked():
            usage = self.store.usage()
            if usage is None or abs(time.time() - usage.counted) > TENDED:
                usage, _ = self._evict(Limits(math.inf, oldest=_oldest(self.age_limit)))
            if usage.nbytes + size > self.bytes_limit:
                usage, _ = self._evict(Limits(self.bytes_limit * EVICT_TO - size))
                if usage.nbytes + size > self.bytes_limit:
                    self.store.set_usage(usage)
                    raise too_many_pins(usage.nbytes, self.bytes_limit)
            # Before: a process that dies has counted too much, not too little.
            self.store.set_usage(Usage(usage.nbytes + size, usage.counted))
            written = write_sharing(self.store, block, parts)
            if written < size:
                self.store.set_usage(Usage(usage.nbytes + written, usage.counted))
        self._costs[block.link.key] = block.seconds
        while self._notes:
            self.store.put_note(*self._notes.popitem())
        return True

    # -- within -------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (block := self._queue.get()) is not None:
            try:
                self._try(block)
            except Exception:  # noqa: BLE001 - the thread lives on; the next block may fare better
                _log.exception("a block was not saved")
            with self._idle:
                self._pending -= block.nbytes
                self._idle.notify_all()
            del block

    def _try(self, block: Block) -> None:
        if not self.ready or time.monotonic() < self._busy:
            return
        try:
            self.write(block)
        except StoreBusy:
            self._busy = time.monotonic() + BUSY
            _log.debug("a block was not saved: other processes keep the store busy")
        except (StoreError, OSError) as error:
            self._fail(str(error))
        else:
            self.resume()

    def _fail(self, problem: str) -> None:
        told = bool(self.failed)
        self._wait *= 2 if told else 1
        self.failed, self._retry = problem, time.monotonic() + self._wait
        if not told:
            self._warn(problem)  # last: where warnings are errors, it raises

    def _has(self, block: Block) -> bool:
        """True if the store has the very same: what another build or thread count made is replaced."""
        link = block.link
        if not self.store.has(link.parent, link.key):
            return False
        return self.store.origin(link.parent, link.key) == block.origin

    def _evict(self, limits: Limits) -> tuple[Usage, int]:
        """Look at every block and delete what is over the limits, what was damaged first; never what pins hold. Only
        inside `locked()`."""
        now = time.time()
        heads = self.store.heads.all()
        entries = self._with_beginnings(list(self.store.entries()), heads)
        damaged = sorted(self.store.quarantined(), key=lambda entry: entry.used)
        total, left = sum(entry.nbytes for entry in (*entries, *damaged)), len(entries)
        for entry in damaged:
            if total > limits.nbytes or abs(now - entry.used) > QUARANTINED:
                self.store.delete(entry)
                total -= entry.nbytes
        for entry in entries:
            if entry.used > now + TENDED:  # the clock went back: it would never grow old
                self.store.touch(entry.name)
        pinned = held(entries, self.store.pins(), heads)
        loose = [entry for entry in entries if entry.name not in pinned]
        there = {entry.short for entry in entries}
        if total > limits.nbytes or left > limits.items or any(entry.used < limits.oldest for entry in loose):
            needed: set[str] = set()
            for entry in eviction_order(loose, self._cost, heads):
                old = entry.used < limits.oldest and entry.short not in needed
                if old or total > limits.nbytes or left > limits.items:
                    self.store.delete(entry)
                    there.discard(entry.short)
                    total -= entry.nbytes
                    left -= 1
                else:
                    needed.update(stands_on(entry, heads))
        self.store.heads.sweep(there)
        return Usage(total, now), len(entries) - left

    def _with_beginnings(self, entries: Sequence[Entry], heads: dict[str, list[str]]) -> list[Entry]:
        """Without the blocks whose beginning was in one that is gone, which are deleted. `heads`, and the notes, are
        left as the blocks say."""
        there, lost = {entry.short for entry in entries}, set()
        for entry in entries:
            noted = heads.get(entry.short, [])
            if len(noted) < 2 and there.issuperset(noted):
                continue
            with contextlib.suppress(BadState, OSError):
                head = self.store.header(entry).head
                heads[entry.short] = [head.key.hex()[:16]] if head is not None else []
            if there.issuperset(heads[entry.short]):  # it was written anew since
                for old in set(noted).difference(heads[entry.short]):
                    self.store.heads.drop(entry.short, old)
            else:
                lost.add(entry.short)
                self.store.delete(entry)
        return [entry for entry in entries if entry.short not in lost]

    def _cost(self, entry: Entry) -> float:
        """Seconds that computing a block took; a damaged one is worth nothing."""
        if entry.key not in self._costs:
            self._costs[entry.key] = 0.0
            with contextlib.suppress(BadState, OSError):
                self._costs[entry.key] = self.store.header(entry).seconds
        return self._costs[entry.key]


def too_many_pins(nbytes: int, limit: float) -> StoreFull:
    """The error that pinned prefixes of `nbytes` leave no room within the limit."""
    return StoreFull(
        f"pinned prefixes take {nbytes / 1e6:,.1f} MB, and the limit is {limit / 1e6:,.1f} MB: raise it "
        "(%llama cache limit SIZE) or unpin some (%llama cache unpin NAME)"
    )


def _oldest(age_limit: float | None) -> float:
    return time.time() - age_limit if age_limit is not None else -math.inf


_alive: weakref.WeakSet[Writer] = weakref.WeakSet()


def close_all() -> None:
    """At exit: what was worth saving is saved."""
    for writer in list(_alive):
        writer.close()


def _abandon_all() -> None:
    for writer in list(_alive):
        writer.abandon()


atexit.register(close_all)

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)
