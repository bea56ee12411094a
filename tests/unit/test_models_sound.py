"""Values that llama.cpp would load and then die of are refused when the header is read."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny import ARCHS
from tiny.damage import F16, F64, I16, Q8_1, with_type, with_value

from ipyllama.errors import BadModelFile
from ipyllama.models import read_header


@pytest.mark.parametrize("arch", ARCHS)
def test_sound_models_pass(tiny: Callable[[str], Path], arch: str) -> None:
    assert read_header(tiny(arch)).architecture


@pytest.mark.parametrize("value", [-1.0, math.nan, -math.inf])
def test_an_epsilon_that_is_no_small_number(tiny: Callable[[str], Path], tmp_path: Path, value: float) -> None:
    key = "llama.attention.layer_norm_rms_epsilon"
    with pytest.raises(BadModelFile, match=key):
        read_header(with_value(tiny("llama"), tmp_path / "x.gguf", key, "<f", value))


@pytest.mark.parametrize(
    ("tensor", "type_id"),
    [
        ("output_norm.weight", F16),
        ("blk.0.attn_norm.weight", F16),
        ("blk.0.attn_q.weight", I16),
        ("blk.1.ffn_down.weight", I16),
        ("token_embd.weight", F64),
        ("output.weight", I16),
        ("blk.1.ffn_down.weight", Q8_1),
        ("blk.0.shortconv.in_proj.weight", I16),
    ],
)
def test_a_tensor_of_a_type_that_nothing_computes_with(
    tiny: Callable[[str], Path], tmp_path: Path, tensor: str, type_id: int
) -> None:
    source = tiny("lfm2" if "shortconv" in tensor else "llama")
    changed = with_type(source, tmp_path / "x.gguf", tensor, type_id)
    with changed.open("ab") as file:
        file.truncate(changed.stat().st_size + (1 << 20))  # long enough for the type that it claims
    with pytest.raises(BadModelFile, match=f"damaged: {tensor}"):
        read_header(changed)


@pytest.mark.parametrize("value", [0, 7, 4096])
def test_a_rope_dimension_that_fits_no_head(tiny: Callable[[str], Path], tmp_path: Path, value: int) -> None:
    key = "llama.rope.dimension_count"
    with pytest.raises(BadModelFile, match=key):
        read_header(with_value(tiny("llama-bigram"), tmp_path / "x.gguf", key, "<I", value))


@pytest.mark.parametrize("value", [5, 2**31])
def test_a_pooling_that_does_not_exist(tiny: Callable[[str], Path], tmp_path: Path, value: int) -> None:
    with pytest.raises(BadModelFile, match=r"bert\.pooling_type"):
        read_header(with_value(tiny("bert"), tmp_path / "x.gguf", "bert.pooling_type", "<I", value))
