"""Blocks that begin alike: prompts that part inside a block keep what they have in common once.

Of blocks after the same one with equal rows up to where their tokens part, the first is stored whole. Each other one
holds the rest of its state and where its beginning is, and a note of that, so that evictions need not open it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from ipyllama.errors import BadState
from ipyllama.ledger import common_prefix
from ipyllama.prefix.store.backend import StoreBackend
from ipyllama.prefix.store.block import Block, Head, encode
from ipyllama.prefix.store.rows import shared_rest

if TYPE_CHECKING:
    from ipyllama.prefix.store.blocks import BlockStore, Entry

SHARED: Final = 16
"""Tokens. Fewer in common are not worth a second file to read."""
SIBLINGS: Final = 32
"""Blocks after the same one that are looked at for the one with most in common: the latest."""
_HEAD: Final = re.compile(r"heads/([0-9a-f]{16})-([0-9a-f]{16})")


class Heads:
    """The notes, each an empty item: which block holds the beginning of which. The latter may be gone."""

    def __init__(self, backend: StoreBackend) -> None:
        self._backend = backend

    def all(self) -> dict[str, str]:
        """The block that holds the beginning, by the block that has it: 16 hex digits of their keys."""
        return {match[1]: match[2] for item in self._backend.items("heads") if (match := _HEAD.fullmatch(item.name))}

    def add(self, key: bytes, head: bytes) -> None:
        self._backend.write(f"heads/{key.hex()[:16]}-{head.hex()[:16]}", (), durable=False)

    def drop(self, short: str, head: str) -> None:
        self._backend.delete(f"heads/{short}-{head}")

    def sweep(self, there: Collection[str]) -> None:
        """Forget the notes of blocks that are not `there`, told by 16 hex digits."""
        for short, head in self.all().items():
            if short not in there:
                self.drop(short, head)


def write_sharing(store: BlockStore, block: Block, parts: Sequence[memoryview]) -> int:
    """`store.write(block, parts)`, but what a block after the same one begins with, too, is not stored again. Only
    inside `store.locked()`."""
    head, rest = _shared(store, block) or (None, None)
    if head is not None:
        store.heads.add(block.link.key, head.key)
        parts = encode(block, head, rest)
    return store.write(block, parts)


def release(store: BlockStore, entry: Entry) -> int:
    """Make the blocks whose beginning is in this one whole in themselves, so that it can be deleted; the bytes that
    they grow by. Only inside `store.locked()`."""
    grown = 0
    for short, head in store.heads.all().items():
        if head == entry.short:
            for other in store.children(bytes.fromhex(entry.parent)):
                if other.short == short:
                    grown += _make_whole(store, other)
            store.heads.drop(short, head)
    return grown


def _make_whole(store: BlockStore, entry: Entry) -> int:
    with contextlib.suppress(BadState, FileNotFoundError):  # whoever wants it is told
        link = store.header(entry).link
        block = store.read(link.parent, link.key)
        return store.write(block) - entry.nbytes if block is not None else 0
    return 0


def _shared(store: BlockStore, block: Block) -> tuple[Head, NDArray[np.uint8]] | None:
    """Which block after the same one begins with the same bits, and what is left then. Of that one all is in its own
    file: nothing is put together from three."""
    link, best, most = block.link, None, SHARED - 1
    for entry in sorted(store.children(link.parent), key=lambda entry: -entry.used)[:SIBLINGS]:
        with contextlib.suppress(BadState, OSError):  # damaged, or gone in the meantime
            header = store.header(entry)
            n = common_prefix(header.link.tokens, link.tokens)
            fits = header.head is None and header.link.parent == link.parent and header.link.key != link.key
            if fits and header.origin == block.origin and n > most:
                best, most = header.link, n
    with contextlib.suppress(BadState):
        found = store.read(best.parent, best.key) if best is not None else None
        if found is not None:
            rest = shared_rest(block.state, found.state, len(link.tokens), most)
            return None if rest is None else (Head(found.link.key, most, rest.nbytes), rest)
    return None
