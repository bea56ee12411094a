"""Blocks that begin alike: what they have in common is stored once, and each is read as it was written."""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xxhash
from blocks import BINDING, ORIGIN, ROOT, attention_state, bound, disk_bytes, is_true, make_block, make_chain
from hypothesis import given
from hypothesis import strategies as st

from ipyllama.errors import BadState
from ipyllama.prefix import Block, LocalBackend, Origin, PrefixMemory, entries, remove
from ipyllama.prefix.keys import Link, link_after
from ipyllama.prefix.store.backend import Item
from ipyllama.prefix.store.block import read_block, read_header
from ipyllama.prefix.store.blocks import BlockStore
from ipyllama.prefix.store.heads import SHARED, SIBLINGS
from ipyllama.prefix.store.rows import joined, shared_rest
from ipyllama.prefix.store.writer import Limits, Writer

FIRST = tuple(range(100, 164))
"""Tokens of the block that comes first."""
TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=40).map(tuple)


def block_of(tokens: Sequence[int], origin: Origin = ORIGIN, parent: bytes = ROOT) -> Block:
    link = link_after(parent, tuple(tokens), 0, (len(tokens),))
    return Block(link, attention_state(tokens), origin, 1.0)


def ending(n: int, end: int, length: int = 64) -> tuple[int, ...]:
    """Tokens of which the first n are those of `FIRST`."""
    return (*FIRST[:n], *(1000 * end + i for i in range(length - n)))


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    return Writer(BlockStore(LocalBackend(tmp_path / "store")), 10**9, lambda problem: None)


def size_of(store: BlockStore, block: Block) -> int:
    return next(entry.nbytes for entry in store.entries() if entry.key == block.link.key)


def read(store: BlockStore, block: Block) -> Block | None:
    return store.read(block.link.parent, block.link.key)


def equal(found: Block | None, block: Block) -> bool:
    return found is not None and found.link == block.link and np.array_equal(found.state, block.state)


# -- rows ---------------------------------------------------------------------------------------------------------


@given(TOKENS, TOKENS, TOKENS, st.booleans(), st.integers(1, 3), st.integers(1, 2))
def test_the_rest_and_the_head_give_the_state(
    head: tuple[int, ...], one: tuple[int, ...], other: tuple[int, ...], transposed: bool, n_layers: int, n_parts: int
) -> None:
    layout = {"transposed": transposed, "n_layers": n_layers, "n_parts": n_parts}
    base, state = attention_state(head + one, **layout), attention_state(head + other, **layout)  # type: ignore[arg-type]
    n_tokens, n = len(head + other), len(head)
    rest = shared_rest(state, base, n_tokens, n)
    assert rest is not None
    assert state.size - rest.size == n_parts * n * (12 + n_layers * (100 + 16))
    out = np.zeros_like(state)
    joined(base, n, rest, n_tokens, out)
    assert np.array_equal(out, state)


@given(TOKENS, st.data())
def test_rows_that_differ_in_a_bit_are_not_shared(tokens: tuple[int, ...], data: st.DataObject) -> None:
    base, state = attention_state(tokens), attention_state(tokens)
    at = data.draw(st.integers(0, state.size - 1))
    state[at] ^= 1 << data.draw(st.integers(0, 7))
    rest = shared_rest(state, base, len(tokens), len(tokens))
    if rest is not None:  # a bit of what is there once: it is kept
        out = np.zeros_like(state)
        joined(base, len(tokens), rest, len(tokens), out)
        assert np.array_equal(out, state)


@given(st.binary(max_size=200), TOKENS, st.data())
def test_what_is_no_attention_is_not_shared_and_does_no_harm(
    content: bytes, tokens: tuple[int, ...], data: st.DataObject
) -> None:
    other, true = np.frombuffer(content, np.uint8), attention_state(tokens)
    cut = true[: data.draw(st.integers(0, true.size - 1))]
    for state in (other, cut):
        assert shared_rest(state, true, len(tokens), 1) is None
        assert shared_rest(true, state, len(tokens), 1) is None
        with pytest.raises(BadState):
            joined(state, 1, true, len(tokens), np.zeros(true.size, np.uint8))
        with pytest.raises(BadState):
            joined(true, len(tokens), state, len(tokens) + 1, np.zeros(true.size, np.uint8))


