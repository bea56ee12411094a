"""A bounded reader for the front part of a GGUF file: metadata and tensor table, never the weights.

The file is input from a stranger: every count and length is checked against a cap and against the size of the
file before anything is read or allocated. Reads go through a small buffer, not a memory map, because a map of a
file that shrinks meanwhile kills the process. The layout is the one in ggml's GGUF specification.
"""

from __future__ import annotations

import os
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NoReturn

from ipyllama.errors import BadModelFile
from ipyllama.models.quants import TENSOR_TYPES, tensor_bytes

MAX_ENTRIES = 1 << 16
"""metadata keys, and tensors; the largest models have some thousands"""
MAX_WALKED = 1 << 22
"""string elements stepped over in all arrays of a file; a vocabulary has some hundred thousand"""
MAX_TEXT = 1 << 20
"""bytes of one string that is kept"""
MAX_KEPT = 1 << 24
"""bytes of all strings and arrays that are kept"""
MAX_ARRAY = 4096
"""elements of an array that is kept; longer ones are summarised"""
MAX_NAME = 1 << 16
MAX_DIMS = 4
MAX_ELEMENTS = 1 << 62
_CHUNK = 1 << 18
_OBJECT = 64  # about what a small Python object takes

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9

_LOOKS_LIKE = (
    (b"<", "it is a web page: the download went wrong"),
    (b"version https://git-lfs", "it is a Git LFS pointer: run `git lfs pull` for the real file"),
    (b"PK", "it is a ZIP or PyTorch file: convert it to GGUF first"),
    (b"ggjt", "it is the old GGML format: get a GGUF version of the model"),
    (b"lmgg", "it is the old GGML format: get a GGUF version of the model"),
)

Scalar = int | float | bool | str


@dataclass(frozen=True, slots=True)
class ArraySummary:
    """An array too long to keep: how many elements it has."""

    length: int


Value = Scalar | tuple[Scalar, ...] | ArraySummary


