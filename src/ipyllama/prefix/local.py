"""The local store: a folder of immutable block files, no database.

    .gitignore            *
    blocks/PP/PARENT-KEY.kv     PARENT: 16 hex digits of the parent's key, PP: its first two; KEY: 64
    quarantine/           what was damaged
    lock, usage           for writers: readers need neither

A block is written under a temporary name in its folder, synced and renamed, so a reader sees all of it or nothing.
Any number of processes may read and write; only what changes the sum of sizes takes the lock.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Final

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from ipyllama.errors import BadState, StoreError
from ipyllama.prefix.block import Block, Header, read_block, read_header, write_block

LOCK_PATIENCE: Final = 10.0
"""Seconds that a writer waits for others."""
_NAME: Final = re.compile(r"([0-9a-f]{16})-([0-9a-f]{64})\.kv")
_TEMPORARY: Final = ".new-"
_ABANDONED: Final = 3600.0
"""Seconds after which a temporary file belongs to a process that died."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A block file as a folder listing shows it."""

    path: Path
    key: bytes
    parent: str
    """16 hex digits of the parent's key"""
    nbytes: int
    used: float
    """when it was last written or read, seconds since the epoch"""


class LocalStore:
    """Blocks in a folder. Making one touches nothing; the folder comes with the first block."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._blocks = folder / "blocks"
        self._lock = FileLock(folder / "lock", timeout=LOCK_PATIENCE, mode=0o600)
        self._usage = folder / "usage"
        self._counted = False

    # -- reading ------------------------------------------------------------------------------------------

    def has(self, parent: bytes, key: bytes) -> bool:
        """True if a file of that name is there."""
        return os.path.exists(self._path(parent, key))

    def read(self, parent: bytes, key: bytes, out: NDArray[np.uint8] | None = None) -> Block | None:
        """The checked block, None if there is none. Raises `BadState` for a damaged one. `out` as in `read_block`."""
        path = self._path(parent, key)
        try:
            block = _read(path, out)
        except FileNotFoundError:
            return None
        with contextlib.suppress(OSError):  # the clock of the eviction; a read-only folder has none
            os.utime(path)
        return block

    def verify(self) -> list[str]:
        """Read every block; damaged ones are quarantined, and named with what is wrong."""
        named = []
        for entry in list(self.entries()):
            try:
                _read(entry.path, None)
            except FileNotFoundError:
                continue  # evicted in the meantime
            except BadState as error:
                self._set_aside(entry.path)
                named.append(f"{entry.path.name}: {error}")
        return named

    def header(self, entry: Entry) -> Header:
        """What a block's file says about it. Raises `BadState`, `OSError` if it is gone."""
        with _open(entry.path) as file:
            return read_header(file, os.fstat(file.fileno()).st_size)

    def children(self, parent: bytes) -> Iterator[Entry]:
        """The blocks that follow the block `parent`."""
        start = parent.hex()[:16]
        for entry in self._listing(self._blocks / start[:2]):
            if entry.parent == start:
                yield entry

    def entries(self) -> Iterator[Entry]:
        """Every block, in no order."""
        for shard in _folders(self._blocks):
            yield from self._listing(shard)

    # -- writing ------------------------------------------------------------------------------------------

    def write(self, block: Block) -> int:
        """Save a block; returns the bytes written. Raises `StoreError` with what to do."""
        path = self._path(block.link.parent, block.link.key)
        temporary = path.with_name(f"{_TEMPORARY}{os.getpid()}-{secrets.token_hex(8)}")
        try:
            self._make(path.parent)
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW, 0o600)
            try:
                with open(descriptor, "wb", buffering=0) as raw:
                    n = write_block(raw, block)
                    os.fsync(raw.fileno())
                self._rename(temporary, path, n)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
        except OSError as error:
            raise StoreError(self._advice(error)) from error
        return n

    def remove(self, parent: bytes, key: bytes) -> None:
        """Forget a block by its name."""
        with contextlib.suppress(OSError):
            os.unlink(self._path(parent, key))

    def delete(self, entry: Entry) -> None:
        """Forget a block; one that is gone already is no error."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(entry.path)

    def quarantine(self, parent: bytes, key: bytes) -> None:
        """Take a damaged block out of the way, to be looked at."""
        self._set_aside(self._path(parent, key))

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Only one writer at a time inside. Raises `StoreError` if the others do not get done."""
        try:
            self._make(self._blocks)
            with self._lock:
                yield
        except Timeout:
            raise StoreError(f"another process holds {self.folder / 'lock'}") from None
        except OSError as error:
            raise StoreError(self._advice(error)) from error

    def usage(self) -> int:
        """Bytes of all blocks, from the first writer's count on kept in a file. Only inside `locked()`."""
        if self._counted:
            with contextlib.suppress(OSError, ValueError):
                return int(self._usage.read_text())
        total = sum(entry.nbytes for entry in self.entries())
        self._sweep()
        self._counted = True
        return total

    def set_usage(self, total: int) -> None:
        """Write the count down. Only inside `locked()`."""
        temporary = self._usage.with_name(f"{_TEMPORARY}{os.getpid()}-usage")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _NO_FOLLOW, 0o600)
        with open(descriptor, "w") as file:
            file.write(str(max(0, total)))
        os.replace(temporary, self._usage)

    # -- within -------------------------------------------------------------------------------------------

    def _set_aside(self, path: Path) -> None:
        place = self.folder / "quarantine"
        with contextlib.suppress(OSError, StoreError):
            _make_folder(place)
            os.replace(path, place / path.name)

    def _path(self, parent: bytes, key: bytes) -> Path:
        return self._blocks / parent.hex()[:2] / _name(parent, key)

    def _listing(self, shard: Path) -> Iterator[Entry]:
        try:
            with os.scandir(shard) as found:
                for item in found:
                    match = _NAME.fullmatch(item.name)
                    if match and item.is_file(follow_symlinks=False):
                        with contextlib.suppress(FileNotFoundError):  # deleted in the meantime
                            info = item.stat(follow_symlinks=False)
                            key = bytes.fromhex(match[2])
                            yield Entry(Path(item.path), key, match[1], info.st_size, info.st_mtime)
        except (FileNotFoundError, NotADirectoryError):
            return

    def _make(self, folder: Path) -> None:
        """The folder and all above it up to ours, each for the owner only."""
        if not self.folder.exists():
            self.folder.parent.mkdir(parents=True, exist_ok=True)
        for place in (self.folder, self._blocks, folder):
            _make_folder(place)
        ignore = self.folder / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n")

    def _rename(self, temporary: Path, path: Path, n: int) -> None:
        os.replace(temporary, path)
        if hasattr(os, "O_DIRECTORY"):
            descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _sweep(self) -> None:
        """Remove what killed writers left."""
        now = time.time()
        for shard in _folders(self._blocks):
            for left in shard.glob(f"{_TEMPORARY}*"):
                with contextlib.suppress(OSError):
                    if abs(now - left.lstat().st_mtime) > _ABANDONED:
                        left.unlink()

    def _advice(self, error: OSError) -> str:
        reason = {
            errno.ENOSPC: "the disk is full: free some space, or choose another place for the cache",
            errno.EDQUOT: "the disk quota is used up: free some space, or choose another place for the cache",
            errno.EROFS: "the disk is read-only: choose another place for the cache",
            errno.EACCES: "it may not be written to: choose another place for the cache",
            errno.EPERM: "it may not be written to: choose another place for the cache",
        }.get(error.errno or 0, error.strerror or str(error))
        return f"nothing is saved in {self.folder}: {reason}"


