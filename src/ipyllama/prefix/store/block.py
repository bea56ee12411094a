"""A block: the KV of a run of tokens, and the file that holds it.

    magic (8) · format version (4) · header length (4) · checksum of the header (16) · header, JSON · zeros to the
    next multiple of 64 · state, as llama.cpp writes it, or the rest of it after the head of another block's

Everything is checked before it is believed: lengths against the file, both checksums, and the key against the tokens.
Nothing is ever unpickled.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, BinaryIO, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from ipyllama.errors import BadState
from ipyllama.prefix.keys import KEY_BYTES, Link, child_key

MAGIC: Final = b"IPYKV\r\n\x1a"
"""The line ends tell of a transfer as text."""
VERSION: Final = 2
"""Version 1 knew no heads."""
MAX_HEADER: Final = 1 << 20
MAX_STATE: Final = 1 << 30
"""Bytes. No model has more in a block; a file that claims to would fill the memory before it is found out."""
_ALIGN: Final = 64
_FRONT: Final = struct.Struct("<8sII16s")


@dataclass(frozen=True, slots=True)
class Probe:
    """What the model said after one more token: it proves a restored state at no cost, since that token is evaluated
    anyway."""

    token: int
    """the token after the block"""
    ids: tuple[int, ...]
    """the likeliest tokens then, best first"""
    logits: tuple[float, ...]
    """their logits"""


@dataclass(frozen=True, slots=True)
class Origin:
    """What made a block. Only equal origins give equal bits."""

    build: str
    """llama.cpp commit, compiler and options, as one digest"""
    n_threads: int


@dataclass(frozen=True, slots=True)
class Block:
    """A link of a chain with its state."""

    link: Link
    state: NDArray[np.uint8]
    origin: Origin
    seconds: float
    """what computing it cost"""
    probe: Probe | None = None

    @property
    def nbytes(self) -> int:
        return self.state.nbytes


@dataclass(frozen=True, slots=True)
class Unchecked:
    """A block whose state was read, and not yet compared with its checksum."""

    block: Block
    checksum: str

    def checked(self) -> Block:
        """The block. Raises `BadState` where its state is damaged."""
        if xxhash.xxh3_128_hexdigest(self.block.state.data) != self.checksum:
            raise BadState("its state is damaged")
        return self.block


@dataclass(frozen=True, slots=True)
class Head:
    """Where the beginning of a block's state is: in another block after the same one."""

    key: bytes
    """the other block's"""
    n_tokens: int
    """so many of its first tokens are this one's, too"""
    rest: int
    """bytes of this block's state that its own file holds: see `store.rows`"""


@dataclass(frozen=True, slots=True)
class Header:
    """What a block's file says about it before the state."""

    link: Link
    origin: Origin
    seconds: float
    probe: Probe | None
    nbytes: int
    """of the whole state"""
    checksum: str
    """of the whole state"""
    head: Head | None

    def block(self, state: NDArray[np.uint8]) -> Unchecked:
        """The block with its whole state."""
        return Unchecked(Block(self.link, state, self.origin, self.seconds, self.probe), self.checksum)


def encode(
    block: Block, head: Head | None = None, rest: NDArray[np.uint8] | None = None
) -> tuple[memoryview, memoryview]:
    """The file of a block: what stands before the state, and the state itself, not copied. With a `head` elsewhere the
    `rest` of the state."""
    header = _header(block, head)
    front = _FRONT.pack(MAGIC, VERSION, len(header), xxhash.xxh3_128_digest(header))
    padding = bytes(-(len(front) + len(header)) % _ALIGN)
    return memoryview(front + header + padding), (block.state if rest is None else rest).data


def read_header(file: BinaryIO, size: int) -> Header:
    """The checked header of a file of `size` bytes, which is left at the state. Raises `BadState`."""
    front = file.read(_FRONT.size)
    if len(front) < _FRONT.size:
        raise BadState("it is too short")
    magic, version, length, checksum = _FRONT.unpack(front)
    if magic != MAGIC:
        raise BadState("it is not a block")
    if version not in (1, VERSION):
        raise BadState(f"its format is version {version}, and this ipyllama reads up to version {VERSION}")
    if length > min(MAX_HEADER, size):
        raise BadState("its header is longer than the file")
    text = file.read(length)
    if xxhash.xxh3_128_digest(text) != checksum:
        raise BadState("its header is damaged")
    header = _parsed(text)
    padding = -(_FRONT.size + length) % _ALIGN
    file.read(padding)
    stored = header.nbytes if header.head is None else header.head.rest
    if _FRONT.size + length + padding + stored != size:
        raise BadState("its length is wrong")
    if header.nbytes > MAX_STATE:
        raise BadState("it is larger than any block")
    return header