@dataclass(frozen=True, slots=True)
class Tensor:
    """One row of the tensor table; `offset` counts from the start of the data section."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int
    n_elements: int

    @property
    def n_bytes(self) -> int | None:
        """None where the type is not known here."""
        return tensor_bytes(self.type_id, self.n_elements)


@dataclass(frozen=True, slots=True)
class RawGguf:
    """What the front part of the file says; nothing is interpreted yet."""

    version: int
    metadata: dict[str, Value]
    tensors: tuple[Tensor, ...]
    data_start: int
    file_size: int

    @property
    def expected_size(self) -> int:
        """Bytes that the file needs: the end of its last tensor."""
        return max((self.data_start + t.offset + (t.n_bytes or 0) for t in self.tensors), default=self.data_start)


def parse_gguf(path: Path) -> RawGguf:
    """Read metadata and tensor table.

    Raises BadModelFile: not a regular file, unreadable, not a GGUF, damaged, or cut off inside the header.
    """
    try:
        info = os.stat(path)
        if not stat.S_ISREG(info.st_mode):  # opening a pipe would wait for ever
            raise BadModelFile(f"{path.name} is not a regular file. Give the path of a .gguf file.")
        with open(path, "rb") as file:
            return _parse(_Cursor(file, info.st_size, path.name))
    except OSError as error:
        raise BadModelFile(
            f"{path} cannot be read: {error.strerror or error}. Check the path and its rights."
        ) from None


class _Cursor:
    """Reads forward through a file of known size and refuses to step past its end."""

    def __init__(self, file: BinaryIO, size: int, name: str) -> None:
        self.size, self.name = size, name
        self.walked = self.kept = 0
        self._file, self._buffer, self._at, self._base = file, b"", 0, 0

    @property
    def position(self) -> int:
        return self._base + self._at

    def damaged(self, what: str) -> NoReturn:
        raise BadModelFile(f"{self.name} is damaged: {what}. Download it again.")

    def need(self, n: int) -> None:
        """Refuse if fewer than n bytes are left."""
        if n > self.size and n >= 1 << 40:
            self.damaged(f"a length of {n:,} bytes at offset {self.position:,}")
        if n > self.size - self.position:
            raise BadModelFile(
                f"{self.name} is truncated: its header needs at least {self.position + n:,} bytes, "
                f"the file has {self.size:,}. Download it again."
            )

    def take(self, n: int) -> bytes:
        self.need(n)
        if self._at + n > len(self._buffer):
            rest = self._buffer[self._at :]
            self._base, self._at = self.position, 0
            self._buffer = rest + self._file.read(max(n - len(rest), _CHUNK))
            if len(self._buffer) < n:
                self.damaged("it shrank while it was read")
        self._at += n
        return self._buffer[self._at - n : self._at]

    def peek(self, n: int) -> bytes:
        start = self.take(n)
        self._at -= n
        return start

    def skip(self, n: int) -> None:
        self.need(n)
        if self._at + n <= len(self._buffer):
            self._at += n
            return
        self._base, self._at, self._buffer = self.position + n, 0, b""
        self._file.seek(self._base)

    def number(self, code: str) -> int | float | bool:
        value: int | float | bool = struct.unpack(code, self.take(struct.calcsize(code)))[0]
        return value

    def count(self, code: str = "<Q") -> int:
        return int(self.number(code))

    def keep(self, n: int) -> bool:
        """Whether n more bytes may be held; counts them if so."""
        if self.kept + n > MAX_KEPT:
            return False
        self.kept += n
        return True

    def text(self, limit: int = MAX_TEXT) -> str:
        """A string; one over the limit, or over what may be held in all, is stepped over and reads as ""."""
        n = self.count()
        if n > limit or not self.keep(n + _OBJECT):
            self.skip(n)
            return ""
        return self.take(n).decode("utf-8", "replace")

    def expect_texts(self, n: int) -> None:
        """Refuse if there is no room for n strings, or if the file has too many in all."""
        self.walked += n
        if self.walked > MAX_WALKED:
            self.damaged(f"its arrays claim over {MAX_WALKED:,} strings")
        self.need(8 * n)

    def skip_texts(self, n: int) -> None:
        unpack = struct.Struct("<Q").unpack_from
        while n:
            # short strings inside the buffer, without a call for each: a vocabulary has some hundred thousand
            buffer, at = self._buffer, self._at
            while n and at + 8 <= len(buffer):
                end: int = at + 8 + unpack(buffer, at)[0]
                if end > len(buffer):
                    break
                at, n = end, n - 1
            self._at = at
            if n:
                self.skip(self.count())
                n -= 1


def _parse(cursor: _Cursor) -> RawGguf:
    version = _check_magic(cursor)
    n_tensors, n_keys = cursor.count(), cursor.count()
    if n_tensors > MAX_ENTRIES or n_keys > MAX_ENTRIES:
        cursor.damaged(f"it claims {n_tensors:,} tensors and {n_keys:,} metadata keys")
    metadata: dict[str, Value] = {}
    for _ in range(n_keys):
        key = cursor.text(MAX_NAME)
        if key in metadata:
            cursor.damaged(f"metadata key {key[:60]!r} appears twice")
        metadata[key] = _value(cursor, cursor.count("<I"))
    tensors = tuple(_tensor(cursor) for _ in range(n_tensors))
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        cursor.damaged(f"its alignment is {str(alignment)[:20]}, not a power of two")
    data_start = -(-cursor.position // alignment) * alignment if tensors else cursor.position
    return RawGguf(version, metadata, tensors, data_start, cursor.size)


def _check_magic(cursor: _Cursor) -> int:
    start = cursor.peek(min(32, cursor.size))
    if start[:4] != b"GGUF":
        hint = next((text for prefix, text in _LOOKS_LIKE if start.startswith(prefix)), "give the path of a .gguf file")
        seen = f"starts with {start[:4]!r}" if start else "is empty"
        raise BadModelFile(f"{cursor.name} is not a GGUF file ({seen}): {hint}.")
    cursor.skip(4)
    version = cursor.count("<I")
    if version in (2, 3):
        return version
    if version & 0xFFFF == 0 and version:
        raise BadModelFile(f"{cursor.name} is a big-endian GGUF. Get the usual, little-endian one.")
    raise BadModelFile(
        f"{cursor.name} is GGUF version {version}; 2 and 3 can be read. Get a current version of the model."
    )


def _value(cursor: _Cursor, kind: int) -> Value:
    if kind in _SCALARS:
        return cursor.number(_SCALARS[kind])
    if kind == _STRING:
        return cursor.text()
    if kind != _ARRAY:
        cursor.damaged(f"metadata type {kind} at offset {cursor.position:,} does not exist")
    item, n = cursor.count("<I"), cursor.count()
    if item == _STRING:
        cursor.expect_texts(n)
        if n <= MAX_ARRAY:
            return tuple(cursor.text() for _ in range(n))
        cursor.skip_texts(n)
    elif item in _SCALARS:
        code = _SCALARS[item]
        if n <= MAX_ARRAY and cursor.keep(n * _OBJECT):
            return struct.unpack(f"<{n}{code[1]}", cursor.take(n * struct.calcsize(code)))
        cursor.skip(n * struct.calcsize(code))
    else:
        cursor.damaged(f"an array of metadata type {item} at offset {cursor.position:,}")
    return ArraySummary(n)


def _tensor(cursor: _Cursor) -> Tensor:
    name = cursor.text(MAX_NAME)
    n_dims = cursor.count("<I")
    if n_dims > MAX_DIMS:
        cursor.damaged(f"tensor {name[:60]!r} has {n_dims:,} dimensions")
    shape = struct.unpack(f"<{n_dims}Q", cursor.take(8 * n_dims))
    type_id, offset = cursor.count("<I"), cursor.count()
    n_elements = 1
    for n in shape:
        n_elements *= n
    block = TENSOR_TYPES[type_id][1] if type_id in TENSOR_TYPES else 1
    if n_elements > MAX_ELEMENTS or offset > MAX_ELEMENTS or (shape and shape[0] % block):
        cursor.damaged(f"tensor {name[:60]!r} has shape {list(shape)} at offset {offset:,}")
    return Tensor(name, shape, type_id, offset, n_elements)
