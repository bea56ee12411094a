"""The remote tier: another store behind the local one, that nobody ever waits for longer than computing would take.

Every call to it runs on a daemon thread. After a failure or a time-out it is left alone for a while, longer each time.
What comes from it passes the same checks as a file; what comes too late is kept for the next time.
"""

from __future__ import annotations

import atexit
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from itertools import dropwhile, islice, takewhile
from typing import Any, Final, TypeVar

from ipyllama.errors import BadOption, BadState
from ipyllama.prefix.keys import Link
from ipyllama.prefix.store.backend import StoreBackend
from ipyllama.prefix.store.block import Block
from ipyllama.prefix.store.blocks import BlockStore

TIMEOUT: Final = 5.0
"""Seconds that an answer is waited for at most, even where computing would take longer."""
N_READERS: Final = 8
"""Requests at a time, and blocks that are fetched ahead."""
PENDING_LIMIT: Final = 256 << 20
"""Bytes that may wait to be sent; what comes on top is not sent."""
ABSENT: Final = 60.0
"""Seconds for which a no is remembered: others may write meanwhile."""
FIRST_PAUSE: Final = 2.0
LAST_PAUSE: Final = 600.0
"""Seconds without the remote after one failure, and after many."""
_KNOWN_LIMIT: Final = 100_000
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """How the remote is used."""

    write_through: bool = False
    """what is saved here is sent there"""
    timeout: float = TIMEOUT

    def __post_init__(self) -> None:
        if not 0 < self.timeout < math.inf:
            raise BadOption(f"remote_timeout is a number of seconds above 0: got {self.timeout!r}")


