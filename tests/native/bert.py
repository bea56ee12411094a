"""An oracle for BERT models: the forward pass of Devlin et al. (2018) in NumPy, on the tensors of a GGUF."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


class Bert:
    """`Bert(path)(tokens)`: the last hidden states, float32, shape (n_tokens, n_embd)."""

    def __init__(self, path: Path) -> None:
        reader = gguf.GGUFReader(path)
        self._tensors = {t.name: gguf.dequantize(t.data, t.tensor_type).astype(np.float32) for t in reader.tensors}
        self._n_layer, self._n_head = (
            int(reader.fields[f"bert.{name}"].contents()) for name in ("block_count", "attention.head_count")
        )
        self._eps = float(reader.fields["bert.attention.layer_norm_epsilon"].contents())

    def __call__(self, tokens: Sequence[int]) -> Array:
        t = self._tensors
        x = t["token_embd.weight"][tokens] + t["token_types.weight"][0] + t["position_embd.weight"][: len(tokens)]
        x = self._norm(x, "token_embd_norm")
        for i in range(self._n_layer):
            block = f"blk.{i}."
            x = self._norm(x + self._attention(x, block), f"{block}attn_output_norm")
            inner = gelu(self._linear(x, f"{block}ffn_up"))
            x = self._norm(x + self._linear(inner, f"{block}ffn_down"), f"{block}layer_output_norm")
        return x

    def score(self, tokens: Sequence[int]) -> Array:
        """The classifier on the first token."""
        return self._linear(np.tanh(self._linear(self(tokens)[0], "cls")), "cls.output")

    def _attention(self, x: Array, block: str) -> Array:
        q, k, v = (
            np.stack(np.split(self._linear(x, f"{block}attn_{name}"), self._n_head, axis=1)) for name in ("q", "k", "v")
        )
        weights = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
        weights = np.exp(weights - weights.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        return self._linear(np.concatenate(weights @ v, axis=1), f"{block}attn_output")

    def _linear(self, x: Array, name: str) -> Array:
        return x @ self._tensors[f"{name}.weight"].T + self._tensors[f"{name}.bias"]

    def _norm(self, x: Array, name: str) -> Array:
        centred = x - x.mean(axis=-1, keepdims=True)
        scaled = centred / np.sqrt(centred.var(axis=-1, keepdims=True) + self._eps)
        return scaled * self._tensors[f"{name}.weight"] + self._tensors[f"{name}.bias"]


def gelu(x: Array) -> Array:
    """The tanh form of GELU, as llama.cpp has it."""
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def cosine(a: Array, b: Array) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
