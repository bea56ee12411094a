"""Blocks for tests: chains of any tokens whose states are known bytes, so that a lie is seen."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ipyllama.prefix import Binding, Block, Cut, LocalBackend, Origin, PrefixMemory, Probe
from ipyllama.prefix.keys import Link, link_after, root_key
from ipyllama.prefix.store.blocks import BlockStore

ORIGIN = Origin("0123456789abcdef", 2)
FINGERPRINT = bytes(range(32))
ROOT = root_key(FINGERPRINT)
BINDING = Binding(FINGERPRINT, Cut(4), ORIGIN, model="tiny", weights="aa", settings={"kv_type": "f16"})


def true_state(key: bytes, nbytes: int) -> NDArray[np.uint8]:
    """The only state that a block of this key may ever be read with."""
    return np.frombuffer(hashlib.shake_128(key).digest(nbytes), np.uint8).copy()


def make_block(link: Link, nbytes: int = 1000, seconds: float = 1.0, origin: Origin = ORIGIN) -> Block:
    probe = Probe(7, (1, 2, 3), (0.5, 0.25, -1.0))
    return Block(link, true_state(link.key, nbytes), origin, seconds, probe)


def make_chain(tokens: Sequence[int], n: int = 4, root: bytes = ROOT) -> list[Link]:
    """Links of `n` tokens each."""
    links: list[Link] = []
    for start in range(0, len(tokens), n):
        part = tuple(tokens[start : start + n])
        parent = links[-1].key if links else root
        links.append(link_after(parent, part, start, (start + len(part),)))
    return links


def number(n: int) -> Link:
    """The n-th of many first blocks, all different."""
    return make_chain((n, n + 1, n + 2))[0]


def is_true(block: Block) -> bool:
    """Made by `make_block` or `make_alike`, and not a bit changed."""
    row = (block.nbytes - 48) // len(block.link.tokens) - 28
    return np.array_equal(block.state, true_state(block.link.key, block.nbytes)) or (
        row > 0 and np.array_equal(block.state, attention_state(block.link.tokens, row))
    )


def attention_state(
    tokens: Sequence[int], row: int = 100, *, transposed: bool = True, n_layers: int = 1, n_parts: int = 1
) -> NDArray[np.uint8]:
    """A state laid out as llama.cpp does, with attention only: K of `row` bytes, V of 8 values of 2 bytes. What stands
    in a row is a function of its token and of all before it."""
    n, ids = len(tokens), np.asarray(tokens, "<i4")
    seen = [ids[: i + 1].tobytes() for i in range(n)]
    parts = [struct.pack("<II", 0x67676D73, 0)]
    for part in range(n_parts):
        parts += [struct.pack("<II", 1, n), *(struct.pack("<iIi", i, 1, 0) for i in range(n))]
        parts.append(struct.pack("<II", transposed, n_layers))
        for layer in range(n_layers):
            parts += [struct.pack("<iQ", 1, row), *_rows(seen, row, f"K{part}.{layer}")]
        for layer in range(n_layers):
            values = b"".join(_rows(seen, 16, f"V{part}.{layer}"))
            if transposed:
                values = np.frombuffer(values, "<u2").reshape(n, 8).T.tobytes()
            parts += [struct.pack("<iII", 1, 2, 8) if transposed else struct.pack("<iQ", 1, 16), values]
    return np.frombuffer(b"".join(parts), np.uint8).copy()


def _rows(seen: Sequence[bytes], nbytes: int, what: str) -> list[bytes]:
    return [hashlib.shake_128(what.encode() + prefix).digest(nbytes) for prefix in seen]


def make_alike(end: int, n: int, row: int) -> Block:
    """First blocks of 64 tokens: their first n are the same, those after them say `end`."""
    tokens = (*range(100, 100 + n), *(1000 * (end + 1) + i for i in range(64 - n)))
    return Block(link_after(ROOT, tokens, 0, (64,)), attention_state(tokens, row), ORIGIN, 1.0)


def local_store(folder: Path) -> BlockStore:
    return BlockStore(LocalBackend(folder))


def bound(memory: PrefixMemory, binding: Binding = BINDING) -> PrefixMemory:
    """The memory of a model that computes so slowly that everything is worth restoring."""
    memory = memory.bind(binding)
    memory.rates.prefill.per_second = 1.0
    return memory


def disk_bytes(folder: Path) -> int:
    """Of all block files, whole or not."""
    files = (path for part in ("blocks", "quarantine", "tmp") for path in (folder / part).rglob("*"))
    total = 0
    for path in files:
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total
