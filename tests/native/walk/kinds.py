"""The kinds of memory that are walked through, and contexts small enough to be filled in a few steps."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from native.core import make_context
from tiny import build

from ipyllama import _core

N_SEQUENCES, N_BATCH, N_UBATCH, N_VOCAB = 4, 64, 16, 356


@dataclass(frozen=True, slots=True)
class Kind:
    """A model, the options of its context, and what can be said of its memory.

    `tolerance` is the largest difference of a logit (their deviation is 3) from the reference. Weights and KV are f32,
    so what is left is another order of sums (5e-6 measured for llama), ggml's GELU, a table of f16 numbers (2e-3 for
    gemma3), and flash-attention, which rounds queries and weights to f16 (8e-3). One of a hundred tokens that is
    missing shows as 0.05 and more.
    """

    name: str
    arch: str
    tolerance: float = 1e-3
    window: int = 0
    swa_full: bool = True
    recurrent: bool = False  # has recurrent state, alone or beside attention
    attention: bool = True
    flash_attention: int = 0
    n_ctx: int = 256

    @property
    def can_shift(self) -> bool:
        return self.swa_full

    @property
    def on_device(self) -> bool:
        """True if a state can be copied within the device: not where V lies element by element."""
        return self.flash_attention == 1 or not self.attention

    @property
    def has_partial(self) -> bool:
        """True if a state has a part that can go back into a longer sequence."""
        return self.window > 0 or (self.recurrent and self.attention)

    def context(self, n_sequences: int = N_SEQUENCES) -> _core.Context:
        return make_context(
            model(self.arch),
            n_ctx=self.n_ctx,
            n_batch=N_BATCH,
            n_ubatch=N_UBATCH,
            n_seq_max=n_sequences,
            swa_full=self.swa_full,
            flash_attention=self.flash_attention,
            type_k="f32",
            type_v="f32",
        )


KINDS = (
    Kind("attention", "llama"),
    Kind("flash-attention", "llama", tolerance=0.04, flash_attention=1),
    Kind("window, all cells kept", "gemma3", tolerance=0.04, window=32, flash_attention=1),
    Kind("window", "gemma3", tolerance=0.02, window=32, swa_full=False, n_ctx=512),
    Kind("recurrent", "mamba", recurrent=True, attention=False),
    Kind("hybrid, convolution", "lfm2", tolerance=0.04, recurrent=True, flash_attention=1),
    Kind("hybrid, mamba", "jamba", recurrent=True),
)


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="ipyllama-walk-")


@cache
def path(arch: str) -> Path:
    """The tiny model with f32 weights, written at the first use in this process."""
    file = Path(_folder().name) / f"{arch}.gguf"
    build(arch, file, f32=True)
    return file


@cache
def model(arch: str) -> _core.Model:
    return _core.Model.load(str(path(arch)))