# -- the store ----------------------------------------------------------------------------------------------------


def test_ten_ends_cost_what_they_do_not_share(writer: Writer) -> None:
    blocks = [block_of(ending(48, end)) for end in range(10)]
    for block in blocks:
        writer.write(block)
    assert all(equal(read(writer.store, block), block) for block in blocks)
    first, *others = [size_of(writer.store, block) for block in blocks]
    per_token = blocks[0].nbytes / 64
    assert first > blocks[0].nbytes
    assert all(size - 16 * per_token < 1500 for size in others), "16 tokens and a header"


def test_the_count_of_bytes_is_what_is_there(writer: Writer, tmp_path: Path) -> None:
    for end in range(4):
        writer.write(block_of(ending(32, end)))
    with writer.store.locked():
        usage = writer.store.usage()
    assert usage is not None
    assert usage.nbytes == disk_bytes(tmp_path / "store")


@pytest.mark.parametrize(
    ("tokens", "shares"),
    [
        (ending(48, 1), True),
        (ending(16, 1), True),
        (ending(15, 1), False),  # not worth it
        (FIRST[:40], True),  # all of it is there
        ((*FIRST, 7, 8, 9), True),  # it goes on
    ],
)
def test_what_is_shared(writer: Writer, tokens: tuple[int, ...], shares: bool) -> None:
    writer.write(block_of(FIRST))
    block = block_of(tokens)
    writer.write(block)
    assert (size_of(writer.store, block) < block.nbytes) is shares
    assert equal(read(writer.store, block), block)


def test_other_bits_and_other_builds_share_nothing(writer: Writer) -> None:
    writer.write(block_of(FIRST))
    other_build = block_of(ending(48, 1), Origin("another", 2))
    state = attention_state(ending(48, 2))
    state[-1 - 32] ^= 1
    state[200] ^= 1  # of a row that the tokens say is the same
    other_bits = replace(block_of(ending(48, 2)), state=state)
    elsewhere = block_of(ending(48, 3), parent=bytes(32))
    for block in (other_build, other_bits, elsewhere):
        writer.write(block)
        assert size_of(writer.store, block) > block.nbytes
        assert equal(read(writer.store, block), block)


def test_memory_to_read_into_is_used(writer: Writer) -> None:
    writer.write(block_of(FIRST))
    block = block_of(ending(48, 1))
    writer.write(block)
    room = np.empty(block.nbytes + 10, np.uint8)
    found = writer.store.fetch(ROOT, block.link.key, room)
    assert found is not None
    assert np.shares_memory(found.block.state, room)
    assert equal(found.checked(), block)


def evicted(store: BlockStore, base: Block) -> None:
    store.backend.delete(next(entry.name for entry in store.entries() if entry.key == base.link.key))


def set_aside(store: BlockStore, base: Block) -> None:
    store.quarantine(base.link.parent, base.link.key)


def made_by_another_build(store: BlockStore, base: Block) -> None:
    store.write(replace(base, origin=Origin("another", 2)))


def a_file_of_noise(store: BlockStore, base: Block) -> None:
    name = next(entry.name for entry in store.entries() if entry.key == base.link.key)
    store.backend.write(name, (memoryview(b"noise"),))


@pytest.mark.parametrize("harm", [evicted, set_aside, made_by_another_build, a_file_of_noise])
def test_without_its_beginning_a_block_is_not_there(writer: Writer, harm: Callable[[BlockStore, Block], None]) -> None:
    base, block = block_of(FIRST), block_of(ending(48, 1))
    writer.write(base)
    writer.write(block)
    harm(writer.store, base)
    fresh = BlockStore(writer.store.backend)
    assert read(fresh, block) is None
    assert not fresh.has(block.link.parent, block.link.key)
    again = Writer(fresh, 10**9, lambda problem: None)
    assert again.write(block), "computed anew"
    assert equal(read(BlockStore(writer.store.backend), block), block)


