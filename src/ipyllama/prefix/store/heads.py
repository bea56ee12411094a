"""Blocks that begin alike: prompts that part inside a block keep what they have in common once.

Of blocks after the same one with equal rows up to where their tokens part, the first is stored whole. Each other one
holds the rest of its state and where its beginning is, and a note of that, so that evictions need not open it.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from ipyllama.errors import BadState
from ipyllama.ledger import common_prefix
from ipyllama.prefix.keys import Link
from ipyllama.prefix.store.backend import StoreBackend
from ipyllama.prefix.store.block import Block, Head, Origin, encode
from ipyllama.prefix.store.rows import shared_rest

if TYPE_CHECKING:
    from ipyllama.prefix.store.blocks import BlockStore, Entry

SHARED: Final = 16
"""Tokens. Fewer in common are not worth a second file to read."""
SIBLINGS: Final = 32
"""Blocks after the same one that are looked at for the one with most in common: the latest."""
PARENTS: Final = 16
"""Blocks of which it is remembered for a while what follows them."""
_HEAD: Final = re.compile(r"heads/([0-9a-f]{16})-([0-9a-f]{16})")


@dataclass(frozen=True, slots=True)
class _Whole:
    """A block of which all was in its own file when it was looked at."""

    entry: Entry
    link: Link
    origin: Origin

    @classmethod
    def seen(cls, store: BlockStore, entry: Entry) -> _Whole | None:
        with contextlib.suppress(BadState, OSError):  # damaged, or gone in the meantime
            header = store.header(entry)
            return cls(entry, header.link, header.origin) if header.head is None else None
        return None


class _Lately:
    """The latest whole blocks after each of some. To look for them takes long where there are many, so it is done for a
    hundredth of the time at most; in between, what was seen and what was written here since is believed to be all."""

    def __init__(self) -> None:
        self._seen: dict[bytes, tuple[float, list[_Whole]]] = {}

    def after(self, store: BlockStore, parent: bytes) -> list[_Whole]:
        began = time.monotonic()
        until, blocks = self._seen.pop(parent, (0.0, []))
        if began >= until:
            entries = sorted(store.children(parent), key=lambda entry: -entry.used)[:SIBLINGS]
            found = (_Whole.seen(store, entry) for entry in entries)
            blocks = [block for block in found if block is not None and block.link.parent == parent]
            until = began + 100 * (time.monotonic() - began)
        self._seen[parent] = until, blocks
        if len(self._seen) > PARENTS:
            del self._seen[next(iter(self._seen))]
        return blocks

    def wrote(self, block: _Whole) -> None:
        if block.link.parent in self._seen:
            blocks = self._seen[block.link.parent][1]
            blocks.insert(0, block)
            del blocks[SIBLINGS:]

    def used(self, block: _Whole) -> None:
        """It stays among those that are looked at."""
        blocks = self._seen[block.link.parent][1]
        blocks.remove(block)
        blocks.insert(0, block)


class Heads:
    """The notes, each an empty item: which block holds the beginning of which. Both may be gone, and what was written
    anew may have a note of old: the block itself knows."""

    def __init__(self, backend: StoreBackend) -> None:
        self._backend = backend
        self.lately = _Lately()

    def all(self) -> dict[str, list[str]]:
        """The blocks that may hold the beginning, by the block that has it: 16 hex digits of their keys."""
        found: dict[str, list[str]] = {}
        for item in self._backend.items("heads"):
            if match := _HEAD.fullmatch(item.name):
                found.setdefault(match[1], []).append(match[2])
        return found

    def add(self, key: bytes, head: bytes) -> None:
        self._backend.write(f"heads/{key.hex()[:16]}-{head.hex()[:16]}", (), durable=False)

    def drop(self, short: str, head: str) -> None:
        self._backend.delete(f"heads/{short}-{head}")

    def sweep(self, there: Collection[str]) -> None:
        """Forget the notes of blocks that are not `there`, told by 16 hex digits."""
        for short, heads in self.all().items():
            for head in heads if short not in there else ():
                self.drop(short, head)


def holding(heads: Mapping[str, Sequence[str]]) -> set[str]:
    """16 hex digits of the blocks that may hold another's beginning, of what `Heads.all` gives."""
    return {head for each in heads.values() for head in each}


def write_sharing(store: BlockStore, block: Block, parts: Sequence[memoryview], but: str = "") -> int:
    """`store.write(block, parts)`, but what a block after the same one begins with, too, is not stored again; `but` are
    16 hex digits of one that is not to be used. Only inside `store.locked()`."""
    head, rest = _shared(store, block, but) or (None, None)
    if head is not None:
        store.heads.add(block.link.key, head.key)
        parts = encode(block, head, rest)
    nbytes = store.write(block, parts)
    if head is None:
        store.heads.lately.wrote(_Whole(store.entry(block.link, nbytes), block.link, block.origin))
    return nbytes


def release(store: BlockStore, entry: Entry) -> int:
    """Give the beginning that is in this block to another of those that have it, so that it can be deleted; the bytes
    that all of them grow by, which are no more than it has. Only inside `store.locked()`."""
    sharing = [short for short, heads in store.heads.all().items() if entry.short in heads]
    siblings = {other.short: other for other in store.children(bytes.fromhex(entry.parent))} if sharing else {}
    found = []
    for other in (siblings[short] for short in sharing if short in siblings):
        with contextlib.suppress(BadState, OSError):  # whoever wants it is told
            header = store.header(other)
            if header.head is not None and header.head.key == entry.key:
                found.append((header.head.n_tokens, header.link, other))
    grown = 0
    for _, link, other in sorted(found, key=lambda each: -each[0]):  # the first has what the others need
        with contextlib.suppress(BadState):
            block = store.read(link.parent, link.key)
            grown += write_sharing(store, block, encode(block), entry.short) - other.nbytes if block is not None else 0
    for short in sharing:
        store.heads.drop(short, entry.short)
    return grown


def _shared(store: BlockStore, block: Block, but: str) -> tuple[Head, NDArray[np.uint8]] | None:
    """Which block after the same one begins with the same bits, and what is left then. Of that one all is in its own
    file: nothing is put together from three."""
    link = block.link
    siblings = store.heads.lately.after(store, link.parent) if len(link.tokens) >= SHARED else ()
    alike = [
        (common_prefix(other.link.tokens, link.tokens), other)
        for other in siblings
        if other.origin == block.origin and other.link.key != link.key and other.entry.short != but
    ]
    likest = sorted((each for each in alike if each[0] >= SHARED), key=lambda each: -each[0])
    n, best = next((each for each in likest if _Whole.seen(store, each[1].entry) == each[1]), (0, None))
    with contextlib.suppress(BadState):
        found = store.read(link.parent, best.link.key) if best is not None else None
        rest = shared_rest(block.state, found.state, len(link.tokens), n) if found is not None else None
        if best is not None and rest is not None:
            store.touch(best.entry.name)
            store.heads.lately.used(best)
            return Head(best.link.key, n, rest.nbytes), rest
    return None
