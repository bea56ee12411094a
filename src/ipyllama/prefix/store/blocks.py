"""Blocks in a store, whatever its kind.

    blocks/PP/PARENT-KEY.kv     PARENT: 16 hex digits of the parent's key, PP: its first two; KEY: 64
    quarantine/PARENT-KEY.kv    what was damaged
    notes/NAME.json             what writers leave for others to read
    heads/KEY-HEAD              the block KEY begins as the block HEAD does, which holds that part: 16 hex digits each
    pins/KEY                    the block of this key, and what it stands on, is never evicted
    usage                       bytes of all blocks, and when they were last counted

Readers need no lock. Only what changes the sum of sizes takes it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from ipyllama.errors import BadOption, BadState, StoreError
from ipyllama.models import Progress
from ipyllama.prefix.keys import Link
from ipyllama.prefix.store.backend import StoreBackend
from ipyllama.prefix.store.block import (
    Block,
    Head,
    Header,
    Origin,
    Unchecked,
    encode,
    read_header,
    read_state,
    room_for,
)
from ipyllama.prefix.store.heads import Heads
from ipyllama.prefix.store.rows import joined

MAX_NOTE: Final = 64 << 10
"""Bytes of a note."""
_BLOCK: Final = re.compile(r"(?:\w+/)+([0-9a-f]{16})-([0-9a-f]{64})\.kv")
_PIN: Final = re.compile(r"pins/([0-9a-f]{64})")
_NOTE: Final = re.compile(r"notes/([\w-]{1,64})\.json", re.ASCII)


@dataclass(frozen=True, slots=True)
class Entry:
    """A block as a listing shows it."""

    name: str
    key: bytes
    parent: str
    """16 hex digits of the parent's key"""
    nbytes: int
    used: float
    """when it was last written or read, seconds since the epoch"""

    @property
    def short(self) -> str:
        """16 hex digits of its key."""
        return self.key.hex()[:16]


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes of all blocks, and when every one was last looked at."""

    nbytes: int
    counted: float


class BlockStore:
    """Blocks in a backend. Making one touches nothing."""

    def __init__(self, backend: StoreBackend) -> None:
        self.backend = backend
        self.heads = Heads(backend)
        self._refused: set[str] = set()  # damaged, and perhaps not to be moved

    # -- reading ------------------------------------------------------------------------------------------

    def has(self, parent: bytes, key: bytes) -> bool:
        """True if an item of that name is there."""
        name = block_name(parent, key)
        return name not in self._refused and self.backend.exists(name)

    def read(self, parent: bytes, key: bytes) -> Block | None:
        """The checked block, None if there is none. Raises `BadState` for a damaged one."""
        found = self.fetch(parent, key)
        return found.checked() if found is not None else None

    def fetch(self, parent: bytes, key: bytes, out: NDArray[np.uint8] | None = None) -> Unchecked | None:
        """A block whose state is still to be checked; None if there is none. `out` is memory to read the state into, if
        it is large enough. Raises `BadState`."""
        try:
            return self._fetch(block_name(parent, key), out)
        except FileNotFoundError:
            return None

    def origin(self, parent: bytes, key: bytes) -> Origin | None:
        """What made a block, None if there is none or it cannot be read."""
        try:
            return self._header(block_name(parent, key)).origin
        except (OSError, BadState):
            return None

    def header(self, entry: Entry) -> Header:
        """What a block says about itself. Raises `BadState`, `OSError` if it is gone."""
        return self._header(entry.name)

    def children(self, parent: bytes) -> Iterator[Entry]:
        """The blocks that follow the block `parent`."""
        start = parent.hex()[:16]
        return (entry for entry in self._entries(f"blocks/{start[:2]}") if entry.parent == start)

    def entries(self) -> Iterator[Entry]:
        """Every block, in no order."""
        return self._entries("blocks")

    def quarantined(self) -> Iterator[Entry]:
        """What was damaged, and is kept to be looked at until its room is needed."""
        return self._entries("quarantine")

    def verify(self, progress: Progress | None = None) -> list[str]:
        """Read every block; damaged ones are quarantined, and named with what is wrong."""
        named = []
        entries = list(self.entries())
        for done, entry in enumerate(entries):
            if progress:
                progress(done, len(entries), "blocks verified")
            try:
                self._fetch(entry.name).checked()
            except FileNotFoundError:
                continue  # evicted in the meantime
            except BadState as error:
                self._set_aside(entry.name)
                named.append(f"{entry.name}: {error}")
        if progress:
            progress(len(entries), len(entries), "blocks verified")
        return named

    # -- writing ------------------------------------------------------------------------------------------

    def write(self, block: Block, parts: Sequence[memoryview] | None = None) -> int:
        """Save a block; returns the bytes written. `parts`: what `encode(block)` gave, if it is known."""
        parts = parts or encode(block)
        name = block_name(block.link.parent, block.link.key)
        self.backend.write(name, parts)
        self._refused.discard(name)
        return sum(part.nbytes for part in parts)

    def delete(self, entry: Entry) -> None:
        """Forget a block; one that is gone already is no error."""
        self.backend.delete(entry.name)

    def quarantine(self, parent: bytes, key: bytes) -> None:
        """Take a damaged block out of the way, to be looked at."""
        self._set_aside(block_name(parent, key))

    def entry(self, link: Link, nbytes: int) -> Entry:
        """As a listing shows a block that was written just now."""
        return Entry(block_name(link.parent, link.key), link.key, link.parent.hex()[:16], nbytes, time.time())

    def touch(self, name: str) -> None:
        """The block was used now: the clock of the eviction. A read-only folder has none."""
        with contextlib.suppress(OSError, StoreError):
            self.backend.touch(name)

    def locked(self) -> AbstractContextManager[None]:
        """Only one writer at a time inside."""
        return self.backend.lock()

    def usage(self) -> Usage | None:
        """What the last writer wrote down, None if nobody did or it cannot be true. Only inside `locked()`."""
        found = self._json("usage")
        try:
            usage = Usage(int(found["nbytes"]), float(found["counted"])) if found else None
        except (KeyError, TypeError, ValueError, OverflowError):
            return None
        return usage if usage and usage.nbytes >= 0 else None

    def set_usage(self, usage: Usage) -> None:
        """Write the count down. Only inside `locked()`."""
        self._put_json("usage", {"nbytes": max(0, usage.nbytes), "counted": usage.counted}, durable=False)

    # -- pins ---------------------------------------------------------------------------------------------

    def pin(self, key: bytes) -> None:
        """Keep a block for good, with all that it stands on; whether it is there does not matter."""
        self.backend.write(f"pins/{key.hex()}", (memoryview(b"pinned\n"),))

    def unpin(self, key: bytes) -> None:
        """The reverse; one that is not pinned is no error."""
        self.backend.delete(f"pins/{key.hex()}")

    def pins(self) -> set[bytes]:
        """Keys of the blocks that were pinned."""
        return {bytes.fromhex(match[1]) for item in self.backend.items("pins") if (match := _PIN.fullmatch(item.name))}

    # -- notes --------------------------------------------------------------------------------------------

    def put_note(self, name: str, content: dict[str, Any]) -> None:
        """Leave a JSON object under a name of letters, digits, - and _, in place of the one that was there.

        Raises `BadOption` for what is too large or no JSON; `OSError` and `StoreError` where it cannot be written.
        """
        item = f"notes/{name}.json"
        if not _NOTE.fullmatch(item):
            raise BadOption(f"a note's name is up to 64 letters, digits, - and _: got {name!r}")
        self._put_json(item, content)

    def notes(self) -> dict[str, dict[str, Any]]:
        """All notes by name, whoever wrote them; what is no JSON object or too large is left out."""
        found = {}
        for item in self.backend.items("notes"):
            match = _NOTE.fullmatch(item.name)
            if match and (content := self._json(item.name)) is not None:
                found[match[1]] = content
        return found

    # -- within -------------------------------------------------------------------------------------------

    def _fetch(self, name: str, out: NDArray[np.uint8] | None = None) -> Unchecked:
        try:
            with self.backend.open(name) as file:
                header = read_header(file, _size(file))
                state = read_state(file, header, out if header.head is None else None)
            if header.head is not None:
                state = self._joined(name, header, header.head, state, out)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise BadState(f"it cannot be read: {error.strerror or error}") from error
        if not name.endswith(f"/{_file_name(header.link.parent, header.link.key)}"):
            raise BadState("it lies under another block's name")
        return header.block(state)

    def _joined(
        self, name: str, header: Header, head: Head, rest: NDArray[np.uint8], out: NDArray[np.uint8] | None
    ) -> NDArray[np.uint8]:
        """The whole state of a block that begins as another one does. Where that is gone the block is nothing any more:
        `FileNotFoundError`."""
        n, tokens = head.n_tokens, header.link.tokens
        other = block_name(header.link.parent, head.key)
        try:
            with self.backend.open(other) as file:
                found = read_header(file, _size(file))
                if found.head or found.origin != header.origin or found.link.tokens[:n] != tokens[:n]:
                    raise BadState("it is another one now")
                base = read_state(file, found)
        except (FileNotFoundError, BadState):
            self._refused.add(name)
            raise FileNotFoundError(errno.ENOENT, "what it begins with is gone", other) from None
        if header.nbytes > base.nbytes + rest.nbytes:  # before that much memory is taken
            raise BadState("its length is wrong")
        state = room_for(header.nbytes, out)
        joined(base, n, rest, len(tokens), state)
        return state

    def _header(self, name: str) -> Header:
        with self.backend.open(name) as file:
            return read_header(file, _size(file))

    def _entries(self, folder: str) -> Iterator[Entry]:
        for item in self.backend.items(folder):
            if match := _BLOCK.fullmatch(item.name):
                yield Entry(item.name, bytes.fromhex(match[2]), match[1], item.nbytes, item.used)

    def _set_aside(self, name: str) -> None:
        self._refused.add(name)
        with contextlib.suppress(OSError, StoreError):
            self.backend.move(name, f"quarantine/{name.rpartition('/')[2]}")

    def _json(self, name: str) -> dict[str, Any] | None:
        """A small JSON object, None where there is none."""
        try:
            with self.backend.open(name) as file:
                content = json.loads(file.read(MAX_NOTE))
        except (OSError, BadState, ValueError, RecursionError):
            return None
        return content if isinstance(content, dict) else None

    def _put_json(self, name: str, content: dict[str, Any], durable: bool = True) -> None:
        try:
            text = json.dumps(content, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise BadOption(f"a note is a JSON object: {error}") from error
        if len(text) > MAX_NOTE:
            raise BadOption(f"a note has {MAX_NOTE:,} bytes at most: got {len(text):,}")
        self.backend.write(name, (memoryview(text),), durable)


def block_name(parent: bytes, key: bytes) -> str:
    """What the item of a block is called."""
    return f"blocks/{parent.hex()[:2]}/{_file_name(parent, key)}"


def _file_name(parent: bytes, key: bytes) -> str:
    return f"{parent.hex()[:16]}-{key.hex()}.kv"


def _size(file: BinaryIO) -> int:
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    return size
