"""Saving off the hot path: a thread of its own writes blocks to the store, within its limit."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import Final

from ipyllama.errors import BadState, StoreError
from ipyllama.prefix.block import Block
from ipyllama.prefix.evict import eviction_order
from ipyllama.prefix.local import Entry, LocalStore

PENDING_LIMIT: Final = 512 << 20
"""Bytes that may wait to be written; what comes on top is not saved."""
EVICT_TO: Final = 0.95
"""Share of the limit that is left after an eviction, so that not every block needs one."""
_log: Final = logging.getLogger("ipyllama.prefix")


class Writer:
    """Writes in the order of arrival. What goes wrong is told once, then nothing is saved until `resume()`."""

    def __init__(self, store: LocalStore, bytes_limit: int, warn: Callable[[str], None]) -> None:
        self.store, self.bytes_limit = store, bytes_limit
        self.failed = ""
        self._warn = warn
        self._queue: queue.SimpleQueue[Block | None] = queue.SimpleQueue()
        self._pending = 0
        self._idle = threading.Condition()
        self._costs: dict[bytes, float] = {}
        self._thread: threading.Thread | None = None
        _alive.add(self)

    def put(self, block: Block) -> None:
        """Save a block soon. Returns at once."""
        with self._idle:
            if self.failed or block.nbytes > self.bytes_limit or self._pending + block.nbytes > PENDING_LIMIT:
                return
            self._pending += block.nbytes
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="ipyllama-writer", daemon=True)
                self._thread.start()
        self._queue.put(block)

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until everything is written; False if that took longer than `timeout` seconds."""
        with self._idle:
            return self._idle.wait_for(lambda: self._pending == 0, timeout)

    def resume(self) -> None:
        """Try again after a failure."""
        self.failed = ""

    def close(self) -> None:
        """Write what waits and stop."""
        thread, self._thread = self._thread, None
        if thread is not None and thread.is_alive():
            self._queue.put(None)
            thread.join()

    def abandon(self) -> None:
        """After a fork, in the child: the thread is not there, and what waits is the parent's to write."""
        self._thread, self._pending, self._idle = None, 0, threading.Condition()
        self._queue = queue.SimpleQueue()

    def reduce(self, bytes_limit: int, items_limit: int | None, age_limit: float | None) -> int:
        """Delete the least valuable blocks until there are no more than that; returns how many went."""
        oldest = time.time() - age_limit if age_limit is not None else 0.0
        deleted = 0
        with self.store.locked():
            entries = list(self.store.entries())
            total, left = sum(entry.nbytes for entry in entries), len(entries)
            for entry in eviction_order(entries, self._cost):
                over = total > bytes_limit or (items_limit is not None and left - deleted > items_limit)
                if over or entry.used < oldest:
                    self.store.delete(entry)
                    total -= entry.nbytes
                    deleted += 1
            self.store.set_usage(total)
        return deleted

    def _work(self) -> None:
        while (block := self._queue.get()) is not None:
            try:
                if not self.failed:
                    self._write(block)
            except StoreError as error:
                self.failed = str(error)
                self._warn(str(error))
            except Exception:  # noqa: BLE001 - the thread lives on; the next block may fare better
                _log.exception("a block was not saved")
            with self._idle:
                self._pending -= block.nbytes
                self._idle.notify_all()
            del block

    def _write(self, block: Block) -> None:
        link = block.link
        if self.store.has(link.parent, link.key):
            return
        with self.store.locked():
            total = self.store.usage()
            if total + block.nbytes > self.bytes_limit:
                total = self._make_room(block)
            self.store.set_usage(
                total + block.nbytes
            )  # before: a process that dies has counted too much, not too little
            self.store.write(block)
        self._costs[link.key] = block.seconds

    def _make_room(self, block: Block) -> int:
        entries = list(self.store.entries())
        total = sum(entry.nbytes for entry in entries)
        target = self.bytes_limit * EVICT_TO - block.nbytes
        for entry in eviction_order(entries, self._cost):
            if total <= target:
                break
            self.store.delete(entry)
            total -= entry.nbytes
        return total

    def _cost(self, entry: Entry) -> float:
        """Seconds that computing a block took; a damaged one is worth nothing."""
        if entry.key not in self._costs:
            self._costs[entry.key] = 0.0
            with contextlib.suppress(BadState, OSError):
                self._costs[entry.key] = self.store.header(entry).seconds
        return self._costs[entry.key]


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
