"""What a GGUF file says about its model, read without llama.cpp.

A truncated or damaged file is told apart here, before llama.cpp sees it.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from ipyllama.errors import BadModelFile
from ipyllama.models import sound
from ipyllama.models.parse import ArraySummary, RawGguf, Tensor, Value, parse_gguf
from ipyllama.models.quants import FILE_TYPES, TENSOR_TYPES

_SPLIT = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<parts>\d{5})\.gguf", re.IGNORECASE)
_MAX_PARTS = 1000


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """A model as its file describes it. Sizes are bytes, counts are counts; 0 or "" where the file is silent."""

    path: Path
    paths: tuple[Path, ...]
    """all parts of a split model, else just `path`"""
    kind: str
    """"model", or what else a GGUF can be: "adapter", "mmproj", "vocab", "imatrix" """
    architecture: str
    name: str
    license: str
    quantisation: str
    """like "Q4_K_M"; from `general.file_type`, else the type that holds most bytes"""
    n_params: int
    n_ctx_train: int
    n_vocab: int
    n_embd: int
    n_layer: int
    n_head: int
    """attention heads of a layer; the most, where layers differ"""
    n_head_kv: int | tuple[int, ...]
    """KV heads of every layer, or of each; 0 for a layer without attention"""
    key_length: int
    value_length: int
    causal: bool
    """False for encoders (embedding, reranking), which keep no KV"""
    chat_template: str
    file_size: int
    expected_size: int
    metadata: dict[str, Value] = field(repr=False, compare=False)
    """every key of the file; long arrays only as their length"""
    tensors: tuple[Tensor, ...] = field(repr=False, compare=False)
    """the tensor tables of all parts"""

    @property
    def description(self) -> str:
        """Architecture, parameters and quantisation: "llama, 135M parameters, Q4_1"."""
        scale, unit = (1e9, "B") if self.n_params >= 1e9 else (1e6, "M")
        return f"{self.architecture}, {self.n_params / scale:.3g}{unit} parameters, {self.quantisation}"


def read_header(path: str | os.PathLike[str]) -> GgufHeader:
    """Read and check the header of a GGUF; of a split model, any part stands for the whole.

    Raises BadModelFile: not a GGUF, damaged, truncated, or a part of a split model is missing.
    """
    paths = split_parts(Path(path))
    raws = [parse_cached(part) for part in paths]
    for part, raw in zip(paths, raws, strict=True):
        if raw.file_size < raw.expected_size:
            raise BadModelFile(
                f"{part.name} is truncated: it needs {raw.expected_size:,} bytes, the file has {raw.file_size:,}. "
                "Download it again."
            )
    header = _summarise(paths, raws)
    if header.kind == "model":
        sound.check(paths[0].name, raws, header.key_length)
    return header


def part_names(name: str) -> tuple[str, ...]:
    """The file names of a model: of a split one (`NAME-00001-of-00003.gguf`) those of all parts, else just its own."""
    match = _SPLIT.fullmatch(name)
    n_parts = int(match["parts"]) if match else 0
    if match is None or not 1 <= n_parts <= _MAX_PARTS:
        return (name,)
    return tuple(f"{match['stem']}-{i:05}-of-{n_parts:05}{name[-5:]}" for i in range(1, n_parts + 1))


def split_parts(path: Path) -> tuple[Path, ...]:
    """The files of a model in order. Raises BadModelFile if a part of a split model is missing."""
    parts = tuple(path.with_name(name) for name in part_names(path.name))
    missing = [part.name for part in parts if not os.path.exists(part)]
    if missing and len(parts) > 1:
        raise BadModelFile(
            f"{len(missing)} of {len(parts)} parts of {model_stem(path.name)} are missing, first {missing[0]}. "
            "Put all parts into one folder."
        )
    return parts


def is_later_part(name: str) -> bool:
    """Whether a file name is that of a split model's second or later part."""
    match = _SPLIT.fullmatch(name)
    return match is not None and int(match["part"]) > 1


def model_stem(name: str) -> str:
    """A file name without `.gguf` and without the part number of a split model."""
    match = _SPLIT.fullmatch(name)
    return match["stem"] if match else re.sub(r"\.gguf$", "", name, flags=re.IGNORECASE)


