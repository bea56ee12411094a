"""Files of a store: no link leads out of it, nobody else reads it, nothing is there in half."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from io import BufferedWriter, FileIO
from pathlib import Path
from typing import Final

from ipyllama.errors import BadState, StoreError

_NO_FOLLOW: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_REASONS: Final = {
    errno.ENOSPC: "the disk is full: free some space, or choose another place for the cache",
    errno.EDQUOT: "the disk quota is used up: free some space, or choose another place for the cache",
    errno.EROFS: "the disk is read-only: choose another place for the cache",
    errno.EACCES: "it may not be written to: choose another place for the cache",
    errno.EPERM: "it may not be written to: choose another place for the cache",
}


def open_file(path: str | os.PathLike[str]) -> FileIO:
    """Open for reading. Follows no link, waits for no pipe. Raises `BadState` for what is no file, and `OSError`."""
    descriptor = os.open(path, os.O_RDONLY | _NO_FOLLOW | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise BadState("it is not a file")
    return FileIO(descriptor, "rb")


def create_file(path: str | os.PathLike[str]) -> BufferedWriter:
    """Open a new file for writing, for the owner only. Raises `OSError`."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW, 0o600), "wb")


def move_file(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Give a written file its name, so that it is all there after a crash, or not at all. Raises `OSError`."""
    with open(source, "rb+") as file:
        os.fsync(file.fileno())
    os.replace(source, target)
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(os.path.dirname(target), os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def make_folder(place: Path) -> None:
    """A folder for the owner only, if it is not there. Raises `StoreError` where something else stands there, or
    somebody else's folder, and `OSError`."""
    with contextlib.suppress(FileExistsError):
        place.mkdir(mode=0o700)
    info = place.lstat()
    if not stat.S_ISDIR(info.st_mode):
        raise StoreError(f"{place} is not a folder: remove it, or choose another place for the cache")
    if hasattr(os, "getuid") and info.st_uid != os.getuid():
        raise StoreError(f"{place} belongs to another user: choose another place for the cache")


def advice(error: OSError) -> str:
    """What a person can do about a write that failed."""
    return _REASONS.get(error.errno or 0, error.strerror or str(error))
