"""What a GGUF file holds, without loading it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipyllama.display import Table, status_table
from ipyllama.display.units import format_bytes, format_count, plural
from ipyllama.errors import BadOption
from ipyllama.models import KV_TYPES, Fit, GgufHeader, default_n_ctx, find_here, fits, kv_bytes
from ipyllama.models.parse import Tensor, Value
from ipyllama.models.quants import TENSOR_TYPES


def inspect(name_or_path: str | os.PathLike[str]) -> GgufInfo:
    """What the file of a model, adapter or projector holds; nothing is loaded and nothing is fetched.

    `name_or_path` is a path or the name of a model on this machine. Raises `ModelNotFound`, and `BadModelFile` for
    what is not a GGUF, is damaged or truncated, or would take the kernel down.
    """
    found = find_here(name_or_path)
    return GgufInfo(found.name, found.header)


@dataclass(frozen=True, slots=True)
class GgufInfo:
    """A GGUF file as its header describes it; a notebook shows it as a table."""

    name: str
    header: GgufHeader
    """everything in plain fields: architecture, quantisation, n_params, n_ctx_train, n_layer ..."""

    @property
    def path(self) -> Path:
        return self.header.path

    @property
    def metadata(self) -> dict[str, Value]:
        """Every key of the file; arrays of over 4,096 elements only as their length."""
        return self.header.metadata

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Name, shape, type, offset and size of each tensor, in the order of the file."""
        return self.header.tensors

    @property
    def tensor_table(self) -> Table:
        """The tensors, for looking at."""
        rows = tuple(
            (tensor.name, " x ".join(map(format_count, tensor.shape)), _type_name(tensor), _size(tensor))
            for tensor in self.tensors
        )
        return Table(("tensor", "shape", "type", "size"), rows, self.name, frozenset({1, 3}), "no tensors")

    def memory(self, n_ctx: int | None = None, kv_type: str = "f16") -> Fit:
        """Estimate of the bytes that a context of `n_ctx` tokens takes with the weights, and whether that fits now.

        `n_ctx` defaults to what `load` would choose; `kv_type` is the type of KV cells: f16, q8_0 ... The part for KV
        is what llama.cpp allocates; buffers for computing are an upper bound. Raises `BadOption`.
        """
        if kv_type not in KV_TYPES:
            raise BadOption(f"kv_type must be one of {', '.join(KV_TYPES)}: got {kv_type!r}")
        if n_ctx is None:
            n_ctx = default_n_ctx(self.header, kv_type=kv_type)
        elif isinstance(n_ctx, bool) or not isinstance(n_ctx, int) or not 1 <= n_ctx <= 1 << 24:
            raise BadOption(f"n_ctx must be a whole number between 1 and {1 << 24:,}: got {n_ctx!r}")
        return fits(self.header, n_ctx, kv_type=kv_type)

    def table(self, n_ctx: int | None = None) -> Table:
        """What matters of it, as facts by name; memory is for `n_ctx` tokens, see `memory`."""
        header = self.header
        facts: dict[str, object] = {"file": header.path, "kind": header.kind, "architecture": header.architecture}
        optional = {
            "name": header.name,
            "license": header.license,
            "quantisation": header.quantisation,
            "parameters": header.n_params and format_count(header.n_params),
            "layers": header.n_layer,
            "vocabulary": header.n_vocab and plural(header.n_vocab, "token"),
            "trained on": header.n_ctx_train and f"{format_count(header.n_ctx_train)} tokens of context",
            "chat template": "yes" if header.chat_template else "none" if header.kind == "model" else "",
        }
        facts |= {name: value for name, value in optional.items() if value}
        facts["size"] = format_bytes(header.file_size)
        facts["holds"] = f"{plural(len(self.tensors), 'tensor')}, {plural(len(self.metadata), 'metadata key')}"
        if header.kind == "model":
            facts |= self._memory_facts(n_ctx)
        return status_table(facts, self.name)

    def _memory_facts(self, n_ctx: int | None) -> dict[str, object]:
        sizes = {kv_type: kv_bytes(self.header, 1024, kv_type) for kv_type in ("f16", "q8_0")}
        kept = ", ".join(f"{format_bytes(size)} as {kv_type}" for kv_type, size in sizes.items())
        return {
            "KV of 1,024 tokens": kept if self.header.causal else "none: it encodes text",
            "memory": self.memory(n_ctx),
        }

    def __str__(self) -> str:
        return str(self.table())

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return self.table()._repr_mimebundle_(include, exclude)

    def __repr__(self) -> str:
        return f"<GgufInfo {self.name}: {self.header.kind}, {self.header.description}>"


def _type_name(tensor: Tensor) -> str:
    return TENSOR_TYPES[tensor.type_id][0] if tensor.type_id in TENSOR_TYPES else f"type {tensor.type_id}"


def _size(tensor: Tensor) -> str:
    return "?" if tensor.n_bytes is None else format_bytes(tensor.n_bytes)
