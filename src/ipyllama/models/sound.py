"""Values in a GGUF that llama.cpp loads without a word and then dies of while it computes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

from ipyllama.errors import BadModelFile
from ipyllama.models.parse import RawGguf, Tensor, Value
from ipyllama.models.quants import TENSOR_TYPES

_NOT_COMPUTED_WITH: Final = ("I8", "I16", "I32", "I64", "F64", "Q8_1", "Q8_K")
_POOLING: Final = range(5)  # none, mean, cls, last, rank
_TABLE: Final = "_tid2eid"  # which experts a token goes to: whole numbers indeed
_ONLY_F32: Final = ("_norm.weight", ".bias", "ssm_d", "ssm_conv1d.weight", "shortconv.conv.weight", "ssm_a")


def check(name: str, raws: Iterable[RawGguf], key_length: int) -> None:
    """Raise `BadModelFile` for what would take the kernel down. `key_length` is the width of an attention head."""
    for raw in raws:
        problem = _bad_number(raw.metadata, key_length) or next(filter(None, map(_bad_tensor, raw.tensors)), None)
        if problem:
            raise BadModelFile(f"{name} is damaged: {problem}. Download it again, or convert the model anew.")


def _bad_number(metadata: Mapping[str, Value], key_length: int) -> str | None:
    for key, value in metadata.items():
        if key.endswith("_epsilon") and isinstance(value, float) and not (math.isfinite(value) and value >= 0):
            return f"{key} is {value}"
        if key.endswith(".pooling_type") and value not in _POOLING:
            return f"{key} is {value}"
        if ".rope.dimension_count" in key and isinstance(value, int) and not _fits_head(value, key_length):
            return f"{key} is {value} for attention heads of {key_length}"
    return None


def _fits_head(n_rotated: int, key_length: int) -> bool:
    """Rotations take dimensions in pairs. A `key_length` of 0 is unknown."""
    return n_rotated > 0 and n_rotated % 2 == 0 and (key_length == 0 or n_rotated <= max(key_length, 2))


def _bad_tensor(tensor: Tensor) -> str | None:
    kind = TENSOR_TYPES[tensor.type_id][0] if tensor.type_id in TENSOR_TYPES else ""
    if tensor.name.endswith(_ONLY_F32) and kind != "F32":
        return f"{tensor.name} is not of type F32"
    if len(tensor.shape) > 1 and kind in _NOT_COMPUTED_WITH and _TABLE not in tensor.name:
        return f"{tensor.name} is of type {kind}, which no model has"
    return None
