"""Models of kinds that need a check of their own: learned positions (gpt2), an encoder and a decoder (t5)."""

from __future__ import annotations

from tiny.layers import Layers, ones, zeros


def gpt2(layers: Layers) -> None:
    """One block; as many positions as the context in training has tokens."""
    s, block = layers.shape, "blk.0."
    layers.writer.add_layer_norm_eps(1e-5)
    layers.tensor("position_embd.weight", layers.random(s.n_ctx, s.n_embd), f32=True)
    for name in ("output_norm", f"{block}attn_norm", f"{block}ffn_norm"):
        layers.tensor(f"{name}.weight", ones(s.n_embd))
        layers.tensor(f"{name}.bias", zeros(s.n_embd))
    for name, rows, columns in (
        ("attn_qkv", 3 * s.n_embd, s.n_embd),
        ("attn_output", s.n_embd, s.n_embd),
        ("ffn_up", s.n_ff, s.n_embd),
        ("ffn_down", s.n_embd, s.n_ff),
    ):
        layers.tensor(f"{block}{name}.weight", layers.random(rows, columns))
        layers.tensor(f"{block}{name}.bias", zeros(rows))


def t5(layers: Layers) -> None:
    """One block on each side."""
    s = layers.shape
    layers.writer.add_layer_norm_rms_eps(1e-6)
    layers.writer.add_relative_attn_buckets_count(32)
    for side, attentions in (("enc", ("attn",)), ("dec", ("attn", "cross_attn"))):
        layers.tensor(f"{side}.output_norm.weight", ones(s.n_embd))
        layers.tensor(f"{side}.blk.0.attn_rel_b.weight", layers.random(32, s.n_head))
        for attention in attentions:
            layers.tensor(f"{side}.blk.0.{attention}_norm.weight", ones(s.n_embd))
            for name in "qkvo":
                layers.tensor(f"{side}.blk.0.{attention}_{name}.weight", layers.random(s.n_embd, s.n_embd))
        layers.tensor(f"{side}.blk.0.ffn_norm.weight", ones(s.n_embd))
        layers.tensor(f"{side}.blk.0.ffn_up.weight", layers.random(s.n_ff, s.n_embd))
        layers.tensor(f"{side}.blk.0.ffn_down.weight", layers.random(s.n_embd, s.n_ff))
