"""Random LoRA adapters for the tiny llama, and what they add to its weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

from tiny.layers import Array, Shape

_TARGETS = {"attn_q": ("n_embd", "n_embd"), "ffn_down": ("n_embd", "n_ff")}  # rows, columns


@dataclass(frozen=True, slots=True)
class Lora:
    """Pairs (A, B) by the name of the weight that they change, of shapes (rank, columns) and (rows, rank)."""

    pairs: dict[str, tuple[Array, Array]]
    alpha: float

    def delta(self, scale: float) -> dict[str, Array]:
        """What the adapter adds to each weight: scale * alpha / rank * B A."""
        return {name: scale * self.alpha / len(a) * (b @ a) for name, (a, b) in self.pairs.items()}

    def write(self, path: Path, arch: str = "llama", invocation_tokens: list[int] | None = None) -> Path:
        """Write the adapter as a GGUF file; returns its path."""
        writer = gguf.GGUFWriter(str(path), arch)
        writer.add_type("adapter")
        writer.add_name("tiny-random-lora")
        writer.add_string("adapter.type", "lora")
        writer.add_float32("adapter.lora.alpha", self.alpha)
        if invocation_tokens is not None:
            writer.add_key_value(
                "adapter.alora.invocation_tokens",
                invocation_tokens,
                gguf.GGUFValueType.ARRAY,
                gguf.GGUFValueType.UINT32,
            )
        for name, (a, b) in self.pairs.items():
            writer.add_tensor(f"{name}.lora_a", a)
            writer.add_tensor(f"{name}.lora_b", b)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


def random_lora(seed: int = 0, rank: int = 4, alpha: float = 8.0) -> Lora:
    """An adapter for two weights of each layer, large enough to be seen in the logits."""
    rng, shape = np.random.default_rng(seed), Shape()
    pairs = {}
    for layer in range(shape.n_layer):
        for target, (rows, columns) in _TARGETS.items():
            a = rng.standard_normal((rank, getattr(shape, columns))) * 0.2
            b = rng.standard_normal((getattr(shape, rows), rank)) * 0.2
            pairs[f"blk.{layer}.{target}.weight"] = (a.astype(np.float32), b.astype(np.float32))
    return Lora(pairs, alpha)
