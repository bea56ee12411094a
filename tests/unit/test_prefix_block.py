"""The file of a block: what is read is what was written, or it is refused."""

from __future__ import annotations

import json
import math
import os
import struct
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from blocks import ORIGIN, ROOT, is_true, make_block, make_chain
from hypothesis import given
from hypothesis import strategies as st

from ipyllama.errors import BadState
from ipyllama.prefix import Block, Origin, Probe
from ipyllama.prefix.keys import link_after
from ipyllama.prefix.store.block import MAGIC, VERSION, encode, read_block, read_header, read_state

TOKENS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=50)


def to_bytes(block: Block) -> bytes:
    return b"".join(encode(block))


def read(content: bytes, out: Any = None) -> Block:
    file = BytesIO(content)
    header = read_header(file, len(content))
    return header.block(read_state(file, header, out)).checked()


@st.composite
def any_block(draw: st.DrawFn) -> Block:
    tokens, start = tuple(draw(TOKENS)), draw(st.integers(0, 10**9))
    ends = sorted(draw(st.sets(st.integers(start + 1, start + len(tokens)), max_size=5)))
    if draw(st.booleans()):
        ends.append(start + len(tokens) + draw(st.integers(1, 300)))  # the piece that the block ends in
    link = link_after(draw(st.binary(min_size=32, max_size=32)), tokens, start, tuple(ends), draw(st.booleans()))
    ids = tuple(draw(st.lists(st.integers(0, 2**31 - 1), max_size=8)))
    probe = Probe(draw(st.integers(0, 10**6)), ids, tuple(float(n) / 3 for n in ids))
    state = np.frombuffer(draw(st.binary(max_size=300)), np.uint8)
    seconds = draw(st.floats(0, 1e9))
    return Block(
        link, state, Origin(draw(st.text()), draw(st.integers(1, 99))), seconds, draw(st.sampled_from([None, probe]))
    )


@given(any_block(), st.booleans())
def test_what_is_read_is_what_was_written(block: Block, into: bool) -> None:
    content = to_bytes(block)
    found = read(content, np.empty(block.nbytes + 5, np.uint8) if into else None)
    assert (found.link, found.origin, found.seconds, found.probe) == (
        block.link,
        block.origin,
        block.seconds,
        block.probe,
    )
    assert np.array_equal(found.state, block.state)
    assert len(content) % 64 == block.nbytes % 64


@given(any_block(), st.data())
def test_no_flipped_bit_gives_another_block(block: Block, data: st.DataObject) -> None:
    content = bytearray(to_bytes(block))
    at = data.draw(st.integers(0, 8 * len(content) - 1))
    content[at // 8] ^= 1 << at % 8
    try:
        found = read(bytes(content))
    except BadState:
        return
    assert found.link == block.link
    assert np.array_equal(found.state, block.state)


def test_no_flipped_bit_of_a_header_says_anything_else() -> None:
    """Whose it is, what it cost and what follows it is not in the key."""
    block = make_block(make_chain(range(3))[0], 100)
    content = to_bytes(block)
    for at in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[at // 8] ^= 1 << at % 8
        try:
            found = read(bytes(damaged))
        except BadState:
            continue
        assert (found.link, found.origin, found.seconds, found.probe) == (block.link, ORIGIN, 1.0, block.probe)
        assert is_true(found)


@given(any_block(), st.data())
def test_what_is_cut_short_or_goes_on_is_refused(block: Block, data: st.DataObject) -> None:
    content = to_bytes(block)
    with pytest.raises(BadState):
        read(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(BadState, match="length"):
        read(content + data.draw(st.binary(min_size=1, max_size=9)))


@given(st.binary(max_size=500))
def test_foreign_files_are_refused(content: bytes) -> None:
    with pytest.raises(BadState):
        read(content)
    with pytest.raises(BadState):
        read(MAGIC + struct.pack("<I", VERSION) + content)


def test_a_future_version_is_named() -> None:
    content = bytearray(to_bytes(make_block(make_chain(range(4))[0])))
    content[8:12] = struct.pack("<I", VERSION + 1)
    with pytest.raises(BadState, match=f"version {VERSION + 1}, and this ipyllama reads up to version {VERSION}"):
        read(bytes(content))


def forged(block: Block, change: Any) -> bytes:
    """A file whose checksums are right and whose header was changed by hand."""
    front, state = encode(block)
    length = struct.unpack_from("<I", front, 12)[0]
    header = json.loads(bytes(front[32 : 32 + length]))
    change(header)
    text = json.dumps(header).encode()
    start = struct.pack("<8sII16s", MAGIC, VERSION, len(text), xxhash.xxh3_128_digest(text)) + text
    return start + bytes(-len(start) % 64) + bytes(state)


HOSTILE: dict[str, Any] = {
    "key": lambda h: h.update(key="00" * 32),
    "parent": lambda h: h.update(parent="11" * 32),
    "tokens": lambda h: h["tokens"].__setitem__(0, 99),
    "no tokens": lambda h: h.update(tokens=[]),
    "huge token": lambda h: h["tokens"].__setitem__(0, 2**40),
    "token is text": lambda h: h["tokens"].__setitem__(0, "x"),
    "start": lambda h: h.update(start=-1),
    "ends": lambda h: h.update(ends=[3, 3]),
    "exact": lambda h: h.update(exact=False),
    "nbytes": lambda h: h.update(nbytes=2**62),
    "less than none": lambda h: h.update(nbytes=-1),
    "seconds": lambda h: h.update(seconds=math.nan),
    "endless": lambda h: h.update(seconds=math.inf),
    "probe": lambda h: h["probe"].update(ids=[1]),
    "probe of nothing": lambda h: h["probe"].update(ids=[-1, 2, 3]),
    "no origin": lambda h: h.pop("origin"),
    "a list": lambda h: h.update(origin=[]),
    "checksum": lambda h: h.update(checksum="x"),
    "deep": lambda h: h.update(probe=json.loads("[" * 900 + "]" * 900)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_header_that_was_made_by_hand_is_refused(name: str) -> None:
    block = make_block(make_chain(range(4))[0])
    assert read(forged(block, lambda header: None)).link == block.link
    with pytest.raises(BadState):
        read(forged(block, HOSTILE[name]))


def test_a_header_that_claims_to_be_huge_is_not_read() -> None:
    class Watched(BytesIO):
        largest = 0

        def read(self, size: int | None = -1, /) -> bytes:
            self.largest = max(self.largest, size or 0)
            return super().read(size)

    file = Watched(struct.pack("<8sII16s", MAGIC, VERSION, 2**32 - 1, bytes(16)))
    with pytest.raises(BadState):
        read_header(file, 2**40)
    assert file.largest == 32


def test_a_state_that_would_fill_the_memory_is_not_read(tmp_path: Path) -> None:
    """A sparse file of 40 GB, its header in order."""
    header = forged(make_block(make_chain(range(4))[0]), lambda header: header.update(nbytes=40 << 30))
    path = tmp_path / "block.kv"
    path.write_bytes(header[:-1000])
    os.truncate(path, len(header) - 1000 + (40 << 30))
    with path.open("rb") as file, pytest.raises(BadState, match="it is larger than any block"):
        read_block(file, path.stat().st_size)


def test_the_states_of_the_tests_can_be_told_apart() -> None:
    first, second = (make_block(link) for link in make_chain(range(8)))
    assert is_true(first)
    assert not is_true(Block(first.link, second.state, ORIGIN, 1.0))
    assert first.link.parent == ROOT
