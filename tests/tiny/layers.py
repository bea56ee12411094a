"""The tensors of one layer of each kind, drawn from one random stream in a fixed order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import gguf
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a model."""

    n_embd: int = 64
    n_layer: int = 2
    n_ff: int = 128
    n_head: int = 4
    n_head_kv: int = 2
    n_ctx: int = 4096
    n_swa: int = 32

    @property
    def head(self) -> int:
        return self.n_embd // self.n_head


def ones(n: int) -> Array:
    return np.ones(n, np.float32)


def zeros(*shape: int) -> Array:
    return np.zeros(shape, np.float32)


@dataclass(frozen=True, slots=True)
class Layers:
    """Writes tensors: matrices as f16 unless `f32`, everything else and what has something added to it as f32."""

    writer: gguf.GGUFWriter
    rng: np.random.Generator
    shape: Shape
    f32: bool = False
    added: Mapping[str, Array] = field(default_factory=dict)

    def tensor(self, name: str, values: Array, f32: bool = False) -> None:
        half = values.ndim == 2 and not (f32 or self.f32)
        stored = values.astype(np.float16) if half else values
        if name in self.added:
            stored = stored.astype(np.float32) + self.added[name]
        self.writer.add_tensor(name, stored)

    def random(self, *shape: int, std: float | None = None) -> Array:
        """Normal values; the default deviation keeps a matrix product at the size of its input."""
        deviation = std if std is not None else 1.0 / np.sqrt(shape[-1])
        return (self.rng.standard_normal(shape) * deviation).astype(np.float32)

    def attention(self, block: str, n_head_kv: int) -> None:
        s = self.shape
        self.tensor(f"{block}attn_q.weight", self.random(s.head * s.n_head, s.n_embd))
        self.tensor(f"{block}attn_k.weight", self.random(s.head * n_head_kv, s.n_embd))
        self.tensor(f"{block}attn_v.weight", self.random(s.head * n_head_kv, s.n_embd))
        self.tensor(f"{block}attn_output.weight", self.random(s.n_embd, s.head * s.n_head))

    def head_norms(self, block: str) -> None:
        self.tensor(f"{block}attn_q_norm.weight", ones(self.shape.head))
        self.tensor(f"{block}attn_k_norm.weight", ones(self.shape.head))

    def feed_forward(self, block: str) -> None:
        s = self.shape
        self.tensor(f"{block}ffn_norm.weight", ones(s.n_embd))
        self.tensor(f"{block}ffn_gate.weight", self.random(s.n_ff, s.n_embd))
        self.tensor(f"{block}ffn_up.weight", self.random(s.n_ff, s.n_embd))
        self.tensor(f"{block}ffn_down.weight", self.random(s.n_embd, s.n_ff))

    def mamba(self, block: str, norms: bool = False) -> None:
        n_embd, inner, state, kernel, rank = self.shape.n_embd, 2 * self.shape.n_embd, 8, 4, 4
        self.tensor(f"{block}ssm_in.weight", self.random(2 * inner, n_embd))
        self.tensor(f"{block}ssm_conv1d.weight", self.random(inner, kernel), f32=True)
        self.tensor(f"{block}ssm_conv1d.bias", zeros(inner))
        self.tensor(f"{block}ssm_x.weight", self.random(rank + 2 * state, inner))
        self.tensor(f"{block}ssm_dt.weight", self.random(inner, rank))
        self.tensor(f"{block}ssm_dt.bias", zeros(inner))
        decay = -0.5 * np.tile(np.arange(1, state + 1, dtype=np.float32), (inner, 1))
        self.tensor(f"{block}ssm_a", decay, f32=True)
        self.tensor(f"{block}ssm_d", ones(inner))
        self.tensor(f"{block}ssm_out.weight", self.random(n_embd, inner))
        if norms:
            self.tensor(f"{block}ssm_dt_norm.weight", ones(rank))
            self.tensor(f"{block}ssm_b_norm.weight", ones(state))
            self.tensor(f"{block}ssm_c_norm.weight", ones(state))

    def short_convolution(self, block: str) -> None:
        n_embd = self.shape.n_embd
        self.tensor(f"{block}shortconv.conv.weight", self.random(n_embd, 3), f32=True)
        self.tensor(f"{block}shortconv.in_proj.weight", self.random(3 * n_embd, n_embd))
        self.tensor(f"{block}shortconv.out_proj.weight", self.random(n_embd, n_embd))

    def encoder(self, block: str) -> None:
        s = self.shape
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            self.tensor(f"{block}{name}.weight", self.random(s.n_embd, s.n_embd))
            self.tensor(f"{block}{name}.bias", zeros(s.n_embd))
        self.tensor(f"{block}ffn_up.weight", self.random(s.n_ff, s.n_embd))
        self.tensor(f"{block}ffn_up.bias", zeros(s.n_ff))
        self.tensor(f"{block}ffn_down.weight", self.random(s.n_embd, s.n_ff))
        self.tensor(f"{block}ffn_down.bias", zeros(s.n_embd))
        for name in ("attn_output_norm", "layer_output_norm"):
            self.tensor(f"{block}{name}.weight", ones(s.n_embd))
            self.tensor(f"{block}{name}.bias", zeros(s.n_embd))
