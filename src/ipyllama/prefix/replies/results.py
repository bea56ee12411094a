"""A store backend for `joblib.Memory` that holds JSON and `.npy`, so that a folder from elsewhere cannot run code.

    memory = joblib.Memory(Path(folder), backend="ipyllama", verbose=0)  # once this module is imported

    results/FUNCTION/func_code.py        what joblib compares, and clears where it differs; it is read as text
    results/FUNCTION/CALL/output.json    the value, with a checksum
    results/FUNCTION/CALL/SHA256.npy     its arrays
    results/FUNCTION/CALL/metadata.json  what joblib notes about the call

joblib's policy sits on the primitives of this class, and these on the local store's: whole files, no links, one owner.
What a folder holds besides is neither read nor deleted.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Final

import joblib
from joblib._store_backends import CacheItemInfo, StoreBackendBase, StoreBackendMixin

from ipyllama.errors import BadState, StoreError
from ipyllama.prefix.replies.values import decode, encode
from ipyllama.prefix.store.backend import Item
from ipyllama.prefix.store.local import LocalBackend

NAME: Final = "ipyllama"
MAX_BYTES: Final = 1 << 30
"""A larger file is nothing that was written here."""
_ROOT: Final = "results"
_OUTPUT: Final = "output.json"
_CALL: Final = re.compile(r"[0-9a-f]{32}")
_OURS: Final = re.compile(r"output\.json|metadata\.json|[0-9a-f]{64}\.npy")
_FIRST_LINE: Final = re.compile(r"# first line: -?[0-9]{1,9}\n")


class ResultStore(StoreBackendBase, StoreBackendMixin):  # type: ignore[misc]  # joblib has no types
    """Results in a folder; making one touches nothing.

    A damaged entry is a miss, and deleted. Where nothing can be written, `problem` says why, a warning is given once,
    and results are no longer kept.
    """

    def configure(self, location: str, verbose: int = 0, backend_options: Mapping[str, Any] | None = None) -> None:
        """Of `backend_options` only "warn" is known: what is called with the text of a warning."""
        self.location, self.verbose = location, verbose
        self.problem = ""
        self._warn: Callable[[str], None] = (backend_options or {}).get("warn", warnings.warn)
        self._files = LocalBackend(location)

    # -- entries ------------------------------------------------------------------------------------------

    def contains_item(self, call_id: Sequence[str]) -> bool:
        """True if there is an entry that can be read: joblib would tell about one that cannot in a traceback."""
        try:
            self.load_item(call_id)
        except KeyError:
            return False
        return True

    def load_item(
        self, call_id: Sequence[str], verbose: int = 0, timestamp: float | None = None, metadata: Any = None
    ) -> Any:
        """The checked value. Raises `KeyError` where there is none that can be used."""
        output = _name(*call_id, _OUTPUT)
        try:
            value = decode(call_id, self._read(output), lambda name: self._read(_name(*call_id, name)))
        except BadState as error:
            self.clear_item(call_id)
            raise KeyError(f"{output}: {error}") from error
        except OSError as error:
            raise KeyError(f"{output}: {error.strerror}") from error
        with contextlib.suppress(OSError):  # the clock of the eviction; a read-only folder has none
            self._files.touch(output)
        return value

    def dump_item(self, call_id: Sequence[str], item: Any, verbose: int = 0) -> None:
        """Keep a value, if that can be done. Raises `TypeError` for one that is neither JSON nor array."""
        document, arrays = encode(call_id, item)
        if self.problem:
            return
        try:
            for name, content in {**arrays, _OUTPUT: document}.items():
                self._write(_name(*call_id, name), content)
        except StoreError as error:
            self.problem = str(error)
            self._warn(self.problem)

    def store_metadata(self, call_id: Sequence[str], metadata: Mapping[str, Any]) -> None:
        """What joblib notes about a call, if it can be kept."""
        if not self.problem:
            with contextlib.suppress(StoreError):
                self._write(_name(*call_id, "metadata.json"), json.dumps(metadata).encode())

    def store_cached_func_code(self, call_id: Sequence[str], func_code: str | None = None) -> None:
        """The code of the function whose results these are. Raises `StoreError`."""
        if func_code is not None:
            self._write(_name(*call_id, "func_code.py"), func_code.encode())

    def get_cached_func_code(self, call_id: Sequence[str]) -> str:
        """The code that filled the folder. Raises `OSError` where that is not known."""
        try:
            code = self._read(_name(*call_id, "func_code.py")).decode()
        except (BadState, UnicodeDecodeError) as error:
            raise OSError(str(error)) from error
        if not _FIRST_LINE.match(code):
            raise OSError(f"{call_id[0]}: no code")
        return code

    # -- what joblib's policy is made of --------------------------------------------------------------------

    def clear_location(self, location: str) -> None:
        """Delete the entries at or below a folder."""
        for folder, files in self._calls(location).items():
            with contextlib.suppress(StoreError):
                for file in files:
                    if _OURS.fullmatch(PurePosixPath(file.name).name):
                        self._files.delete(file.name)
            with contextlib.suppress(OSError):  # a stranger's file is in there
                os.rmdir(self._files.folder / folder)

    def get_items(self) -> list[CacheItemInfo]:
        """Path, bytes and time of last use of every entry."""
        return [
            CacheItemInfo(
                os.path.join(self.location, PurePosixPath(folder).relative_to(_ROOT)),
                sum(file.nbytes for file in files),
                datetime.fromtimestamp(max(file.used for file in files)),
            )
            for folder, files in self._calls(self.location).items()
        ]

    def create_location(self, location: str) -> None:
        """Folders come with the first file in them."""

    def _item_exists(self, location: str) -> bool:
        return self._files.exists(self._inner(location))

    def _open_item(self, path: str, mode: str) -> BinaryIO:
        return self._files.open(self._inner(path))  # joblib's part of this class writes nothing

    def _move_item(self, source: str, target: str) -> None:
        self._files.move(self._inner(source), self._inner(target))

    # -- within -------------------------------------------------------------------------------------------

    def _inner(self, path: str) -> str:
        """The local store's name of what joblib calls a path in `location`."""
        return _name(*Path(path).relative_to(self.location).parts)

    def _calls(self, location: str) -> dict[str, list[Item]]:
        """The files of every call at or below a folder, by the call's folder."""
        calls: dict[str, list[Item]] = {}
        for file in self._files.items(self._inner(location)):
            folder = PurePosixPath(file.name).parent
            if _CALL.fullmatch(folder.name):
                calls.setdefault(str(folder), []).append(file)
        return calls

    def _read(self, name: str) -> bytes:
        with self._files.open(name) as file:
            if os.fstat(file.fileno()).st_size > MAX_BYTES:
                raise BadState("it is larger than anything that was written here")
            return file.read()

    def _write(self, name: str, content: bytes) -> None:
        self._files.write(name, [memoryview(content)])


def _name(*parts: str) -> str:
    return str(PurePosixPath(_ROOT, *parts))


joblib.register_store_backend(NAME, ResultStore)
