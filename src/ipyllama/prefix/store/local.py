"""The local store: a folder of immutable files, no database.

    .gitignore    *
    tmp/          what is being written
    lock          for writers: readers need none

An item is written in `tmp/`, synced and renamed, so a reader sees all of it or nothing. The folder belongs to one user:
what another one put there is not read, and where the folder is another one's nothing is read or written.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from io import FileIO
from pathlib import Path
from typing import BinaryIO, Final

from filelock import FileLock, Timeout

from ipyllama.errors import BadState, StoreBusy, StoreError
from ipyllama.prefix.store.backend import Item, register_store_backend

try:
    import fcntl
except ImportError:  # Windows, where nobody can remove a file that another has open
    fcntl = None  # type: ignore[assignment]

LOCK_PATIENCE: Final = 10.0
"""Seconds that a writer waits for others."""
_TRIES: Final = 3
"""Of a write whose folder is deleted under it."""
_TEMPORARY: Final = "tmp"
_ELSEWHERE: Final = "choose another place: load(..., cache=FOLDER), or IPYLLAMA_PREFIX_DIR in the environment"
_NO_FOLLOW: Final = getattr(os, "O_NOFOLLOW", 0)


class LocalBackend:
    """Items in a folder. Making one touches nothing; the folder comes with the first item."""

    def __init__(self, location: str | os.PathLike[str]) -> None:
        self.folder = Path(location)
        self._lock = FileLock(self.folder / "lock", timeout=LOCK_PATIENCE, mode=0o600)
        self._swept = False

    def open(self, name: str) -> BinaryIO:
        """As `StoreBackend.open`: follows no link and waits for no pipe. `BadState` where it is no file of ours."""
        flags = os.O_RDONLY | _NO_FOLLOW | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        descriptor = os.open(self._place(name), flags)
        info = os.fstat(descriptor)
        problem = "" if stat.S_ISREG(info.st_mode) else "it is not a file"
        problem = problem or ("" if _is_ours(info) else "it belongs to another user")
        if problem:
            os.close(descriptor)
            raise BadState(problem)
        return FileIO(descriptor, "rb")

    def write(self, name: str, parts: Sequence[memoryview], durable: bool = True) -> None:
        """As `StoreBackend.write`."""
        with self._advised():
            for left in reversed(range(_TRIES)):
                try:
                    self._write(self.folder / name, parts, durable)
                except FileNotFoundError:  # somebody deletes the folder, or sweeps it
                    if not left:
                        raise
                else:
                    return

    def exists(self, name: str) -> bool:
        """As `StoreBackend.exists`."""
        try:
            return os.path.lexists(self._place(name))
        except OSError:
            return False

    def delete(self, name: str) -> None:
        """As `StoreBackend.delete`."""
        with self._advised(), contextlib.suppress(FileNotFoundError):
            os.unlink(self._place(name))

    def move(self, name: str, to: str) -> None:
        """As `StoreBackend.move`."""
        with self._advised():
            place = self._place(name)
            self._make_folders((self.folder / to).parent)
            os.replace(place, self.folder / to)

    def touch(self, name: str) -> None:
        """As `StoreBackend.touch`."""
        os.utime(self._place(name))

    def items(self, folder: str) -> Iterator[Item]:
        """As `StoreBackend.items`: follows no link."""
        with contextlib.suppress(OSError):
            self._check_folders(Path(folder))
            yield from _items(self.folder / folder, folder)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """As `StoreBackend.lock`."""
        with self._advised():
            self._make_folders(self.folder)
            try:
                self._lock.acquire()
            except Timeout:
                raise StoreBusy(f"another process holds {self.folder / 'lock'}: try again") from None
            except NotImplementedError:
                raise StoreError(
                    f"nothing is saved in {self.folder}: files cannot be locked there, {_ELSEWHERE}"
                ) from None
        try:
            self._sweep()
            yield
        finally:
            self._lock.release()

    # -- within -------------------------------------------------------------------------------------------

    def _write(self, path: Path, parts: Sequence[memoryview], durable: bool) -> None:
        self._make_folders(path.parent)
        temporary = self.folder / _TEMPORARY / f"{os.getpid()}-{secrets.token_hex(8)}"
        self._make_folders(temporary.parent)
        if not self._swept:
            self._sweep()
        try:
            with _create(temporary) as file:
                for part in parts:
                    while part:  # a raw write may take less than it is given
                        part = part[file.write(part) :]  # noqa: PLW2901 - what is left of it
                if durable:
                    os.fsync(file.fileno())
                if fcntl is not None:
                    os.replace(temporary, path)  # while it is held: nobody takes it for left over
            if fcntl is None:
                os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        if durable:
            _sync_folder(path.parent)

    def _make_folders(self, folder: Path) -> None:
        """The folder and all above it that are missing, each for the owner only."""
        for missing in reversed([place for place in self.folder.parents if not place.exists()]):
            _make_folder(missing)
        if _make_folder(self.folder) or set(os.listdir(self.folder)) <= {"replies"}:  # ours, and may come first
            with contextlib.suppress(FileExistsError), _create(self.folder / ".gitignore") as file:
                file.write(b"*\n")
        inner = folder.relative_to(self.folder)
        for place in reversed([inner, *inner.parents][:-1]):
            _make_folder(self.folder / place)

    def _place(self, name: str) -> Path:
        """Where an item lies. `FileNotFoundError` where the way to it is not ours."""
        self._check_folders(Path(name).parent)
        return self.folder / name

    def _check_folders(self, inner: Path) -> None:
        """Down from the store's folder nothing is a link, which would lead out of it, or somebody else's."""
        for place in reversed((inner, *inner.parents)):
            info = os.lstat(self.folder / place)
            if not stat.S_ISDIR(info.st_mode) or not _is_ours(info):
                raise FileNotFoundError(errno.ENOENT, "not a folder of this user", str(self.folder / place))

    def _sweep(self) -> None:
        """Remove what killed writers left."""
        self._swept = True
        for item in list(self.items(_TEMPORARY)):
            with contextlib.suppress(OSError):  # it is held, or gone
                _remove_unless_held(self.folder / item.name)

    @contextlib.contextmanager
    def _advised(self) -> Iterator[None]:
        """What the system refuses, in words."""
        try:
            yield
        except OSError as error:
            reason = {
                errno.ENOSPC: f"the disk is full: free some space, or {_ELSEWHERE}",
                errno.EDQUOT: f"the disk quota is used up: free some space, or {_ELSEWHERE}",
                errno.EROFS: f"the disk is read-only: {_ELSEWHERE}",
                errno.EACCES: f"it may not be written to: {_ELSEWHERE}",
                errno.EPERM: f"it may not be written to: {_ELSEWHERE}",
            }.get(error.errno or 0, f"{error.strerror or error}: {_ELSEWHERE}")
            raise StoreError(f"nothing is saved in {self.folder}: {reason}") from error


def _items(path: Path, name: str) -> Iterator[Item]:
    try:
        with os.scandir(path) as found:
            for entry in found:
                inner = f"{name}/{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    yield from _items(path / entry.name, inner)
                elif entry.is_file(follow_symlinks=False):
                    with contextlib.suppress(FileNotFoundError):  # deleted in the meantime
                        info = entry.stat(follow_symlinks=False)
                        yield Item(inner, info.st_size, info.st_mtime)
    except (FileNotFoundError, NotADirectoryError):
        return


def _create(path: Path) -> FileIO:
    """A new file for its owner only, whatever the umask, held until it is closed or its process dies."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW | getattr(os, "O_BINARY", 0), 0o600)
    if hasattr(os, "fchmod"):
        os.fchmod(descriptor, 0o600)
    if fcntl is not None:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return FileIO(descriptor, "wb")


def _remove_unless_held(path: Path) -> None:
    if fcntl is None:
        path.unlink()
        return
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()


def _make_folder(place: Path) -> bool:
    """For its owner only; False if it was there. Raises `StoreError` where something else stands there, or somebody
    else's folder."""
    made = True
    try:
        place.mkdir(mode=0o700)
    except FileExistsError:
        made = False
    info = place.lstat()
    if not stat.S_ISDIR(info.st_mode):
        raise StoreError(f"{place} is a link or no folder: remove it, or {_ELSEWHERE}")
    if not _is_ours(info):
        raise StoreError(f"{place} belongs to another user: {_ELSEWHERE}")
    if made:
        place.chmod(0o700)  # whatever the umask
    return made


def _sync_folder(folder: Path) -> None:
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _is_ours(info: os.stat_result) -> bool:
    return not hasattr(os, "geteuid") or info.st_uid == os.geteuid()


register_store_backend("local", LocalBackend)
