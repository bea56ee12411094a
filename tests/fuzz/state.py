"""States: whatever the bytes, they are refused by a named error or taken with the positions that they tell."""

from __future__ import annotations

import struct
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
from tiny import build

from fuzz import damage
from fuzz.damage import Spot
from ipyllama import _core
from ipyllama.errors import BadArgument, BadState, DecodeError

ATTENTION, RECURRENT = False, True
KINDS: dict[str, tuple[list[tuple[bool, int]], dict[str, object]]] = {
    "llama": ([(ATTENTION, 2)], {}),
    "llama, V transposed": ([(ATTENTION, 2)], {"flash_attention": 0}),
    "gemma3": ([(ATTENTION, 2), (ATTENTION, 2)], {}),
    "gemma3, window only": ([(ATTENTION, 2), (ATTENTION, 2)], {"swa_full": False}),
    "mamba": ([(RECURRENT, 2)], {}),
    "lfm2": ([(ATTENTION, 2), (RECURRENT, 2)], {}),
    "jamba": ([(ATTENTION, 2), (RECURRENT, 2)], {}),
}
"""the parts of each state, with the number of layers in each; options of the context"""
WAYS = ("restore", "restore", "append", "rewind", "context")
TOKENS = [1, *(262 + n * n % 94 for n in range(99))]
N_BEFORE = 20
"""tokens that the sequence holds before a case"""
GONE = "is empty now"


def case(random: Random, folder: Path) -> str:
    """Hand one damaged state to one way in; then the context has to answer as it did."""
    bench = open_bench(random.choice(list(KINDS)))
    way = random.choice(WAYS)
    sample = random.choice(bench.samples[way])
    state = make(random, bench, way, sample)
    tokens = sample.tokens if random.random() < 0.8 else some_tokens(random, sample.tokens)
    bench.prepare()
    outcome = bench.hand_in(way, state, tokens)
    bench.go_on()
    bench.check_reference()
    return outcome


@dataclass(frozen=True)
class Sample:
    """A sound state, the tokens it is of, and where its numbers are."""

    data: bytes
    tokens: list[int]
    spots: list[Spot]


class Bench:
    """A context with three sequences: one that states go to, a neighbour, and a spare one."""

    def __init__(self, kind: str) -> None:
        self.parts, given = KINDS[kind]
        options = _core.ContextOptions()
        for name, value in {"n_ctx": 256, "n_batch": 128, "n_seq_max": 3, **given}.items():
            setattr(options, name, value)
        with tempfile.TemporaryDirectory() as folder:
            build(kind.partition(",")[0], Path(folder) / "tiny.gguf")
            self.model = _core.Model.load(str(Path(folder) / "tiny.gguf"))
        self.context = _core.Context(self.model, options)
        self.sequence, self.neighbour, self.spare = (_core.Sequence(self.context) for _ in range(3))
        self.sampler = _core.Sampler.chain([_core.Sampler.top_k(40), _core.Sampler.dist(1)])
        self.reference = self.evaluate_reference()
        self.samples = self.make_samples(transposed=given.get("flash_attention") == 0)

    def make_samples(self, transposed: bool) -> dict[str, list[Sample]]:
        samples: dict[str, list[Sample]] = {way: [] for way in WAYS}
        first_partial = 0 if len(self.parts) == 1 else 1
        for n in (1, N_BEFORE, 60, 100):
            self.context.memory.clear()
            if n > N_BEFORE:
                self.sequence.decode(TOKENS[:N_BEFORE])
            self.sequence.decode(TOKENS[len(self.sequence) : n])
            every = Sample(self.sequence.save().tobytes(), TOKENS[:n], [])
            samples["restore"].append(every)
            partial = Sample(self.sequence.save(partial=True).tobytes(), TOKENS[:n], [])
            samples["rewind"].append(partial)
            block = self.sequence.save(min(n - 1, N_BEFORE)).tobytes()
            samples["append"].append(Sample(block, TOKENS[min(n - 1, N_BEFORE) : n], []))
            if n <= N_BEFORE:
                self.spare.cp(self.sequence)
                self.neighbour.decode(TOKENS[:n])
            samples["context"].append(Sample(self.context.save().tobytes(), TOKENS[:n], []))
        return {
            way: [
                Sample(
                    each.data,
                    each.tokens,
                    find_spots(
                        each.data,
                        self.parts[first_partial if way == "rewind" else 0 :],
                        whole=way == "context",
                        transposed=transposed,
                    ),
                )
                for each in samples[way]
            ]
            for way in samples
        }

    def prepare(self) -> None:
        self.context.memory.clear()
        self.neighbour.decode(TOKENS[5:15])
        self.sequence.decode(TOKENS[:N_BEFORE])

    def hand_in(self, way: str, state: bytes, tokens: list[int]) -> str:
        before = self.ledgers()
        expected = {0: tokens}
        try:
            match way:
                case "context":
                    counts = self.context.state_tokens(state)
                    expected = {number: tokens[:n] for number, n in counts.items() if n}
                    self.context.restore(state, expected)
                case "append":
                    self.sequence.append(state, tokens)
                    expected = {0: [*TOKENS[:N_BEFORE], *tokens]}
                case "rewind":
                    self.sequence.rewind(state, tokens)
                case _:
                    self.sequence.restore(state, tokens)
        except (BadState, BadArgument) as error:
            if GONE in str(error):
                assert not len(self.sequence)
                return "refused by llama.cpp"
            assert self.ledgers() == before, "a refused state has changed something"
            return "refused"
        for number, listed in expected.items():
            sequence = (self.sequence, self.neighbour, self.spare)[number]
            positions = sequence.positions
            assert sequence.tokens == listed
            assert positions == sorted(positions)
            assert sequence.pos_max == positions[-1]
            assert not sequence.has_logits
        if way != "context":
            assert self.ledgers()[1] == before[1]
        return f"taken by {way}"

    def ledgers(self) -> list[tuple[list[int], list[int], int, int]]:
        each = (self.sequence, self.neighbour, self.spare)
        return [(one.tokens, one.positions, one.pos_min, one.pos_max) for one in each]

    def go_on(self) -> None:
        """What was taken can be used: a step, a token, a copy, a cut; values that are no numbers stop the sampler."""
        for sequence in (self.sequence, self.neighbour):
            try:
                sequence.decode([300])
                self.sampler.sample(sequence)
                sequence.save()
            except (DecodeError, BadArgument):
                pass

    def check_reference(self) -> None:
        assert self.evaluate_reference() == self.reference, "the context computes something else than before"

    def evaluate_reference(self) -> bytes:
        self.context.memory.clear()
        self.sequence.decode(TOKENS[30:42])
        logits = self.sequence.logits()
        assert np.isfinite(logits).all()
        return logits.tobytes()


