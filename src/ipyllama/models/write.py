"""Writing a GGUF: metadata, then tensors, as its specification (version 3) has them."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from ipyllama.models.quants import TENSOR_TYPES

if TYPE_CHECKING:
    from numpy.typing import NDArray

Written = int | float | bool | str | Sequence[str] | Sequence[int]
"""A value of the metadata. Whole numbers are u32, those of a list i32."""

_VERSION: Final = 3
_ALIGNMENT: Final = 32
_BLOCK: Final = 32  # values that share a scale in Q8_0
_TYPE_IDS: Final = {name: number for number, (name, _, _) in TENSOR_TYPES.items()}
_U32, _I32, _F32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9


@dataclass(frozen=True, slots=True)
class Weights:
    """A tensor as it stands in the file; `shape` as numpy has it, rows first."""

    type: str
    shape: tuple[int, ...]
    content: bytes


def f32(values: NDArray[np.generic]) -> Weights:
    """As they are."""
    return Weights("F32", values.shape, np.ascontiguousarray(values, "<f4").tobytes())


def q8_0(values: NDArray[np.generic]) -> Weights:
    """Rounded to eight bits, 32 at a time with one scale, as `quantize_row_q8_0` of llama.cpp does. The same bytes on
    every machine. The length of a row is a multiple of 32."""
    blocks = np.asarray(values, np.float32).reshape(-1, _BLOCK)
    scale = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)
    scaled = blocks * inverse
    whole = np.floor(np.abs(scaled))
    rounded = np.copysign(whole + (np.abs(scaled) - whole >= 0.5), scaled)  # half away from zero, as roundf
    out = np.empty(len(blocks), np.dtype([("scale", "<f2"), ("values", "i1", _BLOCK)]))
    out["scale"], out["values"] = scale[:, 0], rounded
    return Weights("Q8_0", values.shape, out.tobytes())


def write_gguf(path: Path, metadata: Mapping[str, Written], tensors: Mapping[str, Weights]) -> None:
    """Write a whole file, in the order that is given."""
    offset, infos = 0, bytearray()
    for name, tensor in tensors.items():
        infos += _text(name) + struct.pack("<I", len(tensor.shape))
        infos += struct.pack(f"<{len(tensor.shape)}Q", *reversed(tensor.shape))
        infos += struct.pack("<IQ", _TYPE_IDS[tensor.type], offset)
        offset += _padded(len(tensor.content))
    head = b"GGUF" + struct.pack("<IQQ", _VERSION, len(tensors), len(metadata))
    head += b"".join(_text(key) + _value(value) for key, value in metadata.items()) + infos
    with path.open("wb") as file:
        file.write(head.ljust(_padded(len(head)), b"\0"))
        for tensor in tensors.values():
            file.write(tensor.content)
            file.write(bytes(_padded(len(tensor.content)) - len(tensor.content)))


def _padded(n: int) -> int:
    return -(-n // _ALIGNMENT) * _ALIGNMENT


def _text(text: str) -> bytes:
    content = text.encode()
    return struct.pack("<Q", len(content)) + content


def _value(value: Written) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", _BOOL, value)
        case int():
            return struct.pack("<II", _U32, value)
        case float():
            return struct.pack("<If", _F32, value)
        case str():
            return struct.pack("<I", _STRING) + _text(value)
    texts = [_text(item) for item in value if isinstance(item, str)]
    if texts:
        return struct.pack("<IIQ", _ARRAY, _STRING, len(texts)) + b"".join(texts)
    return struct.pack("<IIQ", _ARRAY, _I32, len(value)) + np.array(value, "<i4").tobytes()
