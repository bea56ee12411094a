"""An image, a sound, and tiny models and projectors that take them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tiny import build
from tiny.projector import build_projector

_RNG = np.random.default_rng(5)
IMAGE = _RNG.integers(0, 256, (48, 80, 3), dtype=np.uint8)
SOUND = (_RNG.standard_normal(40 * 16000) * 0.1).astype(np.float32)  # 40 s: two chunks
KINDS = (("gemma3",), ("ultravox",), ("gemma3", "ultravox"))


def write_files(folder: Path) -> None:
    """llama.gguf and projectors for it, each of KINDS, joined by a dash; qwen2vl.gguf and merger.gguf for it."""
    for arch in ("llama", "qwen2vl"):
        build(arch, folder / f"{arch}.gguf")
    for kinds in KINDS:
        build_projector(folder / f"{'-'.join(kinds)}.gguf", *kinds)
    build_projector(folder / "merger.gguf", "qwen2vl")
