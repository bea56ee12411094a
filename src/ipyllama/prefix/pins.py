"""Pins: prefixes that are kept whatever the limits, with all that they stand on. They lie in the store, for every
process that shares it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from ipyllama.errors import BadOption, StoreError
from ipyllama.prefix.listing import Chains, resolved
from ipyllama.prefix.store.evict import held
from ipyllama.prefix.store.writer import Writer, too_many_pins

if TYPE_CHECKING:
    from ipyllama.prefix.memory import PrefixMemory
    from ipyllama.prefix.store.blocks import BlockStore


def pin(memory: PrefixMemory, wanted: Collection[str]) -> None:
    """As `PrefixMemory.pin`."""
    store, writer = _disk(memory)
    memory.flush()
    chains = Chains(memory)
    ends = {resolved(name, chains.ends) for name in wanted}
    for end in ends:  # what is in RAM only is written first
        for node in reversed(chains.nodes(end)):
            if node.entry is None and node.block is not None:
                writer.write(node.block)
    keys = {bytes.fromhex(end) for end in ends}
    try:
        with store.locked():
            found = list(store.entries())
            there = {entry.key for entry in found}
            if gone := [chains.ends[key.hex()] for key in keys - there]:
                raise BadOption(f"{', '.join(gone)} is not on disk any more: ask again, and it will be")
            names = held(found, store.pins() | keys, store.heads.all())
            total = sum(entry.nbytes for entry in found if entry.name in names)
            if total > writer.bytes_limit:
                raise too_many_pins(total, writer.bytes_limit)
            for key in keys:
                store.pin(key)
    except OSError as error:
        raise StoreError(f"nothing could be pinned: {error.strerror or error}") from error


def unpin(memory: PrefixMemory, wanted: Iterable[str]) -> None:
    """As `PrefixMemory.unpin`."""
    store, writer = _disk(memory)
    chains = Chains(memory)
    ends = {resolved(name, chains.ends) for name in wanted}
    try:
        for key in {node.key for end in ends for node in chains.nodes(end)} & store.pins():
            store.unpin(key)
    except OSError as error:
        raise StoreError(f"the pins could not be taken away: {error.strerror or error}") from error
    writer.resume()  # there may be room again


def pinned_bytes(memory: PrefixMemory) -> int:
    """Bytes on disk that pins hold."""
    if memory.store is None or not (pins := memory.store.pins()):
        return 0
    found = list(memory.store.entries())
    names = held(found, pins, memory.store.heads.all())
    return sum(entry.nbytes for entry in found if entry.name in names)


def _disk(memory: PrefixMemory) -> tuple[BlockStore, Writer]:
    if memory.store is None or memory.writer is None:
        raise BadOption("nothing is kept on disk here, so nothing can be pinned: give a folder, as load(cache=FOLDER)")
    return memory.store, memory.writer
