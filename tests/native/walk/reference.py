"""llama and gemma3 in NumPy: what a cell holds and what attention makes of the cells, without llama.cpp.

A cell keeps its keys before RoPE, and its values, as they were computed when its token was evaluated. So cells can be
removed, moved, shared and copied like those of llama.cpp, and the next logits are exact by construction: nothing has to
be evaluated again, whatever happened before.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

_EPSILON, _ROPE_BASE = 1e-5, 10000.0
_ROWS = 24  # so small that BLAS starts no threads, which would wait for each other on a busy machine


def rms_norm(x: Array, weight: Array) -> Array:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(_EPSILON)) * weight


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def gelu(x: Array) -> Array:
    """As ggml has it: from a table for every f16 number."""
    half = x.astype(np.float16).astype(np.float32)
    exact = 0.5 * half * (1 + np.tanh(np.float32(np.sqrt(2 / np.pi)) * half * (1 + np.float32(0.044715) * half * half)))
    return np.where(np.abs(x) < 10, exact.astype(np.float16).astype(np.float32), np.maximum(x, 0))


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The cells of a step, shape (n, layers, 2, KV heads, head size): keys before RoPE, values. Its last logits."""

    cells: Array
    logits: Array


class Reference:
    """The model in a GGUF file with f32 weights."""

    def __init__(self, path: Path) -> None:
        reader = gguf.GGUFReader(path)
        self._weights = {tensor.name: np.array(tensor.data, np.float32) for tensor in reader.tensors}
        self._gemma = reader.fields["general.architecture"].contents() == "gemma3"
        arch = "gemma3" if self._gemma else "llama"
        self._n_layer = reader.fields[f"{arch}.block_count"].contents()
        self._n_head = reader.fields[f"{arch}.attention.head_count"].contents()
        window = reader.fields["gemma3.attention.sliding_window"].contents() if self._gemma else 0
        windowed = reader.fields["gemma3.attention.sliding_window_pattern"].contents() if self._gemma else []
        self._windows = [window if self._gemma and windowed[i] else 0 for i in range(self._n_layer)]
        self._head = self._weights["blk.0.attn_q.weight"].shape[0] // self._n_head

    def evaluate(self, tokens: list[int], positions: list[int], before: Array, before_at: list[int]) -> Evaluated:
        """One step: `tokens` at `positions`, after the cells `before` (as in Evaluated) at `before_at`."""
        cells, states = before, []
        for start in range(0, len(tokens), _ROWS):
            end, n = start + _ROWS, len(cells)
            made, x = self._piece(tokens[start:end], positions[start:end], cells, [*before_at, *positions][:n])
            cells = np.concatenate([cells, made])
            states.append(x)
        normed = rms_norm(np.concatenate(states)[-1:], self._weights["output_norm.weight"])
        return Evaluated(cells[len(before) :], (normed @ self._weights["output.weight"].T)[0])

    def _piece(
        self, tokens: list[int], positions: list[int], before: Array, before_at: list[int]
    ) -> tuple[Array, Array]:
        at, seen_at = np.array(positions), np.array([*before_at, *positions])
        x = self._weights["token_embd.weight"][tokens]
        x = x * np.float32(np.sqrt(x.shape[-1])) if self._gemma else x
        made = np.empty((len(tokens), *self._cell_shape()), np.float32)
        for layer in range(self._n_layer):
            q, made[:, layer, 0], made[:, layer, 1] = self._project(layer, x)
            seen = np.concatenate([before[:, layer], made[:, layer]]) if len(before) else made[:, layer]
            visible = self._visible(layer, at, seen_at)
            attended = self._attend(self._rope(q, at), self._rope(seen[:, 0], seen_at), seen[:, 1], visible)
            x = self._finish(layer, x, attended)
        return made, x

    def empty(self) -> Array:
        """No cells."""
        return np.empty((0, *self._cell_shape()), np.float32)

    def _cell_shape(self) -> tuple[int, ...]:
        return (self._n_layer, 2, self._weights["blk.0.attn_k.weight"].shape[0] // self._head, self._head)

    def _weight(self, layer: int, name: str) -> Array:
        return self._weights[f"blk.{layer}.{name}.weight"]

    def _project(self, layer: int, x: Array) -> tuple[Array, Array, Array]:
        normed = rms_norm(x, self._weight(layer, "attn_norm"))
        q, k, v = (
            (normed @ self._weight(layer, name).T).reshape(len(x), -1, self._head)
            for name in ("attn_q", "attn_k", "attn_v")
        )
        if self._gemma:
            q, k = rms_norm(q, self._weight(layer, "attn_q_norm")), rms_norm(k, self._weight(layer, "attn_k_norm"))
        return q, k, v

    def _rope(self, x: Array, positions: NDArray[np.int64]) -> Array:
        """llama turns pairs of neighbours, gemma3 the first half with the second."""
        half = self._head // 2
        frequencies = _ROPE_BASE ** (-np.arange(half) / half)
        angles = positions[:, None, None] * frequencies
        cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        a, b = (x[..., :half], x[..., half:]) if self._gemma else (x[..., ::2], x[..., 1::2])
        turned = a * cos - b * sin, a * sin + b * cos
        return np.concatenate(turned, -1) if self._gemma else np.stack(turned, -1).reshape(x.shape)

    def _visible(self, layer: int, at: NDArray[np.int64], seen_at: NDArray[np.int64]) -> NDArray[np.bool_]:
        distance = at[:, None] - seen_at[None, :]
        window = self._windows[layer]
        return (distance >= 0) & (distance < window) if window else distance >= 0

    def _attend(self, q: Array, k: Array, v: Array, visible: NDArray[np.bool_]) -> Array:
        group = self._n_head // k.shape[1]
        k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
        scores = np.matmul(q.transpose(1, 0, 2), k.transpose(1, 2, 0)) / np.float32(np.sqrt(self._head))
        scores = np.where(visible[None], scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return np.matmul(weights, v.transpose(1, 0, 2)).transpose(1, 0, 2).reshape(len(q), -1)

    def _finish(self, layer: int, x: Array, attended: Array) -> Array:
        out = attended @ self._weight(layer, "attn_output").T
        if self._gemma:
            out = rms_norm(out, self._weight(layer, "post_attention_norm"))
        x = x + out
        normed = rms_norm(x, self._weight(layer, "ffn_norm"))
        gate = normed @ self._weight(layer, "ffn_gate").T
        out = ((gelu if self._gemma else silu)(gate) * (normed @ self._weight(layer, "ffn_up").T)) @ self._weight(
            layer, "ffn_down"
        ).T
        if self._gemma:
            out = rms_norm(out, self._weight(layer, "post_ffw_norm"))
        return x + out