def parse_cached(path: Path) -> RawGguf:
    """Metadata and tensor table of one file; parsed once per version of it."""
    try:
        info = os.stat(path)
    except OSError as error:
        raise BadModelFile(f"{path} cannot be read: {error.strerror}. Check the path and its rights.") from None
    return _parse_version(path, info.st_size, info.st_mtime_ns, info.st_ino)


@lru_cache(maxsize=256)
def _parse_version(path: Path, *version: int) -> RawGguf:
    """Parsing takes some 50 ms for a large vocabulary; a file is known by size, time and inode."""
    return parse_gguf(path)


def _summarise(paths: Sequence[Path], raws: Sequence[RawGguf]) -> GgufHeader:
    meta = raws[0].metadata
    arch = _text(meta, "general.architecture")
    n_embd, n_head = whole_number(meta, f"{arch}.embedding_length"), whole_number(meta, f"{arch}.attention.head_count")
    head = n_embd // n_head if n_head else 0
    tokens = meta.get("tokenizer.ggml.tokens")
    listed = tokens.length if isinstance(tokens, ArraySummary) else len(tokens) if isinstance(tokens, tuple) else 0
    return GgufHeader(
        path=paths[0],
        paths=tuple(paths),
        kind=_kind(raws, arch),
        architecture=arch,
        name=_text(meta, "general.name"),
        license=_text(meta, "general.license"),
        quantisation=_quantisation(raws),
        n_params=sum(t.n_elements for raw in raws for t in raw.tensors),
        n_ctx_train=whole_number(meta, f"{arch}.context_length"),
        n_vocab=whole_number(meta, f"{arch}.vocab_size") or listed,
        n_embd=n_embd,
        n_layer=whole_number(meta, f"{arch}.block_count"),
        n_head=n_head,
        n_head_kv=_heads(meta.get(f"{arch}.attention.head_count_kv"), default=n_head),
        key_length=whole_number(meta, f"{arch}.attention.key_length") or head,
        value_length=whole_number(meta, f"{arch}.attention.value_length") or head,
        causal=meta.get(f"{arch}.attention.causal") is not False,
        chat_template=_text(meta, "tokenizer.chat_template"),
        file_size=sum(raw.file_size for raw in raws),
        expected_size=sum(raw.expected_size for raw in raws),
        metadata=meta,
        tensors=tuple(tensor for raw in raws for tensor in raw.tensors),
    )


def _kind(raws: Sequence[RawGguf], arch: str) -> str:
    if arch == "clip":
        return "mmproj"
    named = _text(raws[0].metadata, "general.type")
    if named not in ("", "model"):
        return named
    return "model" if any(raw.tensors for raw in raws) else "vocab"


def _quantisation(raws: Sequence[RawGguf]) -> str:
    guessed = 1024  # a flag that llama.cpp adds when the file does not say
    file_type = whole_number(raws[0].metadata, "general.file_type", default=-1)
    if file_type & ~guessed in FILE_TYPES and file_type >= 0:
        return FILE_TYPES[file_type & ~guessed]
    weight: Counter[int] = Counter()
    for raw in raws:
        for tensor in raw.tensors:
            weight[tensor.type_id] += tensor.n_bytes or tensor.n_elements
    if not weight:
        return ""
    type_id = weight.most_common(1)[0][0]
    return TENSOR_TYPES[type_id][0] if type_id in TENSOR_TYPES else f"type {type_id}"


def _heads(value: Value | None, default: int) -> int | tuple[int, ...]:
    if isinstance(value, tuple):
        return tuple(max(0, n) for n in value if isinstance(n, int))
    return value if isinstance(value, int) and value >= 0 else default


def whole_number(meta: dict[str, Value], key: str, default: int = 0) -> int:
    """A count in the metadata; anything that cannot be one reads as the default."""
    value = meta.get(key)
    if isinstance(value, tuple):  # one per layer: the largest
        value = max((v for v in value if isinstance(v, int)), default=default)
    return int(value) if isinstance(value, int) and value >= 0 else default


def _text(meta: dict[str, Value], key: str) -> str:
    value = meta.get(key)
    return value if isinstance(value, str) else ""
