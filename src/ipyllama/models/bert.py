"""A sentence encoder of the BERT family, as sentence-transformers keeps it, as a GGUF.

What a GGUF of architecture `bert` has is what llama.cpp reads (`llama-arch.cpp`, `LLM_ARCH_BERT`) and its own
`convert_hf_to_gguf.py` writes.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ipyllama.models.write import Weights, Written, f32, q8_0, write_gguf

if TYPE_CHECKING:
    from numpy.typing import NDArray

FILES: Final = ("config.json", "vocab.txt", "model.safetensors")
"""What is read of a model's folder."""
_MEAN: Final = 1  # llama.cpp's LLAMA_POOLING_TYPE_MEAN
_Q8_0_FILE: Final = 7  # LLAMA_FTYPE_MOSTLY_Q8_0
_NORMAL, _CONTROL, _UNUSED = 1, 3, 5  # LLAMA_TOKEN_TYPE_*
_SPECIAL: Final = {"bos": "[CLS]", "seperator": "[SEP]", "unknown": "[UNK]", "padding": "[PAD]", "mask": "[MASK]"}
_TOP: Final = {
    "word_embeddings.weight": "token_embd.weight",
    "position_embeddings.weight": "position_embd.weight",
    "token_type_embeddings.weight": "token_types.weight",
    "LayerNorm.weight": "token_embd_norm.weight",
    "LayerNorm.bias": "token_embd_norm.bias",
}
_LAYER: Final = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
_IN_LAYER: Final = re.compile(r"encoder\.layer\.(\d+)\.(.+)\.(weight|bias)")


def convert_bert(folder: Path, target: Path, name: str, license: str) -> None:  # noqa: A002 - the metadata's word
    """Write the model in `folder` as a GGUF: matrices in Q8_0, all else as it is, the mean of its tokens as vector."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    vocabulary = (folder / "vocab.txt").read_text("utf-8").split("\n")[: config["vocab_size"]]
    tensors = dict(_tensors(folder / "model.safetensors"))
    write_gguf(target, {**_sizes(config, name, license), **_tokens(vocabulary, config["type_vocab_size"])}, tensors)


def _sizes(config: dict[str, Any], name: str, license: str) -> dict[str, Written]:  # noqa: A002
    return {
        "general.architecture": "bert",
        "general.type": "model",
        "general.name": name,
        "general.license": license,
        "general.file_type": _Q8_0_FILE,
        "general.quantization_version": 2,
        "bert.block_count": config["num_hidden_layers"],
        "bert.context_length": config["max_position_embeddings"],
        "bert.embedding_length": config["hidden_size"],
        "bert.feed_forward_length": config["intermediate_size"],
        "bert.attention.head_count": config["num_attention_heads"],
        "bert.attention.layer_norm_epsilon": float(config["layer_norm_eps"]),
        "bert.attention.causal": False,
        "bert.pooling_type": _MEAN,
    }


def _tokens(vocabulary: list[str], n_types: int) -> dict[str, Written]:
    ids = {token: i for i, token in enumerate(vocabulary)}
    special = set(_SPECIAL.values())
    kinds = [
        _CONTROL if token in special else _UNUSED if token.startswith("[unused") else _NORMAL for token in vocabulary
    ]
    return {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.pre": "jina-v2-en",  # what upstream's converter writes; WordPiece has no other
        "tokenizer.ggml.tokens": [_as_phantom(token, kind) for token, kind in zip(vocabulary, kinds, strict=True)],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.token_type_count": n_types,
        **{f"tokenizer.ggml.{key}_token_id": ids[token] for key, token in _SPECIAL.items()},
    }


def _as_phantom(token: str, kind: int) -> str:
    """WordPiece marks what goes on inside a word, llama.cpp where a word begins."""
    if kind != _NORMAL:
        return token
    return token[2:] if token.startswith("##") else f"\u2581{token}"


def _tensors(path: Path) -> Iterator[tuple[str, Weights]]:
    for name, values in sorted(_safetensors(path)):
        inner = name.removeprefix("bert.").removeprefix("embeddings.")
        if match := _IN_LAYER.fullmatch(inner):
            layer, what, kind = match.groups()
            yield f"blk.{layer}.{_LAYER[what]}.{kind}", q8_0(values) if values.ndim == 2 else f32(values)
        elif inner in _TOP:
            yield _TOP[inner], q8_0(values) if inner == "word_embeddings.weight" else f32(values)


def _safetensors(path: Path) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """The float32 tensors of a file: a length, a JSON header, raw bytes."""
    content = np.memmap(path, np.uint8, "r")
    (length,) = struct.unpack("<Q", content[:8].tobytes())
    header = json.loads(content[8 : 8 + length].tobytes())
    for name, info in header.items():
        if name != "__metadata__" and info["dtype"] == "F32":
            begin, end = info["data_offsets"]
            yield name, content[8 + length + begin : 8 + length + end].view("<f4").reshape(info["shape"])
