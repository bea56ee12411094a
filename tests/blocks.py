"""Blocks for tests: chains of any tokens whose states are known bytes, so that a lie is seen."""

from __future__ import annotations

import hashlib
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
    return bool(np.array_equal(block.state, true_state(block.link.key, block.nbytes)))


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
