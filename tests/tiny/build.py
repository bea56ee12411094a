"""Builds the models. `python -m tiny.build ARCH OUT.gguf` writes one by hand (from `tests/`)."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path

import gguf
import numpy as np

from tiny.layers import Array, Layers, Shape, ones, zeros
from tiny.others import gpt2, t5
from tiny.vocab import SPACE, add_sentencepiece, add_wordpiece

ARCHS = (
    *("llama", "llama-bigram", "llama-bytes", "gemma3", "qwen2vl", "mamba", "lfm2", "jamba"),
    *("bert", "bert-rank", "gpt2", "t5"),
)
"""llama; llama-bigram (predictable text: a, b, ... z, space, a; no attention, so it cannot show KV faults);
llama-bytes (the same with é漢🙂é..., a token for each byte); gemma3 (window of 32 tokens, every other layer);
qwen2vl (positions of four numbers, M-RoPE); mamba (recurrent); lfm2 and jamba (hybrid); bert (embeddings);
bert-rank (reranker); gpt2 (64 learned positions); t5 (encoder and decoder)"""
_DEEPER = ("gemma3", "lfm2", "jamba")  # both kinds of layer, twice
_OTHERS = {"gpt2": gpt2, "t5": t5}
_CYCLES = {
    "llama-bigram": [*"abcdefghijklmnopqrstuvwxyz", SPACE],
    "llama-bytes": [f"<0x{byte:02X}>" for byte in "é漢🙂".encode()],  # no byte twice
}


def build(
    arch: str,
    path: Path,
    seed: int = 0,
    *,
    f32: bool = False,
    added: Mapping[str, Array] | None = None,
    more: Callable[[gguf.GGUFWriter], None] | None = None,
    **sizes: int,
) -> None:
    """Write the model of `arch` (one of ARCHS) to `path`. Seeds give different weights; `sizes` are those of Shape.

    `f32` writes no matrix as f16, so that arithmetic of any kind agrees with llama.cpp's to five digits. `added` is
    added to the weights that it names (decoders other than llama-bigram and -bytes), which then are f32. The bias of
    ffn_down, which these models have not, counts as zero. `more` adds metadata.
    """
    upstream = "llama" if arch in _CYCLES else {"bert-rank": "bert"}.get(arch, arch)
    writer = gguf.GGUFWriter(str(path), upstream)
    writer.add_type("model")
    writer.add_name(f"tiny-random-{arch}")
    writer.add_license("cc0-1.0")
    rng = np.random.default_rng(seed)
    if upstream == "bert":
        _bert(Layers(writer, rng, Shape(n_ctx=512)), rank=arch == "bert-rank")
    elif arch in _OTHERS:
        _other(Layers(writer, rng, Shape(n_ctx=64, n_layer=1)), _OTHERS[arch])
    elif arch in _CYCLES:
        _bigram(writer, rng, _CYCLES[arch])
    else:
        shape = Shape(**{"n_layer": 4 if arch in _DEEPER else 2, **sizes})
        _decoder(Layers(writer, rng, shape, f32, added or {}), arch)
    if more is not None:
        more(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_sizes(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_context_length(shape.n_ctx)
    writer.add_embedding_length(shape.n_embd)
    writer.add_block_count(shape.n_layer)


def _bert(layers: Layers, rank: bool) -> None:
    writer, shape = layers.writer, layers.shape
    n_embd = shape.n_embd
    _add_sizes(writer, shape)
    writer.add_feed_forward_length(shape.n_ff)
    writer.add_head_count(shape.n_head)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.RANK if rank else gguf.PoolingType.MEAN)
    tokens = add_wordpiece(writer)
    layers.tensor("token_embd.weight", layers.random(len(tokens), n_embd))
    layers.tensor("position_embd.weight", layers.random(shape.n_ctx, n_embd, std=0.05), f32=True)
    layers.tensor("token_types.weight", layers.random(2, n_embd, std=0.05), f32=True)
    layers.tensor("token_embd_norm.weight", ones(n_embd))
    layers.tensor("token_embd_norm.bias", zeros(n_embd))
    for i in range(shape.n_layer):
        layers.encoder(f"blk.{i}.")
    if rank:
        writer.add_classifier_output_labels(["relevance"])
        layers.tensor("cls.weight", layers.random(n_embd, n_embd))
        layers.tensor("cls.bias", zeros(n_embd))
        layers.tensor("cls.output.weight", layers.random(1, n_embd), f32=True)
        layers.tensor("cls.output.bias", zeros(1))


def _bigram(writer: gguf.GGUFWriter, rng: np.random.Generator, cycle: list[str]) -> None:
    """Logits depend on the last token alone: one of the cycle gives the next, everything else the first."""
    tokens = add_sentencepiece(writer)
    n_vocab, head = len(tokens), 32
    shape = Shape(n_embd=n_vocab + -n_vocab % 32, n_layer=1, n_ff=32, n_head=1, n_head_kv=1)
    layers, n_embd = Layers(writer, rng, shape), shape.n_embd
    _add_sizes(writer, shape)
    writer.add_vocab_size(n_vocab)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_feed_forward_length(shape.n_ff)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_rope_dimension_count(head)
    writer.add_key_length(head)
    writer.add_value_length(head)
    line = [tokens.index(piece) for piece in cycle]
    follower = dict(itertools.pairwise(line))
    output = zeros(n_vocab, n_embd)
    for token in range(n_vocab):
        output[follower.get(token, line[0]), token] = 20.0 / np.sqrt(n_embd)
    layers.tensor("token_embd.weight", np.eye(n_vocab, n_embd, dtype=np.float32))
    layers.tensor("output.weight", output)
    layers.tensor("output_norm.weight", ones(n_embd))
    layers.tensor("blk.0.attn_norm.weight", ones(n_embd))
    layers.tensor("blk.0.ffn_norm.weight", ones(n_embd))
    for name in ("attn_q", "attn_k", "attn_v"):
        layers.tensor(f"blk.0.{name}.weight", zeros(head, n_embd))
    layers.tensor("blk.0.attn_output.weight", zeros(n_embd, head))
    layers.tensor("blk.0.ffn_gate.weight", zeros(shape.n_ff, n_embd))
    layers.tensor("blk.0.ffn_up.weight", zeros(shape.n_ff, n_embd))
    layers.tensor("blk.0.ffn_down.weight", zeros(n_embd, shape.n_ff))


def _other(layers: Layers, add: Callable[[Layers], None]) -> None:
    writer, shape = layers.writer, layers.shape
    _add_sizes(writer, shape)
    writer.add_feed_forward_length(shape.n_ff)
    writer.add_head_count(shape.n_head)
    tokens = add_sentencepiece(writer)
    layers.tensor("token_embd.weight", layers.random(len(tokens), shape.n_embd))
    layers.tensor("output.weight", layers.random(len(tokens), shape.n_embd))
    add(layers)


def _decoder(layers: Layers, arch: str) -> None:
    writer, shape = layers.writer, layers.shape
    tokens = add_sentencepiece(writer)
    _add_sizes(writer, shape)
    writer.add_vocab_size(len(tokens))
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_feed_forward_length(0 if arch == "mamba" else shape.n_ff)
    writer.add_head_count(0 if arch == "mamba" else shape.n_head)
    embedding_std = 1.0 / np.sqrt(shape.n_embd) if arch == "gemma3" else 1.0
    layers.tensor("token_embd.weight", layers.random(len(tokens), shape.n_embd, std=embedding_std))
    layers.tensor("token_embd_norm.weight" if arch == "lfm2" else "output_norm.weight", ones(shape.n_embd))
    # not tied to the embedding, so that greedy text does not just repeat a token
    layers.tensor("output.weight", layers.random(len(tokens), shape.n_embd, std=3 / np.sqrt(shape.n_embd)))
    kv_heads = [shape.n_head_kv] * shape.n_layer
    if arch in ("lfm2", "jamba"):
        kv_heads = [0 if i % 2 == 0 else shape.n_head_kv for i in range(shape.n_layer)]
    _add_architecture(layers, arch, kv_heads)
    for i, n_head_kv in enumerate(kv_heads):
        _decoder_layer(layers, arch, f"blk.{i}.", n_head_kv)


def _add_architecture(layers: Layers, arch: str, kv_heads: list[int]) -> None:
    writer, shape = layers.writer, layers.shape
    if arch in ("mamba", "jamba"):
        writer.add_ssm_conv_kernel(4)
        writer.add_ssm_inner_size(2 * shape.n_embd)
        writer.add_ssm_state_size(8)
        writer.add_ssm_time_step_rank(4)
    if arch in ("lfm2", "jamba"):
        writer.add_head_count_kv(kv_heads)
    elif arch != "mamba":
        writer.add_head_count_kv(shape.n_head_kv)
    if arch == "lfm2":
        writer.add_shortconv_l_cache(3)
    if arch == "qwen2vl":
        writer.add_rope_dimension_sections([2, 3, 3, 0])  # pairs of a head that each number turns
    if arch == "gemma3":
        writer.add_sliding_window(shape.n_swa)
        writer.add_sliding_window_pattern([i % 2 == 0 for i in range(shape.n_layer)])
        writer.add_key_length(shape.head)
        writer.add_value_length(shape.head)


def _decoder_layer(layers: Layers, arch: str, block: str, n_head_kv: int) -> None:
    layers.tensor(f"{block}attn_norm.weight", ones(layers.shape.n_embd))
    if arch == "mamba":
        layers.mamba(block)
        return
    if n_head_kv:
        layers.attention(block, n_head_kv)
    elif arch == "jamba":
        layers.mamba(block, norms=True)
    else:
        layers.short_convolution(block)
    if n_head_kv and arch == "lfm2":
        layers.head_norms(block)
    layers.feed_forward(block)
    if f"{block}ffn_down.bias" in layers.added:
        layers.tensor(f"{block}ffn_down.bias", zeros(layers.shape.n_embd))
    if arch == "gemma3":
        layers.tensor(f"{block}post_attention_norm.weight", ones(layers.shape.n_embd))
        layers.tensor(f"{block}post_ffw_norm.weight", ones(layers.shape.n_embd))
        layers.head_norms(block)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write a tiny random model.")
    parser.add_argument("arch", choices=ARCHS)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    build(arguments.arch, arguments.out, arguments.seed)
