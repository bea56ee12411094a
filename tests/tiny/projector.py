"""Tiny random projectors (mmproj) for models of 64 embeddings.

gemma3: images of any size become 16 tokens, which see each other both ways. qwen2vl: one token for 8 x 8 pixels, with
two-dimensional positions (M-RoPE), for the tiny qwen2vl. ultravox: each 30 s of a sound become 75 tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

from tiny.layers import Array, Shape, ones, zeros

N_TEXT = Shape().n_embd
IMAGE_TOKENS = 16
AUDIO_TOKENS = 75


@dataclass(frozen=True, slots=True)
class Encoder:
    """The sizes of the transformer in a projector, and the width of what comes out."""

    n_text: int
    n_embd: int = 32
    n_ff: int = 64
    n_head: int = 2
    n_layer: int = 1


def build_projector(path: Path, *kinds: str, change: Mapping[str, int] | None = None, n_text: int = N_TEXT) -> Path:
    """Write a projector of these kinds to `path` and return it. `change` replaces numbers in its header."""
    writer = gguf.GGUFWriter(str(path), "clip")
    writer.add_type("mmproj")
    writer.add_name("tiny-random-mmproj")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_bool("clip.has_vision_encoder", "ultravox" not in kinds or len(kinds) > 1)
    writer.add_bool("clip.has_audio_encoder", "ultravox" in kinds)
    projector = _Projector(writer, np.random.default_rng(0), Encoder(n_text), change or {})
    for kind in kinds:
        getattr(projector, kind)()
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@dataclass(frozen=True, slots=True)
class _Projector:
    writer: gguf.GGUFWriter
    rng: np.random.Generator
    encoder: Encoder
    change: Mapping[str, int]

    def gemma3(self) -> None:
        """A SigLIP encoder, average pooling, one matrix."""
        n_embd, patch, n_side = self.encoder.n_embd, 4, 16
        self._vision("gemma3", {"image_size": patch * n_side, "patch_size": patch, "projector.scale_factor": 4})
        self.writer.add_tensor("v.patch_embd.weight", self._random(n_embd, 3, patch, patch, std=0.2))
        self.writer.add_tensor("v.patch_embd.bias", zeros(n_embd))
        self.writer.add_tensor("v.position_embd.weight", self._random(n_side**2, n_embd, std=0.05))
        self._transformer("v")
        self.writer.add_tensor("mm.soft_emb_norm.weight", ones(n_embd))
        self.writer.add_tensor("mm.input_projection.weight", self._random(n_embd, self.encoder.n_text))

    def qwen2vl(self) -> None:
        """Patches of any grid, four of them merged into a token by two matrices."""
        n_embd, patch = self.encoder.n_embd, 4
        self._vision("qwen2vl_merger", {"image_size": 64, "patch_size": patch})
        for name in ("v.patch_embd.weight", "v.patch_embd.weight.1"):  # of two frames; a still image is both
            self.writer.add_tensor(name, self._random(n_embd, 3, patch, patch, std=0.2))
        self._transformer("v")
        for name, rows in (("mm.0", 4 * n_embd), ("mm.2", self.encoder.n_text)):
            self.writer.add_tensor(f"{name}.weight", self._random(rows, 4 * n_embd))
            self.writer.add_tensor(f"{name}.bias", zeros(rows))

    def ultravox(self) -> None:
        """Whisper's encoder, 20 positions stacked into a token, two matrices."""
        writer, n_embd, stack, hidden, n_mel = self.writer, self.encoder.n_embd, 20, 64, 16
        writer.add_string("clip.audio.projector_type", "ultravox")
        self._numbers("audio", {"num_mel_bins": n_mel, "projector.stack_factor": stack})
        for number, n_input in enumerate((n_mel, n_embd), 1):
            kernel = self._random(n_embd, n_input, 3, std=0.1)
            writer.add_tensor(f"a.conv1d.{number}.weight", kernel.astype(np.float16))
            writer.add_tensor(f"a.conv1d.{number}.bias", zeros(n_embd, 1))
        writer.add_tensor("a.position_embd.weight", self._random(1500, n_embd, std=0.05))
        self._transformer("a", key_bias=False)
        writer.add_tensor("mm.a.norm_pre.weight", ones(n_embd * stack))
        writer.add_tensor("mm.a.mlp.1.weight", self._random(2 * hidden, n_embd * stack))
        writer.add_tensor("mm.a.norm_mid.weight", ones(hidden))
        writer.add_tensor("mm.a.mlp.2.weight", self._random(self.encoder.n_text, hidden))

    def _vision(self, projector: str, numbers: dict[str, int]) -> None:
        self.writer.add_string("clip.vision.projector_type", projector)
        self.writer.add_bool("clip.use_gelu", True)
        self.writer.add_array("clip.vision.image_mean", [0.5] * 3)
        self.writer.add_array("clip.vision.image_std", [0.5] * 3)
        self._numbers("vision", numbers)

    def _numbers(self, kind: str, more: dict[str, int]) -> None:
        e = self.encoder
        sizes = {"embedding_length": e.n_embd, "feed_forward_length": e.n_ff, "block_count": e.n_layer}
        numbers = {**sizes, "attention.head_count": e.n_head, "projection_dim": self.encoder.n_text, **more}
        self.writer.add_float32(f"clip.{kind}.attention.layer_norm_epsilon", 1e-6)
        for name, number in numbers.items():
            key = f"clip.{kind}.{name}"
            self.writer.add_uint32(key, self.change.get(key, number))

    def _transformer(self, letter: str, key_bias: bool = True) -> None:
        add, e = self.writer.add_tensor, self.encoder
        for i in range(e.n_layer):
            block = f"{letter}.blk.{i}."
            for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
                add(f"{block}{name}.weight", self._random(e.n_embd, e.n_embd))
                if key_bias or name != "attn_k":
                    add(f"{block}{name}.bias", zeros(e.n_embd))
            add(f"{block}ffn_up.weight", self._random(e.n_ff, e.n_embd))
            add(f"{block}ffn_up.bias", zeros(e.n_ff))
            add(f"{block}ffn_down.weight", self._random(e.n_embd, e.n_ff))
            add(f"{block}ffn_down.bias", zeros(e.n_embd))
            for name in ("ln1", "ln2"):
                self._norm(block + name)
        self._norm(f"{letter}.post_ln")

    def _norm(self, name: str) -> None:
        self.writer.add_tensor(f"{name}.weight", ones(self.encoder.n_embd))
        self.writer.add_tensor(f"{name}.bias", zeros(self.encoder.n_embd))

    def _random(self, *shape: int, std: float | None = None) -> Array:
        deviation = std if std is not None else 1.0 / np.sqrt(shape[-1])
        return (self.rng.standard_normal(shape) * deviation).astype(np.float32)