class RemoteTier:
    """One remote store. `ask`, `has` and `load` are for the thread that generates; `warn` is told of the first
    failure."""

    def __init__(self, backend: StoreBackend, options: RemoteOptions, warn: Callable[[str], None]) -> None:
        self.name, self.options = str(backend), options
        self._store = BlockStore(backend)
        self._reading, self._writing = _Health(warn), _Health(warn)
        self._readers, self._sender = _Threads(N_READERS, "ipyllama-remote"), _Threads(1, "ipyllama-remote-send")
        self._there: set[bytes] = set()
        self._absent: dict[bytes, float] = {}
        self._found: dict[bytes, Link] = {}  # in order
        self._coming: dict[bytes, Future[Block | None]] = {}
        self._deadline = 0.0
        self._sending: dict[Future[None], int] = {}
        _alive.add(self)

    @property
    def problem(self) -> str:
        """Why it is not used at the moment; empty where all is well."""
        return self._reading.problem or self._writing.problem

    def ask(self, links: Sequence[Link], seconds: float) -> None:
        """Which of these consecutive blocks are there, as far as the remote tells in time: `has` knows then.

        `seconds` is what computing them would take: asking and loading together are given no more.
        """
        self._deadline, self._found, self._coming = time.monotonic() + min(seconds, self.options.timeout), {}, {}
        if not self._reading.well:
            return
        links = list(takewhile(lambda link: self._known(link) is not False, links))
        asked = {link.key: self._ask(link) for link in links if self._known(link) is None}
        for link in links:
            if link.key in asked and not (self._wait(asked[link.key]) and asked[link.key].result()):
                break
            self._found[link.key] = link
        for future in asked.values():
            future.cancel()

    def has(self, key: bytes) -> bool:
        """True if the last `ask` found the block, and the remote is in use."""
        return key in self._found and self._reading.well

    def load(self, link: Link, keep: Callable[[Block], None]) -> Block | None:
        """A block that `ask` found, None if it does not come in time. `keep` gets it in any case, on another thread."""
        if not self._reading.well:
            return None
        from_here = dropwhile(lambda found: found.key != link.key, self._found.values())
        for ahead in (link, *islice(from_here, 1, N_READERS)):
            if ahead.key not in self._coming:
                self._coming[ahead.key] = self._fetch(ahead, keep)
        future = self._coming.pop(link.key)
        if not self._wait(future):
            return None
        if (block := future.result()) is None:
            self._reading.fail(f"{self.name} has lost a block")
        else:
            self._reading.succeed()
        return block

    def refuse(self, key: bytes) -> None:
        """Never bring this block again: what it holds is wrong."""
        self._remember(key, False, for_ever=True)
        self._found.pop(key, None)
        self._coming.pop(key, None)

    def put(self, block: Block) -> None:
        """Send a block soon, if blocks are to be sent. Returns at once."""
        if not self.options.write_through or not self._writing.well:
            return
        self._sending = {future: n for future, n in self._sending.items() if not future.done()}
        if sum(self._sending.values()) + block.nbytes <= PENDING_LIMIT:
            self._sending[self._sender.submit(lambda: self._send(block))] = block.nbytes

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until everything is sent, `options.timeout` seconds at most; False if that is not enough."""
        limit = self.options.timeout if timeout is None else min(timeout, self.options.timeout)
        return not wait(list(self._sending), limit).not_done

    # -- within -------------------------------------------------------------------------------------------

    def _known(self, link: Link) -> bool | None:
        """What is remembered: None is nothing."""
        if link.key in self._there:
            return True
        return False if time.monotonic() < self._absent.get(link.key, 0.0) else None

    def _ask(self, link: Link) -> Future[bool]:
        def ask() -> bool:
            there = self._store.has(link.parent, link.key)
            self._remember(link.key, there)
            return there

        return self._readers.submit(ask)

    def _fetch(self, link: Link, keep: Callable[[Block], None]) -> Future[Block | None]:
        def fetch() -> Block | None:
            try:
                block = self._store.read(link.parent, link.key)
            except BadState:
                self._remember(link.key, False, for_ever=True)
                raise
            self._remember(link.key, block is not None)
            if block is not None:
                keep(block)
            return block

        return self._readers.submit(fetch)

    def _send(self, block: Block) -> None:
        link = block.link
        try:
            if not self._store.has(link.parent, link.key):
                self._store.write(block)
        except Exception as error:  # noqa: BLE001 - see `_wait`
            self._writing.fail(f"nothing is sent to {self.name}: {error}")
        else:
            self._remember(link.key, True)
            self._writing.succeed()

    def _wait(self, future: Future[Any]) -> bool:
        """True if the call went well, and before the deadline."""
        try:
            future.result(max(0.0, self._deadline - time.monotonic()))
        except TimeoutError:
            self._reading.fail(f"{self.name} did not answer in time")
        except BadState as error:
            self._reading.fail(f"a block from {self.name} is of no use: {error}")
        except Exception as error:  # noqa: BLE001 - anybody may have written what is asked there
            self._reading.fail(f"{self.name} cannot be read: {error}")
        else:
            self._reading.answered()
            return True
        return False

    def _remember(self, key: bytes, there: bool, for_ever: bool = False) -> None:
        if len(self._there) + len(self._absent) > _KNOWN_LIMIT:
            self._there, self._absent = set(), {}
        if there:
            self._there.add(key)
        else:
            self._there.discard(key)
            self._absent[key] = float("inf") if for_ever else time.monotonic() + ABSENT


@dataclass(slots=True)
class _Health:
    """Whether something works, and when to try again."""

    warn: Callable[[str], None]
    problem: str = ""
    _told: bool = False
    _pause: float = FIRST_PAUSE
    _until: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def well(self) -> bool:
        return not self.problem or time.monotonic() >= self._until

    def fail(self, problem: str) -> None:
        with self._lock:
            self.problem, self._until = problem, time.monotonic() + self._pause
            self._pause = min(2 * self._pause, LAST_PAUSE)
            told, self._told = self._told, True
        if not told:
            self.warn(f"{problem}: work goes on without it, and it is tried again later")

    def answered(self) -> None:
        """It works, but it may be too slow to be of use."""
        with self._lock:
            self.problem = ""

    def succeed(self) -> None:
        with self._lock:
            self.problem, self._pause = "", FIRST_PAUSE


class _Threads:
    """Calls on up to n daemon threads: nothing waits for them at exit, as it does for those of concurrent.futures."""

    def __init__(self, n: int, name: str) -> None:
        self._n, self._name = n, name
        self._begin()

    def _begin(self) -> None:
        self._pid, self._lock = os.getpid(), threading.Lock()
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._running = 0

    def submit(self, call: Callable[[], _T]) -> Future[_T]:
        if self._pid != os.getpid():  # after a fork there are no threads
            self._begin()
        future: Future[_T] = Future()
        with self._lock:
            self._waiting.append((future, call))
            if self._running < self._n:
                self._running += 1
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
        return future

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._running -= 1
                    return
                future, call = self._waiting.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001 - who waits for the result gets it
                future.set_exception(error)


_alive: weakref.WeakSet[RemoteTier] = weakref.WeakSet()


def flush_all() -> None:
    """At exit: a last chance for what is being sent."""
    for tier in list(_alive):
        tier.flush()


atexit.register(flush_all)