def test_what_has_lost_its_beginning_goes_by_itself(writer: Writer, tmp_path: Path) -> None:
    base, lost, whole = block_of(FIRST), block_of(ending(48, 1)), block_of(ending(48, 2))
    for block in (base, lost, whole):
        writer.write(block)
    evicted(writer.store, base)
    writer.store.write(whole)  # computed anew: the note of it is of old
    writer.reduce(10**9, None, None)
    assert [entry.key for entry in writer.store.entries()] == [whole.link.key]
    with writer.store.locked():
        usage = writer.store.usage()
    assert usage is not None
    assert usage.nbytes == disk_bytes(tmp_path / "store")


def test_a_note_of_old_harms_nobody(writer: Writer) -> None:
    """What was written anew may begin as another one now: both notes are there, and one of them may be found first."""
    block, base, gone = block_of(ending(48, 1)), block_of(FIRST), block_of(ending(48, 2))
    writer.write(replace(base, seconds=0.0))
    writer.write(block)
    for other in (gone, *(block_of(ending(48, end)) for end in range(3, 40))):
        writer.store.heads.add(block.link.key, other.link.key)
    writer.reduce(10**9, 1 + 1, None)
    assert equal(read(writer.store, block), block)
    assert writer.store.heads.all() == {block.link.key.hex()[:16]: [base.link.key.hex()[:16]]}