def read_block(file: BinaryIO, size: int) -> Block:
    """The checked block in a file of `size` bytes that holds all of it. Raises `BadState`, with what is wrong."""
    header = read_header(file, size)
    if header.head is not None:
        raise BadState("a part of it is in another file")
    return header.block(read_state(file, header)).checked()


def read_state(file: BinaryIO, header: Header, out: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
    """What follows the header in a file: the state, or the rest of it. `out` as in `room_for`. Raises `BadState`."""
    n = header.nbytes if header.head is None else header.head.rest
    state = room_for(n, out)
    done = 0
    while done < n:
        if not (more := file.readinto(state.data[done:])):  # type: ignore[attr-defined]  # binary files have it
            raise BadState("it ends early")
        done += more
    return state


def room_for(n: int, out: NDArray[np.uint8] | None) -> NDArray[np.uint8]:
    """Memory of n bytes: the beginning of `out`, if that is large enough."""
    return out[:n] if out is not None and out.nbytes >= n else np.empty(n, np.uint8)


def _parsed(text: bytes) -> Header:
    """The header, whoever wrote it: every value has the right type, and the key is that of the tokens."""
    try:
        found = json.loads(text)
        key, parent = bytes.fromhex(found["key"]), bytes.fromhex(found["parent"])
        start, tokens, ends = int(found["start"]), _whole(found["tokens"]), _whole(found["ends"])
        origin = Origin(str(found["origin"]["build"]), int(found["origin"]["n_threads"]))
        exact = bool(found["exact"])
        known = child_key(parent, tokens, start, ends, exact)
        header = Header(
            Link(key, parent, start, tokens, ends, exact),
            origin,
            float(found["seconds"]),
            _probe(found["probe"]),
            int(found["nbytes"]),
            str(found["checksum"]),
            _head(found.get("head")),
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise BadState("its header cannot be read") from error
    if key != known or not _sound(header):
        raise BadState("its key is not that of its tokens")
    return header


def _sound(header: Header) -> bool:
    """True if positions and amounts can be: a checksum tells of damage, not of who wrote it."""
    link, probe, head = header.link, header.probe, header.head
    return (
        bool(link.tokens)
        and link.start >= 0
        and all(a < b for a, b in pairwise((link.start, *link.ends)))
        and all(end <= link.end for end in link.ends[:-1])
        and header.nbytes >= 0
        and 0 <= header.seconds < math.inf
        and (probe is None or (len(probe.ids) == len(probe.logits) and min(probe.ids, default=0) >= 0))
        and (head is None or _sound_head(head, header))
    )


def _sound_head(head: Head, header: Header) -> bool:
    return (
        len(head.key) == KEY_BYTES
        and head.key != header.link.key
        and 0 < head.n_tokens <= len(header.link.tokens)
        and 0 <= head.rest <= header.nbytes
    )


def _whole(values: list[Any]) -> tuple[int, ...]:
    return tuple(int(value) for value in values)


def _probe(found: dict[str, Any] | None) -> Probe | None:
    if found is None:
        return None
    return Probe(int(found["token"]), _whole(found["ids"]), tuple(float(value) for value in found["logits"]))


def _head(found: dict[str, Any] | None) -> Head | None:
    if found is None:
        return None
    return Head(bytes.fromhex(found["key"]), int(found["n_tokens"]), int(found["rest"]))


def _header(block: Block, head: Head | None) -> bytes:
    link = block.link
    content = {
        "key": link.key.hex(),
        "parent": link.parent.hex(),
        "start": link.start,
        "tokens": link.tokens,
        "ends": link.ends,
        "exact": link.exact,
        "origin": asdict(block.origin),
        "seconds": block.seconds,
        "probe": asdict(block.probe) if block.probe else None,
        "nbytes": block.nbytes,
        "checksum": xxhash.xxh3_128_hexdigest(block.state.data),
        "head": {**asdict(head), "key": head.key.hex()} if head else None,
    }
    return json.dumps(content, separators=(",", ":")).encode()
