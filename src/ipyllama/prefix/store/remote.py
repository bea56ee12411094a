"""A store elsewhere, through fsspec: S3, a file server, and whatever else it speaks."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from io import BytesIO
from typing import Any, BinaryIO, Final

from ipyllama.errors import BadOption
from ipyllama.prefix.store.backend import Item, register_store_backend
from ipyllama.prefix.store.block import MAX_HEADER, MAX_STATE

MAX_ITEM: Final = MAX_HEADER + MAX_STATE
"""Bytes that are fetched of an item, whatever its size."""
_AT_ONCE: Final = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "oci", "oss", "memory"})
"""Protocols that show an item when all of it is there. Elsewhere it is written beside and renamed."""
_TEMPORARY: Final = "tmp"


class FsspecBackend:
    """Items below a URL such as "s3://bucket/folder"; `options` go to fsspec's file system. Nobody is locked out:
    who shares it trusts who else may write there, and no item ever changes."""

    def __init__(self, location: str | os.PathLike[str], **options: Any) -> None:
        self.location, self._options = os.fspath(location).rstrip("/"), options
        self._opened: _Opened | None = None

    def open(self, name: str) -> BinaryIO:
        """As `StoreBackend.open`: fetches all of it in one request."""
        with _system_errors():
            files = self._files()
            return BytesIO(files.fs.cat_file(files.path(name), end=MAX_ITEM))

    def write(self, name: str, parts: Sequence[memoryview], durable: bool = True) -> None:
        """As `StoreBackend.write`; how durable it is, is the other side's matter."""
        with _system_errors():
            files, content = self._files(), b"".join(parts)
            if files.at_once:
                files.fs.pipe_file(files.path(name), content)
            else:
                temporary = f"{_TEMPORARY}/{os.getpid()}-{secrets.token_hex(8)}"
                files.make_folder(temporary)
                files.fs.pipe_file(files.path(temporary), content)
                files.make_folder(name)
                files.fs.mv(files.path(temporary), files.path(name))

    def exists(self, name: str) -> bool:
        """As `StoreBackend.exists`."""
        try:
            with _system_errors():
                files = self._files()
                files.fs.info(files.path(name))  # fsspec's exists() takes any failure for a no
        except FileNotFoundError:
            return False
        return True

    def delete(self, name: str) -> None:
        """As `StoreBackend.delete`."""
        with contextlib.suppress(FileNotFoundError), _system_errors():
            files = self._files()
            files.fs.rm_file(files.path(name))

    def move(self, name: str, to: str) -> None:
        """As `StoreBackend.move`."""
        with _system_errors():
            files = self._files()
            if not files.at_once:
                files.make_folder(to)
            files.fs.mv(files.path(name), files.path(to))

    def touch(self, name: str) -> None:
        """As `StoreBackend.touch`: nothing. When an item was written is all that is known elsewhere."""

    def items(self, folder: str) -> Iterator[Item]:
        """As `StoreBackend.items`."""
        with _system_errors():
            files = self._files()
            found = files.fs.find(files.path(folder), detail=True)
        for path, info in found.items():
            yield Item(path.removeprefix(files.root).lstrip("/"), int(info["size"] or 0), _written(info))

    def lock(self) -> AbstractContextManager[None]:
        """As `StoreBackend.lock`: there is none."""
        return nullcontext()

    def __str__(self) -> str:
        return re.sub(r"//[^/@]*@", "//", self.location)  # shown in notebooks: no user name, no password

    def _files(self) -> _Opened:
        """Made at the first use, and anew after a fork: connections are not for two processes."""
        if self._opened is None or self._opened.pid != os.getpid():
            try:
                from fsspec.core import url_to_fs

                fs, root = url_to_fs(self.location, use_listings_cache=False, **self._options)
            except (ImportError, ValueError) as error:
                raise BadOption(f"{self.location} cannot be opened: {error}") from error
            self._opened = _Opened(os.getpid(), fs, root.rstrip("/"))
        return self._opened


@dataclass(frozen=True, slots=True)
class _Opened:
    """A file system of fsspec, and the folder in it."""

    pid: int
    fs: Any
    root: str

    @property
    def at_once(self) -> bool:
        """True if others see an item only when all of it is there."""
        protocol = self.fs.protocol
        return not _AT_ONCE.isdisjoint((protocol,) if isinstance(protocol, str) else protocol)

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def make_folder(self, name: str) -> None:
        """The folder that an item is in."""
        self.fs.makedirs(self.path(name).rpartition("/")[0], exist_ok=True)


@contextlib.contextmanager
def _system_errors() -> Iterator[None]:
    """Every library behind fsspec has errors of its own."""
    try:
        yield
    except (OSError, BadOption):
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


def _written(info: dict[str, Any]) -> float:
    """Seconds since the epoch, from what file systems call it; 0 if none says."""
    for name in ("mtime", "LastModified", "created"):
        value = info.get(name)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, int | float):
            return float(value)
    return 0.0


register_store_backend("fsspec", FsspecBackend)
