"""What a step has to give, computed without the memory under test."""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
from native.walk.kinds import N_BATCH, Kind, path
from native.walk.reference import Array, Reference
from native.walk.rules import Oracle, Run

from ipyllama import _core


class NumPy:
    """The reference: `made` is what a cell holds, so copies, cuts and shifts cost it nothing and are exact."""

    def __init__(self, arch: str) -> None:
        self._reference = Reference(path(arch))

    def step(self, run: Run, tokens: tuple[int, ...], first: int, wanted: bool) -> tuple[list[object], Array | None]:
        before = np.stack([token.made for token in run.tokens]) if run.tokens else self._reference.empty()
        positions = list(range(first, first + len(tokens)))
        done = self._reference.evaluate(list(tokens), positions, before, [token.pos for token in run.tokens])
        return list(done.cells), done.logits if wanted else None


class Replay:
    """The history of the sequence, again, in a context that has nothing else in it; `made` is a name."""

    def __init__(self, kind: Kind) -> None:
        self._sequence = _core.Sequence(kind.context(1))
        self._moves = kind.attention  # positions mean nothing to recurrent state

    def step(self, run: Run, tokens: tuple[int, ...], first: int, wanted: bool) -> tuple[list[object], Array | None]:
        made: list[object] = [object() for _ in tokens]
        if not wanted:
            return made, None
        self._sequence.clear()
        position: int | None = first
        for evaluated, steps in itertools.groupby((*run.history, *tokens), lambda step: isinstance(step, int)):
            if evaluated:
                self._decode(list(steps), position)
                position = None
                continue
            for what, by in steps:
                if what == "at":
                    position = by
                elif not self._moves:
                    continue
                elif what == "add":
                    self._sequence.add(0, None, by)
                else:
                    self._sequence.div(0, None, by)
        return made, self._sequence.logits()

    def _decode(self, tokens: list[int], position: int | None) -> None:
        for start in range(0, len(tokens), N_BATCH):
            self._sequence.decode(tokens[start : start + N_BATCH], position=position if start == 0 else None)


@cache
def oracle(kind: Kind) -> Oracle:
    """The reference where there is one: it knows what removals and shifts do inside a sequence."""
    return Replay(kind) if kind.recurrent else NumPy(kind.arch)
