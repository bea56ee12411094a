"""A store backend for `joblib.Memory` that holds JSON and `.npy`, so that a folder from elsewhere cannot run code.

    memory = joblib.Memory(Path(folder), backend="ipyllama", verbose=0)   # after `import ipyllama.prefix.results`

    FUNCTION/func_code.py                what joblib compares, and clears where it differs; it is read as text
    FUNCTION/CALL/output.json            the value, with a checksum
    FUNCTION/CALL/SHA256.npy             its arrays
    FUNCTION/CALL/metadata.json          what joblib notes about the call

joblib's policy sits on the primitives of this class; what a store holds besides is neither read nor deleted.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from io import BufferedWriter, FileIO
from pathlib import Path
from typing import Any, Final

import joblib
from joblib._store_backends import CacheItemInfo, StoreBackendBase, StoreBackendMixin

from ipyllama.errors import BadState, StoreError
from ipyllama.prefix.files import advice, create_file, make_folder, move_file, open_file
from ipyllama.prefix.values import decode, encode

NAME: Final = "ipyllama"
MAX_BYTES: Final = 1 << 30
"""A larger file is nothing that was written here."""
_OUTPUT: Final = "output.json"
_CALL: Final = re.compile(r"[0-9a-f]{32}")
_OURS: Final = re.compile(r"(output\.json|metadata\.json|[0-9a-f]{64}\.npy)(\.new-[0-9a-f]{16})?")
_FIRST_LINE: Final = re.compile(r"# first line: -?[0-9]{1,9}\n")


class ResultStore(StoreBackendBase, StoreBackendMixin):  # type: ignore[misc]  # joblib has no types
    """Results in a folder; making one touches nothing.

    A damaged entry is a miss, and deleted. Where nothing can be written, `problem` says why, a warning is given once,
    and results are no longer kept.
    """

    def configure(self, location: str, verbose: int = 0, backend_options: Mapping[str, Any] | None = None) -> None:
        """Of `backend_options` only "warn" is known: what is called with the text of a warning. Raises `StoreError`
        for a folder that is somebody else's, or a link."""
        if os.path.lexists(location):
            make_folder(Path(location))
        self.location, self.verbose = location, verbose
        self.problem = ""
        self._warn: Callable[[str], None] = (backend_options or {}).get("warn", warnings.warn)

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
        folder = Path(self.location, *call_id)
        try:
            value = decode(call_id, self._read(folder / _OUTPUT), lambda name: self._read(folder / name))
        except BadState as error:
            self.clear_item(call_id)
            raise KeyError(f"{folder}: {error}") from error
        except OSError as error:
            raise KeyError(f"{folder}: {error.strerror}") from error
        with contextlib.suppress(OSError):  # the clock of the eviction; a read-only folder has none
            os.utime(folder / _OUTPUT)
        return value

    def dump_item(self, call_id: Sequence[str], item: Any, verbose: int = 0) -> None:
        """Keep a value, if that can be done. Raises `TypeError` for one that is neither JSON nor array."""
        document, arrays = encode(call_id, item)
        if self.problem:
            return
        folder = os.path.join(self.location, *call_id)
        try:
            self.create_location(folder)
            for name, content in {**arrays, _OUTPUT: document}.items():
                self._concurrency_safe_write(content, os.path.join(folder, name), self._write)
        except FileNotFoundError:
            pass  # somebody cleared the folder in the meantime; the next one will be kept
        except (OSError, StoreError) as error:
            self.problem = why_not(self.location, error)
            self._warn(self.problem)

    def get_cached_func_code(self, call_id: Sequence[str]) -> str:
        """The code that filled the folder. Raises `OSError` where that is not known."""
        try:
            code: str = super().get_cached_func_code(call_id)
        except (BadState, UnicodeDecodeError) as error:
            raise OSError(str(error)) from error
        if not _FIRST_LINE.match(code):
            raise OSError(f"{call_id[0]}: no code")
        return code

    # -- what joblib's policy is made of --------------------------------------------------------------------

    def create_location(self, location: str) -> None:
        """A folder of the store, with those above it. Raises `StoreError`, `OSError`."""
        base = Path(self.location)
        base.parent.mkdir(parents=True, exist_ok=True)
        below = Path(location).relative_to(base)
        for place in (base, *(base / part for part in reversed((below, *below.parents[:-1])))):
            make_folder(place)
        with contextlib.suppress(FileExistsError), create_file(base / ".gitignore") as file:
            file.write(b"*\n")

    def clear_location(self, location: str) -> None:
        """Delete the entries at or below a folder."""
        for folder, names in self._calls(location):
            with contextlib.suppress(OSError):  # another process deletes as well, or a stranger's file is in there
                for name in names:
                    if _OURS.fullmatch(name):
                        os.unlink(os.path.join(folder, name))
                os.rmdir(folder)

    def get_items(self) -> list[CacheItemInfo]:
        """Path, bytes and time of last use of every entry."""
        items = []
        for folder, names in self._calls(self.location):
            with contextlib.suppress(OSError):  # deleted in the meantime
                sizes = [os.lstat(os.path.join(folder, name)) for name in names]
                used = max((info.st_mtime for info in sizes), default=0.0)
                items.append(CacheItemInfo(folder, sum(i.st_size for i in sizes), datetime.fromtimestamp(used)))
        return items

    def _calls(self, location: str) -> Iterator[tuple[str, list[str]]]:
        if self._item_exists(location):
            for folder, _, names in os.walk(location):
                if _CALL.fullmatch(os.path.basename(folder)):
                    yield folder, names

    def _item_exists(self, location: str) -> bool:
        """True if it is there, and no link on the way to it leads out of the store."""
        inside = os.path.join(os.path.realpath(self.location), os.path.relpath(location, self.location))
        return os.path.exists(location) and os.path.realpath(location) == os.path.normpath(inside)

    def _open_item(self, path: str, mode: str) -> FileIO | BufferedWriter:
        return open_file(path) if mode == "rb" else create_file(path)

    def _move_item(self, source: str, target: str) -> None:
        move_file(source, target)

    def _concurrency_safe_write(self, content: Any, path: str, write: Callable[[Any, str], None]) -> None:
        temporary = f"{path}.new-{secrets.token_hex(8)}"
        try:
            write(content, temporary)
            self._move_item(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise

    def _write(self, content: bytes, path: str) -> None:
        with self._open_item(path, "wb") as file:
            file.write(content)

    def _read(self, path: Path) -> bytes:
        if not self._item_exists(str(path)):
            raise FileNotFoundError(2, "there is none", str(path))
        with open_file(path) as file:
            if os.fstat(file.fileno()).st_size > MAX_BYTES:
                raise BadState("it is larger than anything that was written here")
            return file.readall()


def why_not(location: str, error: OSError | StoreError) -> str:
    """Why nothing is kept, and what a person can do."""
    return f"results are not kept in {location}: {advice(error)}" if isinstance(error, OSError) else str(error)


joblib.register_store_backend(NAME, ResultStore)
