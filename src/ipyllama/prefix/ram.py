"""Blocks in RAM: what another prompt has pushed out of the context, and what was read from disk lately."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable

from ipyllama.prefix.keys import Link
from ipyllama.prefix.store.block import Block


class RamTier:
    """Least recently used blocks go first. Safe from any thread."""

    def __init__(self, bytes_limit: int) -> None:
        self.bytes_limit = bytes_limit
        self._lock = threading.Lock()
        self._blocks: OrderedDict[bytes, Block] = OrderedDict()
        self._nbytes = 0

    def get(self, key: bytes) -> Block | None:
        with self._lock:
            return self._blocks.get(key)

    def children(self, parent: bytes) -> list[Link]:
        """The blocks that follow the block `parent`."""
        with self._lock:
            return [block.link for block in self._blocks.values() if block.link.parent == parent]

    def put(self, block: Block) -> None:
        """Keep a block, unless it is larger than the limit."""
        with self._lock:
            self._drop(block.link.key)
            if block.nbytes <= self.bytes_limit:
                self._blocks[block.link.key] = block
                self._nbytes += block.nbytes
                self._shrink()

    def touch(self, chain: Iterable[bytes]) -> None:
        """A chain was used, given first block first: its end goes before its beginning."""
        with self._lock:
            for key in reversed(list(chain)):
                if key in self._blocks:
                    self._blocks.move_to_end(key)

    def drop(self, key: bytes) -> None:
        with self._lock:
            self._drop(key)

    def reduce(self, bytes_limit: int) -> None:
        """A new limit from now on."""
        with self._lock:
            self.bytes_limit = bytes_limit
            self._shrink()

    def clear(self) -> None:
        with self._lock:
            self._blocks.clear()
            self._nbytes = 0

    def blocks(self) -> list[Block]:
        """All of them, the least recently used first."""
        with self._lock:
            return list(self._blocks.values())

    @property
    def nbytes(self) -> int:
        return self._nbytes

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, key: object) -> bool:
        return key in self._blocks

    def _drop(self, key: bytes) -> None:
        block = self._blocks.pop(key, None)
        if block is not None:
            self._nbytes -= block.nbytes

    def _shrink(self) -> None:
        while self._nbytes > self.bytes_limit:
            self._drop(next(iter(self._blocks)))