_NO_FOLLOW: Final = getattr(os, "O_NOFOLLOW", 0)


def _open(path: Path) -> FileIO:
    """Follows no link, waits for no pipe."""
    descriptor = os.open(path, os.O_RDONLY | _NO_FOLLOW | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise BadState("it is not a file")
    return FileIO(descriptor, "rb")


def _read(path: Path, out: NDArray[np.uint8] | None) -> Block:
    """The checked block in a file. Raises `BadState`; `FileNotFoundError` where there is none."""
    try:
        with _open(path) as file:
            block = read_block(file, os.fstat(file.fileno()).st_size, out)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise BadState(f"it cannot be read: {error.strerror}") from error
    if path.name != _name(block.link.parent, block.link.key):
        raise BadState("it lies under another block's name")
    return block


def _name(parent: bytes, key: bytes) -> str:
    return f"{parent.hex()[:16]}-{key.hex()}.kv"


def _folders(parent: Path) -> Iterator[Path]:
    try:
        with os.scandir(parent) as found:
            folders = [Path(item.path) for item in found if item.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return
    yield from folders


def _make_folder(place: Path) -> None:
    """Raises `StoreError` where something else stands there, or somebody else's folder."""
    with contextlib.suppress(FileExistsError):
        place.mkdir(mode=0o700)
    info = place.lstat()
    if not stat.S_ISDIR(info.st_mode):
        raise StoreError(f"{place} is not a folder: remove it, or choose another place for the cache")
    if hasattr(os, "getuid") and info.st_uid != os.getuid():
        raise StoreError(f"{place} belongs to another user: choose another place for the cache")
