"""Adapters for the tiny llama, and the same merged into its weights by NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tiny import build
from tiny.lora import Lora, random_lora

ONE, OTHER = random_lora(seed=1), random_lora(seed=2, rank=7, alpha=3.0)


def write_files(folder: Path) -> None:
    """base.gguf, and the adapters one.gguf and other.gguf for it."""
    write_merged(folder / "base.gguf")
    ONE.write(folder / "one.gguf", invocation_tokens=[5, 6])
    OTHER.write(folder / "other.gguf")


def write_merged(path: Path, *scaled: tuple[Lora, float], bias: NDArray[np.float32] | None = None) -> Path:
    """The tiny llama with these adapters merged; everything that they could change is f32, changed or not."""
    added = {name: np.zeros_like(delta) for lora in (ONE, OTHER) for name, delta in lora.delta(0).items()}
    for lora, scale in scaled:
        for name, delta in lora.delta(scale).items():
            added[name] = added[name] + delta
    if bias is not None:
        added["blk.1.ffn_down.bias"] = bias
    build("llama", path, added=added)
    return path