@pytest.mark.parametrize("which", [0, 1])
def test_damage_is_found_in_whichever_file_it_is(writer: Writer, tmp_path: Path, which: int) -> None:
    base, block = block_of(FIRST), block_of(ending(48, 1))
    writer.write(base)
    writer.write(block)
    hit = (base, block)[which].link.key.hex()
    path = next(path for path in (tmp_path / "store").rglob("*.kv") if hit in path.name)
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    for at in rng.integers(0, 8 * len(content), 300):
        damaged = bytearray(content)
        damaged[at // 8] ^= 1 << int(at) % 8
        path.write_bytes(damaged)
        store = BlockStore(LocalBackend(tmp_path / "store"))
        try:
            found = store.fetch(ROOT, block.link.key)
            assert found is None or equal(found.checked(), block)
        except BadState:
            continue
        if found is None:  # its header was hit: the block went with it
            path.write_bytes(content)
            writer.write(block)


def test_version_1_is_read(writer: Writer, tmp_path: Path) -> None:
    block = block_of(FIRST)
    writer.write(block)
    path = next((tmp_path / "store").rglob("*.kv"))
    content = bytearray(path.read_bytes())
    content[8:12] = struct.pack("<I", 1)
    path.write_bytes(content)
    assert equal(read(writer.store, block), block)


def forge(path: Path, **changes: object) -> None:
    """Change what a block's header says, checksums and all."""
    content = path.read_bytes()
    magic, version, length, _ = struct.unpack("<8sII16s", content[:32])
    rest = content[32 + length + -(32 + length) % 64 :]
    header = json.dumps(json.loads(content[32 : 32 + length]) | changes).encode()
    front = struct.pack("<8sII16s", magic, version, len(header), xxhash.xxh3_128_digest(header))
    path.write_bytes(front + header + bytes(-(32 + len(header)) % 64) + rest)


def test_no_more_memory_is_taken_than_there_are_bytes(
    writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = block_of(ending(48, 1))
    writer.write(block_of(FIRST))
    writer.write(block)
    path = next(path for path in (tmp_path / "store").rglob("*.kv") if block.link.key.hex() in path.name)
    forge(path, nbytes=1 << 30)
    empty = np.empty
    monkeypatch.setattr(np, "empty", lambda n, *more: empty(n, *more) if n < 1 << 20 else pytest.fail(f"{n} bytes"))
    with pytest.raises(BadState, match="length"):
        read(BlockStore(writer.store.backend), block)


def test_for_a_short_block_the_others_are_not_looked_through(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    writer.write(block_of(FIRST))
    monkeypatch.setattr(writer.store, "children", lambda parent: pytest.fail("there may be thousands"))
    assert writer.write(block_of(FIRST[: SHARED - 1]))


def test_of_many_ends_one_is_whole(writer: Writer) -> None:
    blocks = [block_of(ending(48, end)) for end in range(3 * SIBLINGS)]
    for block in blocks:
        writer.write(block)
    assert [entry.nbytes > blocks[0].nbytes for entry in writer.store.entries()].count(True) == 1


def test_verify_knows_both(writer: Writer) -> None:
    blocks = [block_of(ending(48, end)) for end in range(3)]
    for block in blocks:
        writer.write(block)
    assert writer.store.verify() == []
    assert len(list(writer.store.entries())) == 3


# -- eviction -----------------------------------------------------------------------------------------------------


def test_a_beginning_goes_last(writer: Writer) -> None:
    base = replace(block_of(FIRST), seconds=0.0)  # worth nothing by itself
    blocks = [block_of(ending(48, end)) for end in range(1, 5)]
    for block in (base, *blocks):
        writer.write(block)
    for left in (4, 3, 2, 1):
        writer.reduce(10**9, left, None)
        found = {entry.key for entry in writer.store.entries()}
        assert base.link.key in found
        assert all(equal(read(writer.store, block), block) for block in blocks if block.link.key in found)
    writer.reduce(10**9, 0, None)
    assert list(writer.store.entries()) == []
    assert writer.store.heads.all() == {}


def test_age_spares_what_younger_ones_begin_with(writer: Writer, tmp_path: Path) -> None:
    base, block = block_of(FIRST), block_of(ending(48, 1))
    writer.write(base)
    writer.write(block)
    for path in (tmp_path / "store").rglob("*.kv"):
        if base.link.key.hex() in path.name:
            os.utime(path, (1e9, 1e9))
    writer.reduce(10**9, None, 3600.0)
    assert equal(read(writer.store, base), base)
    assert equal(read(writer.store, block), block)


def test_the_limit_holds_while_ends_are_written(writer: Writer, tmp_path: Path) -> None:
    writer.bytes_limit = 3 * (block_of(FIRST).nbytes + 1000)
    for end in range(40):
        writer.write(block_of(ending(32 if end % 2 else 0, end)))
        assert disk_bytes(tmp_path / "store") <= writer.bytes_limit
    with writer.store.locked():
        usage, _ = writer._evict(Limits(writer.bytes_limit))
    assert usage.nbytes == disk_bytes(tmp_path / "store")


# -- what people delete and keep ------------------------------------------------------------------------------------


@pytest.fixture
def memory(tmp_path: Path) -> PrefixMemory:
    memory = bound(PrefixMemory(tmp_path / "store", ram_limit=0))
    for end in range(3):
        tokens = ending(48, end)
        link = link_after(memory.binding.root, tokens, 0, (len(tokens),))
        memory.save(Block(link, attention_state(tokens), BINDING.origin, 1.0))
    memory.flush()
    return memory


def links(memory: PrefixMemory) -> list[Link]:
    assert memory.store is not None
    return [memory.store.header(entry).link for entry in memory.store.entries()]


def whole(memory: PrefixMemory) -> Link:
    assert memory.store is not None
    for entry in memory.store.entries():
        if memory.store.header(entry).head is None:
            return memory.store.header(entry).link
    raise AssertionError("one is whole")


def test_removing_a_beginning_gives_it_to_another(memory: PrefixMemory, tmp_path: Path) -> None:
    gone, before = whole(memory), disk_bytes(tmp_path / "store")
    assert remove(memory, [gone.key.hex()]).blocks == 1
    assert len(links(memory)) == 2
    assert memory.store is not None
    for link in links(memory):
        found = memory.store.read(link.parent, link.key)
        assert found is not None
        assert np.array_equal(found.state, attention_state(link.tokens))
    assert len(memory.store.heads.all()) == 1
    assert disk_bytes(tmp_path / "store") < before
    with memory.store.locked():
        usage = memory.store.usage()
    assert usage is not None
    assert usage.nbytes == disk_bytes(tmp_path / "store")


def test_removing_all_that_begin_alike_makes_none_whole(memory: PrefixMemory) -> None:
    assert remove(memory, [link.key.hex() for link in links(memory)]).blocks == 3
    assert links(memory) == []


def test_a_pin_holds_the_beginning(memory: PrefixMemory) -> None:
    base = whole(memory)
    pinned = next(link for link in links(memory) if link.key != base.key)
    memory.pin(pinned.key.hex())
    memory.reduce_size(items_limit=0)
    assert {link.key for link in links(memory)} == {base.key, pinned.key}


def test_what_only_shares_with_a_pinned_one_can_be_removed(memory: PrefixMemory) -> None:
    base = whole(memory)
    pinned = next(link for link in links(memory) if link.key != base.key)
    memory.pin(pinned.key.hex())
    shown = {info.name: info.pinned for info in entries(memory)}
    assert [n for name, n in shown.items() if base.key.hex().startswith(name)] == [0]
    assert remove(memory, [base.key.hex()]).blocks == 1
    memory.reduce_size(items_limit=0)
    assert pinned.key in {link.key for link in links(memory)}
    assert memory.store is not None
    found = memory.store.read(pinned.parent, pinned.key)
    assert found is not None
    assert np.array_equal(found.state, attention_state(pinned.tokens))


def test_a_bundle_holds_whole_blocks(memory: PrefixMemory, tmp_path: Path) -> None:
    memory.export(tmp_path / "all.kv")
    other = bound(PrefixMemory(tmp_path / "other", ram_limit=0))
    taken = other.import_(tmp_path / "all.kv")
    assert (taken.stored, dict(taken.refused)) == (3, {})
    assert other.store is not None
    for link in links(memory):
        found = other.store.read(link.parent, link.key)
        assert found is not None
        assert np.array_equal(found.state, attention_state(link.tokens))


def test_a_part_alone_is_no_block(memory: PrefixMemory, tmp_path: Path) -> None:
    """What is not whole is refused where there is nobody to have the other part."""
    base = whole(memory)
    for path in (tmp_path / "store").rglob("*.kv"):
        with path.open("rb") as file:
            size = path.stat().st_size
            if base.key.hex() in path.name:
                assert read_header(file, size).head is None
            else:
                with pytest.raises(BadState, match="another file"):
                    read_block(file, size)


def test_chains_of_other_kinds_are_as_they_were(tmp_path: Path) -> None:
    """States that are not attention's have nothing in common, whatever their tokens."""
    writer = Writer(BlockStore(LocalBackend(tmp_path)), 10**9, lambda problem: None)
    made = [make_block(make_chain(ending(48, end), 64)[0]) for end in range(3)]
    for block in made:
        writer.write(block)
    found = [read(writer.store, block) for block in made]
    assert all(block is not None and is_true(block) for block in found)
    assert all(size_of(writer.store, block) > block.nbytes for block in made)


class SlowToList(LocalBackend):
    """A folder that is looked through slowly, as one with very many files."""

    looks = 0

    def items(self, folder: str) -> Iterator[Item]:
        if folder.startswith("blocks/"):
            self.looks += 1
            time.sleep(0.05)
        return super().items(folder)


def test_many_blocks_after_one_are_not_looked_through_for_each(tmp_path: Path) -> None:
    backend = SlowToList(tmp_path)
    writer = Writer(BlockStore(backend), 10**9, lambda problem: None)
    blocks = [block_of(ending(48, end)) for end in range(60)]
    for block in blocks:
        writer.write(block)
    assert backend.looks < 10
    assert len(writer.store.heads.all()) == len(blocks) - 1, "and all but the first share"
    assert all(equal(read(writer.store, block), block) for block in blocks)


def test_what_was_seen_and_is_gone_since_is_not_shared(tmp_path: Path) -> None:
    writer = Writer(BlockStore(SlowToList(tmp_path)), 10**9, lambda problem: None)
    first, second, third = [block_of(ending(48, end)) for end in range(3)]
    writer.write(first)
    Writer(BlockStore(LocalBackend(tmp_path)), 10**9, lambda problem: None).reduce(10**9, 0, None)  # another process
    writer.write(second)
    writer.write(third)
    assert all(equal(read(writer.store, block), block) for block in (second, third))
    assert list(writer.store.heads.all().values()) == [[second.link.key.hex()[:16]]]
