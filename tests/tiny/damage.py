"""Copies of a GGUF with one thing wrong in it."""

from __future__ import annotations

import struct
from pathlib import Path

from ipyllama.models.parse import parse_gguf

F16, Q8_1, I16, F64 = 1, 9, 25, 28


def with_value(source: Path, target: Path, key: str, layout: str, value: float) -> Path:
    """A copy of a GGUF in which the scalar `key` has another value of the same type."""
    data = bytearray(source.read_bytes())
    at = data.index(key.encode()) + len(key) + 4  # behind the key comes the type, then the value
    struct.pack_into(layout, data, at, value)
    target.write_bytes(data)
    return target


def with_type(source: Path, target: Path, tensor: str, type_id: int) -> Path:
    """A copy of a GGUF in which a tensor claims another type."""
    data = bytearray(source.read_bytes())
    found = next(t for t in parse_gguf(source).tensors if t.name == tensor)
    at = data.index(tensor.encode()) + len(tensor) + 4 + 8 * len(found.shape)
    struct.pack_into("<I", data, at, type_id)
    target.write_bytes(data)
    return target
