"""The state of a prompt in blocks, out and in again, against one copy of the whole: what a store of blocks costs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Bench, Row, Target
from ipyllama import _core
from ipyllama.models import resolve

N_TOKENS: Final = 2000
BLOCK: Final = 256
ROUNDS: Final = 15
PLACES: Final = [(begin, min(begin + BLOCK, N_TOKENS)) for begin in range(0, N_TOKENS, BLOCK)]
CHEAP: Final = Target("ratio", 3)


@dataclass(frozen=True, slots=True)
class Copy:
    """Milliseconds."""

    out: float
    back: float

    @property
    def both(self) -> float:
        return self.out + self.back


class Copies:
    """A sequence of N_TOKENS, and buffers that are used again: the first touch of fresh memory costs more than all."""

    def __init__(self, model: str) -> None:
        options = _core.ContextOptions()
        options.n_ctx, options.n_threads = 4096, 2
        self.sequence = _core.Sequence(_core.Context(_core.Model.load(str(resolve(model).path)), options))
        self.tokens = [1 + n * n % 30_000 for n in range(N_TOKENS)]
        for place in PLACES:
            self.sequence.decode(self.tokens[slice(*place)])
        self.whole = np.zeros(self.sequence.state_size(), np.uint8)
        self.blocks = [np.zeros(self.sequence.state_size(*place), np.uint8) for place in PLACES]

    def in_blocks(self) -> Copy:
        began = time.perf_counter()
        for place, block in zip(PLACES, self.blocks, strict=True):
            self.sequence.save_into(block, *place)
        between = time.perf_counter()
        self.sequence.clear()
        for place, block in zip(PLACES, self.blocks, strict=True):
            self.sequence.append(block, self.tokens[slice(*place)])
        return self.done(began, between)

    def at_once(self) -> Copy:
        began = time.perf_counter()
        self.sequence.save_into(self.whole)
        between = time.perf_counter()
        self.sequence.restore(self.whole, self.tokens)
        return self.done(began, between)

    def done(self, began: float, between: float) -> Copy:
        end = time.perf_counter()
        if self.sequence.tokens != self.tokens:
            raise RuntimeError("not what was to be measured: tokens are missing")
        return Copy(1000 * (between - began), 1000 * (end - between))


def next_logits(copies: Copies) -> NDArray[np.float32]:
    copies.sequence.decode(copies.tokens[:1])
    logits = copies.sequence.logits()
    copies.sequence.trim(N_TOKENS)
    return logits


def measure(bench: Bench) -> Iterator[Row]:
    copies = Copies(bench.model)
    live = next_logits(copies)
    found = bench.interleave({"blocks": copies.in_blocks, "whole": copies.at_once}, ROUNDS)
    copies.in_blocks()
    if not np.array_equal(next_logits(copies), live):
        raise RuntimeError("the blocks do not give the live logits")
    against = f"one copy of {copies.whole.nbytes / 1e6:.0f} MB"
    for name, part in (
        (f"state of {N_TOKENS:,} tokens, {len(PLACES)} blocks", "both"),
        ("  out", "out"),
        ("  in", "back"),
    ):
        ours, whole = (median(getattr(copy, part) for copy in found[way]) for way in ("blocks", "whole"))
        yield Row(name, ours, "ms", whole, against, ours / whole, CHEAP if part == "both" else None)
