"""Values in a GGUF that llama.cpp loads without a word and then dies of while it computes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

from ipyllama.errors import BadModelFile
from ipyllama.models.parse import RawGguf, Tensor, Value

_F32: Final = 0
_WHOLE_NUMBERS: Final = frozenset({24, 25, 26, 27})  # I8, I16, I32, I64
_F64: Final = 28
_ONLY_F32: Final = ("_norm.weight", ".bias", "ssm_d", "ssm_conv1d.weight", "shortconv.conv.weight", "ssm_a")
_MATRICES: Final = ("attn_", "ffn_gate.", "ffn_up.", "ffn_down.", "ssm_in.", "ssm_out.", "ssm_x.", "ssm_dt.")


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
        if ".rope.dimension_count" in key and isinstance(value, int):
            widest = max(key_length, 2)
            if value <= 0 or value % 2 or (key_length and value > widest):
                return f"{key} is {value} for attention heads of {key_length}"
    return None


def _bad_tensor(tensor: Tensor) -> str | None:
    kind = tensor.type_id
    if tensor.name.endswith(_ONLY_F32) and kind != _F32:
        return f"{tensor.name} is not of type F32"
    block = tensor.name.split(".", 2)[-1] if tensor.name.startswith("blk.") else ""
    matrix = block.startswith(_MATRICES) or tensor.name in ("output.weight", "token_embd.weight")
    if matrix and (kind in _WHOLE_NUMBERS or kind == _F64):
        return f"{tensor.name} holds whole numbers or doubles"
    return None