@cache
def open_bench(kind: str) -> Bench:
    return Bench(kind)


def find_spots(data: bytes, parts: list[tuple[bool, int]], *, whole: bool, transposed: bool) -> list[Spot]:
    """Where the numbers of a sound state are, and that there is nothing else in it but rows."""
    found, at = list[Spot](), 0

    def take(size: int, kind: str) -> int:
        nonlocal at
        found.append(Spot(at, size, kind))
        at += size
        return int.from_bytes(data[at - size : at], "little")

    if whole:
        length = take(4, "length")
        at += length
    else:
        take(4, "magic"), take(4, "id")
    for recurrent, n_layer in parts:
        if not recurrent:
            take(4, "streams")
        n_cells = take(4, "cells")
        for _ in range(n_cells):
            take(4, "position")
            for _ in range(take(4, "ids")):
                take(4, "id")
        take(4, "transposed"), take(4, "layers")
        for i in range(2 * n_layer):
            take(4, "type")
            if transposed and not recurrent and i >= n_layer:
                n_bytes = take(4, "row") * take(4, "width")
            else:
                n_bytes = take(8, "row")
            at += n_cells * n_bytes
    assert at == len(data)
    return found


def make(random: Random, bench: Bench, way: str, sample: Sample) -> bytes:
    """A damaged state; now and then a sound one."""
    data = bytearray(sample.data)
    match random.choice(("numbers", "numbers", "numbers", "positions", "ids", "flip", "cut", "grow", "splice", "none")):
        case "numbers":
            kinds = random.sample(sorted({spot.kind for spot in sample.spots}), k=1)
            damage.overwrite(random, data, [spot for spot in sample.spots if spot.kind in kinds])
        case "positions":
            move_positions(random, data, [spot for spot in sample.spots if spot.kind == "position"])
        case "ids":
            for spot in random.choices(
                [spot for spot in sample.spots if spot.kind in ("id", "ids")] or [Spot(0, 4, "")]
            ):
                data[spot.at : spot.at + 4] = struct.pack("<i", random.choice((-1, 0, 1, 2, 3, 4, 255, 2**31 - 1)))
        case "flip":
            for _ in range(random.choice((1, 1, 2, 8, 64, 1000))):
                data[random.randrange(len(data))] = random.choice((0, 0xFF, 0x7E, random.randrange(256)))
        case "cut":
            del data[random.choice((random.choice(sample.spots).at, random.randrange(len(data)), len(data) - 1)) :]
        case "grow":
            data += random.choice((b"\0", b"\0\0\0\0", random.randbytes(random.randrange(1, 5000)), sample.data))
        case "splice":
            other = random.choice(open_bench(random.choice(list(KINDS))).samples[random.choice(WAYS)])
            cut = random.choice(other.spots).at
            data[random.choice((cut, random.choice(sample.spots).at)) :] = other.data[cut:]
        case "none" if random.random() < 0.3:
            data[:] = random.choice((b"", random.randbytes(random.randrange(1, 3000))))
    return bytes(data)


def move_positions(random: Random, data: bytearray, spots: list[Spot]) -> None:
    values = [int.from_bytes(data[spot.at : spot.at + 4], "little", signed=True) for spot in spots]
    match random.randrange(6):
        case 0:
            values = [random.choice(values)] * len(values)
        case 1:
            random.shuffle(values)
        case 2:
            by = random.choice((-1, 1, N_BEFORE, 1 << 20, (1 << 30) - 50, (1 << 30) - 101, 1 << 30, (1 << 31) - 101))
            values = [value + by for value in values]
        case 3:
            by = random.choice((2, 3, 1 << 20))
            values = [value * by for value in values]
        case 4:
            values[random.randrange(len(values))] = random.choice((-1, -(1 << 31), (1 << 31) - 1, (1 << 30) - 1, 50, 0))
        case 5:
            values = values[::-1]
    for spot, value in zip(spots, values, strict=True):
        data[spot.at : spot.at + 4] = (value % (1 << 32)).to_bytes(4, "little")


def some_tokens(random: Random, tokens: list[int]) -> list[int]:
    """Fewer, more or other tokens than the state is of."""
    match random.randrange(5):
        case 0:
            return tokens[: random.randrange(len(tokens) + 1)]
        case 1:
            return [*tokens, *TOKENS[: random.choice((1, 5, 100))]]
        case 2:
            return [random.choice((-1, 0, 355, 356, 2**31 - 1, -(2**31))) for _ in tokens]
        case 3:
            return tokens[::-1]
    return []
