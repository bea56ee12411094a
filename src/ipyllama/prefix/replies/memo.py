"""Records of replies that were given before: in RAM, and in a folder that `joblib.Memory` keeps."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import math
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

from ipyllama.errors import StoreError
from ipyllama.reply import Timings

BYTES_LIMIT: Final = 64 << 20
"""Bytes of replies on disk, looked at whenever another eighth of it was written."""
RAM_LIMIT: Final = 16 << 20
"""Bytes of replies in RAM."""
ENDINGS: Final = ("stop", "length")
"""How a reply ends that the same request would get again."""
_log: Final = logging.getLogger("ipyllama.replies")


def replies_location(prefix: Path | None) -> Path | None:
    """Where the replies to prefixes kept in this folder lie: beside a folder called `prefix`, else inside."""
    if prefix is None:
        return None
    return prefix.with_name("replies") if prefix.name == "prefix" else prefix / "replies"


class Replies:
    """Records of replies by key: in RAM, and with a `location` on disk. Safe from any thread.

    `joblib.Memory` keeps them on disk, over `results.ResultStore`. What was damaged, evicted or deleted is a miss;
    where nothing can be written, `warn` is told once. With `enabled` False nothing is found and nothing kept.
    """

    _writer: ThreadPoolExecutor | None

    def __init__(self, location: Path | None, warn: Callable[[str], None], bytes_limit: int = BYTES_LIMIT) -> None:
        self.location, self.bytes_limit = location, bytes_limit
        self.enabled, self.problem = True, ""
        self._warn = warn
        self._recent: OrderedDict[str, bytes] = OrderedDict()
        self._nbytes = 0
        self._unchecked = bytes_limit  # bytes written since the disk's limit was looked at: not yet in this process
        self._memory: Any = None
        self._memoised: Any = None
        self._begin()
        _alive.add(self)

    def get(self, key: str) -> dict[str, Any] | None:
        """The record of this key."""
        if not self.enabled:
            return None
        with self._lock:
            if key in self._recent:
                self._recent.move_to_end(key)
                found: dict[str, Any] = json.loads(self._recent[key])
                return found
        record = self._read(key)
        if record is not None:
            self._remember(key, record)
        return record

    def put(self, key: str, record: dict[str, Any]) -> None:
        """Keep a record: in RAM now, on disk soon."""
        if not self.enabled:
            return
        self._remember(key, record)
        if self.location is not None:
            with contextlib.suppress(RuntimeError):  # the interpreter is about to end
                self._later(self._write, key, record)

    def prepare(self) -> None:
        """Open what is on disk, in the background: joblib takes its time to be imported."""
        if self._is_there():
            self._later(self._open)

    def flush(self) -> None:
        """Wait until everything is on disk."""
        if self._writer is not None:
            with contextlib.suppress(RuntimeError):  # the interpreter is about to end, and waits itself
                self._later(lambda: None).result()

    def rest(self) -> None:
        """Let the thread that writes end once everything is on disk; the next reply starts another."""
        with self._lock:
            writer = self._writer
            self._writer = None
        if writer is not None:
            writer.shutdown(wait=False)

    def clear(self) -> None:
        """Forget everything, in RAM and on disk."""
        self.flush()
        with self._lock:
            self._recent.clear()
            self._nbytes = 0
        if self._is_there() and self._open():
            self._memory.clear(warn=False)

    # -- RAM ------------------------------------------------------------------------------------------------

    def _remember(self, key: str, record: dict[str, Any]) -> None:
        content = json.dumps(record).encode()
        with self._lock:
            self._nbytes += len(content) - len(self._recent.pop(key, b""))
            self._recent[key] = content
            while self._nbytes > RAM_LIMIT:
                self._nbytes -= len(self._recent.popitem(last=False)[1])

    # -- disk -----------------------------------------------------------------------------------------------

    def _read(self, key: str) -> dict[str, Any] | None:
        if not self._is_there() or not self._open():
            return None
        try:
            entry = self._memoised(key, None)
        except (_Miss, StoreError):
            return None
        return entry["record"] if _sound(entry, key) else None

    def _write(self, key: str, record: dict[str, Any]) -> None:
        if not self._open():
            return
        self._memoised.call(key, {"key": key, "record": record})
        self._unchecked += len(record["text"]) + 8 * len(record["tokens"])
        if self._unchecked > self.bytes_limit // 8:
            self._memory.reduce_size(bytes_limit=self.bytes_limit)
            self._unchecked = 0

    def _open(self) -> bool:
        """False where the folder cannot be used. One that can no longer be written to can still be read."""
        with self._opening:
            if self._memoised is None and not self.problem:
                import joblib

                from ipyllama.prefix.replies import results

                options = {"warn": self._fail}
                try:
                    memory = joblib.Memory(self.location, results.NAME, verbose=0, backend_options=options)
                    memoised = memory.cache(recorded, ignore=["entry"])
                    # It warns of large arguments where noting them takes long. Ours are small: the disk is busy.
                    memoised._persist_input = partial(memoised._persist_input, this_duration_limit=math.inf)
                    # At its first question joblib compares the function with the one that filled the folder.
                    memoised.check_call_in_cache("", None)
                    self._memory, self._memoised = memory, memoised
                except StoreError as error:
                    self._fail(str(error))
            return self._memoised is not None

    def _is_there(self) -> bool:
        return self.location is not None and os.path.isdir(self.location)  # Path.is_dir may raise

    def _fail(self, problem: str) -> None:
        self.problem = problem
        self._warn(problem)

    # -- the thread that writes -----------------------------------------------------------------------------

    def _begin(self) -> None:
        """New locks and no thread; after a fork, too, in the child: what waits is the parent's to write."""
        self._lock, self._opening = threading.Lock(), threading.Lock()
        self._writer = None

    def _later(self, function: Callable[..., object], *arguments: Any) -> Future[None]:
        with self._lock:
            if self._writer is None:
                self._writer = ThreadPoolExecutor(1, "ipyllama-replies")
            return self._writer.submit(_run, function, *arguments)


class _Miss(Exception):
    pass


def recorded(key: str, entry: dict[str, Any] | None) -> dict[str, Any]:
    """What joblib memoises: the entry of a key. It computes nothing; a model has done that."""
    if entry is None:
        raise _Miss
    return entry


def _sound(entry: Any, key: str) -> bool:
    """True for what `put` wrote under this key; its hash in joblib's file name alone is not believed."""
    match entry:
        case {
            "key": str(whose),
            "record": {
                "text": str(text),
                "tokens": list(tokens),
                "finish_reason": str(reason),
                "timings": dict(timings),
            },
        }:
            known = {field.name for field in dataclasses.fields(Timings)}
            numbers = set(timings) <= known and all(isinstance(value, int | float) for value in timings.values())
            ids = bool(tokens) and all(type(token) is int and 0 <= token < 1 << 31 for token in tokens)
            return whose == key and reason in ENDINGS and numbers and ids and _is_text(text)
    return False


def _is_text(text: str) -> bool:
    """False for halves of characters, which JSON can hold and no front end can be sent."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _run(function: Callable[..., object], *arguments: Any) -> None:
    try:
        function(*arguments)
    except Exception:  # noqa: BLE001 - the thread lives on; the next one may fare better
        _log.exception("a reply was not kept")


_alive: weakref.WeakSet[Replies] = weakref.WeakSet()


def _begin_all() -> None:
    for replies in list(_alive):
        replies._begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_all)
