"""How much memory a context takes for what it remembers: KV of attention layers, state of recurrent ones.

The layout is the one of llama.cpp's caches: a row of K and one of V per cell and attention layer, and per sequence and
recurrent layer the last inputs of its convolution and its state, both in F32.
"""

from __future__ import annotations

import re
from typing import Final

from ipyllama.models.header import GgufHeader, whole_number
from ipyllama.models.quants import TENSOR_TYPES

KV_TYPES: Final = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")
"""types that cells can have"""
PLAIN_KV_TYPES: Final = ("f32", "f16", "bf16")
"""those that are not quantised: quantised V needs flash attention"""

_CELLS: Final = 256  # llama.cpp rounds n_ctx up to a multiple of it
_F32: Final = 4
_RECURRENT: Final = re.compile(r"blk\.(\d{1,9})\.(ssm_|shortconv\.|time_mix_)")
_ROWS: Final = {name.lower(): (block, size) for name, block, size in TENSOR_TYPES.values()}


def kv_bytes(header: GgufHeader, n_ctx: int, kv_type: str = "f16", n_sequences: int = 1) -> int:
    """Bytes of KV and recurrent state of a context of `n_ctx` tokens that keeps every cell of windowed layers.

    Recurrent state is there once more than there are sequences: contexts have one to spare, for copies.

    `kv_type` is one of KV_TYPES; 0 for encoders, which keep nothing. Exact for the families of this project's tests
    (Llama, Gemma 3, Mamba, LFM2, Jamba); for others as exact as the file tells which layer remembers what.
    """
    if not header.causal:
        return 0
    cells = -(-n_ctx // _CELLS) * _CELLS
    recurrent = len(_recurrent_layers(header)) * _state_values(header) * _F32 * (n_sequences + 1)
    return cells * _row_bytes(header, kv_type) + recurrent


def _row_bytes(header: GgufHeader, kv_type: str) -> int:
    """Bytes of one token in all attention layers."""
    block, size = _ROWS[kv_type]
    no_v = bool(_number(header, "attention.key_length_mla"))  # latent attention: V is part of K
    per_head = header.key_length + (0 if no_v else header.value_length)
    return _kv_heads(header) * per_head * size // block


def _kv_heads(header: GgufHeader) -> int:
    """KV heads of all layers that keep cells of their own, together."""
    shared = _number(header, "attention.shared_kv_layers")  # the last ones read what others wrote
    instead = _recurrent_layers(header) if _number(header, "full_attention_interval") else set()
    if isinstance(header.n_head_kv, tuple):
        own = header.n_head_kv[: max(0, len(header.n_head_kv) - shared)]
        return sum(n for layer, n in enumerate(own) if layer not in instead)
    own_layers = max(0, header.n_layer - shared)  # a number out of a file: no list of that length
    return header.n_head_kv * (own_layers - sum(layer < own_layers for layer in instead))


def _recurrent_layers(header: GgufHeader) -> set[int]:
    found = (_RECURRENT.match(tensor.name) for tensor in header.tensors)
    return {int(match[1]) for match in found if match}


def _state_values(header: GgufHeader) -> int:
    """Numbers that a recurrent layer keeps per sequence."""
    if head := _number(header, "wkv.head_size"):  # RWKV
        return header.n_embd * (_number(header, "token_shift_count", 2) + head)
    if taps := _number(header, "shortconv.l_cache"):  # LFM2
        return header.n_embd * (taps - 1)
    inner, state = _number(header, "ssm.inner_size"), _number(header, "ssm.state_size")
    taps, groups = _number(header, "ssm.conv_kernel"), _number(header, "ssm.group_count")
    return max(0, taps - 1) * (inner + 2 * groups * state) + inner * state


def _number(header: GgufHeader, name: str, default: int = 0) -> int:
    return whole_number(header.metadata, f"{header.architecture}.{name}", default)
