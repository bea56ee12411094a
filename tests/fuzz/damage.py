"""Random damage to a GGUF: where its numbers are, and ways to get them wrong."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from random import Random

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY = 8, 9


@dataclass(frozen=True)
class Spot:
    """`size` bytes that mean something: a count, a length, a type, a value, a shape, an offset."""

    at: int
    size: int
    kind: str


def spots(data: bytes) -> tuple[list[Spot], int]:
    """The spots of a sound GGUF, and where its header ends."""
    found = [Spot(4, 4, "version"), Spot(8, 8, "count"), Spot(16, 8, "count")]
    n_tensors, n_keys = struct.unpack_from("<QQ", data, 8)
    at = 24

    def take(size: int, kind: str) -> int:
        nonlocal at
        found.append(Spot(at, size, kind))
        at += size
        return int.from_bytes(data[at - size : at], "little")

    def text() -> None:
        nonlocal at
        length = take(8, "length")  # moves `at` itself
        at += length

    for _ in range(n_keys):
        text()
        kind = take(4, "type")
        n = 1
        if kind == ARRAY:
            kind, n = take(4, "type"), take(8, "length")
        for i in range(n):
            if kind == STRING:
                text()
            elif i < 4:
                take(SIZES[kind], "value")
            else:
                at += SIZES[kind]
    for _ in range(n_tensors):
        text()
        for _ in range(take(4, "dims")):
            take(8, "shape")
        take(4, "tensor type")
        take(8, "offset")
    return found, at


def number(random: Random, size: int, old: int) -> int:
    """A number of `size` bytes that is likely to hurt."""
    bits = 8 * size
    chosen = random.choice(
        (
            random.randrange(4),
            1 << random.randrange(bits),
            (1 << random.randrange(1, bits + 1)) - 1,
            old ^ 1 << random.randrange(bits),
            old + random.choice((-1, 1, 2, -2)),
            random.randrange(1 << bits),
            -random.randrange(1, 1 << 16),
            old * random.choice((2, 3, 256)),
        )
    )
    return chosen % (1 << bits)


def overwrite(random: Random, data: bytearray, chosen: list[Spot]) -> None:
    """One to three numbers become others."""
    for spot in random.choices(chosen, k=random.choice((1, 1, 2, 3))):
        old = int.from_bytes(data[spot.at : spot.at + spot.size], "little")
        data[spot.at : spot.at + spot.size] = number(random, spot.size, old).to_bytes(spot.size, "little")


def retype(random: Random, data: bytearray, chosen: list[Spot], types: list[int]) -> None:
    """A tensor claims another type that there is, and the file is long enough for it."""
    spot = random.choice(chosen)
    data[spot.at : spot.at + 4] = random.choice(types).to_bytes(4, "little")
    data += bytes(1 << 20)


def flip(random: Random, data: bytearray, header: int) -> None:
    """Bytes of the header become others."""
    for _ in range(random.choice((1, 1, 2, 8, 64))):
        data[random.randrange(header)] = random.randrange(256)


def move(random: Random, data: bytearray, header: int) -> None:
    """A piece of the header goes, or comes twice."""
    a, b = sorted(random.randrange(header) for _ in range(2))
    b = min(b, a + random.choice((1, 8, 100, 10_000)))
    data[a:b] = b"" if random.random() < 0.5 else data[a:b] * 2


def forge(random: Random) -> bytes:
    """A GGUF made up from nothing, with metadata of every type: arrays in arrays and counts without end among it."""
    n_tensors, n_keys = random.choice((0, 1, 3, 1 << 40)), random.choice((1, 3, 20, 1 << 62))
    body = b"".join(_text(random) + _value(random, 0) for _ in range(min(n_keys, 20)))
    for _ in range(min(n_tensors, 3)):
        dims = random.choice((0, 1, 2, 4, 5, 1 << 31))
        shape = b"".join(struct.pack("<Q", number(random, 8, 32)) for _ in range(min(dims, 5)))
        body += _text(random) + struct.pack("<I", dims) + shape
        body += struct.pack("<IQ", random.choice((0, 1, 2, 12, 31, 99)), number(random, 8, 32))
    return (
        b"GGUF" + struct.pack("<IQQ", random.choice((2, 3)), n_tensors, n_keys) + body + bytes(random.choice((0, 999)))
    )


def _text(random: Random) -> bytes:
    known = (b"general.architecture", b"general.alignment", b"llama.block_count", b"tokenizer.ggml.tokens", b"")
    text = random.choice(known) if random.random() < 0.7 else random.randbytes(random.randrange(40))
    length = len(text) if random.random() < 0.95 else number(random, 8, len(text))
    return struct.pack("<Q", length) + text


def _value(random: Random, depth: int) -> bytes:
    kind = random.choice((*SIZES, STRING, ARRAY, ARRAY, 13))
    return struct.pack("<I", kind) + _content(random, kind, depth)


def _content(random: Random, kind: int, depth: int) -> bytes:
    if kind == STRING:
        return _text(random)
    if kind != ARRAY:
        return random.randbytes(SIZES.get(kind, 4))
    item = ARRAY if random.random() < 0.3 else random.choice((*SIZES, STRING))
    n = random.randrange(5)
    items = b"".join(_content(random, item, depth + 1) for _ in range(n)) if depth < 200 else b""
    claimed = n if random.random() < 0.8 else number(random, 8, n)
    return struct.pack("<IQ", item, claimed) + items
