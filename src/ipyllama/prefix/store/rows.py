"""What two states have in common: the rows of their first tokens, as llama.cpp writes them.

Prompts that part inside a block have equal rows up to there. The state of the second is then kept as what it does not
share with the first: everything but those rows. Only states of attention have rows: others are never shared.

A state of one sequence, little-endian:

    magic (4) · sequence (4) · parts, each: streams (4): 1 · cells (4)
        · for each cell: position (4) · sequences (4): 1 · sequence (4)
        · V transposed (4) · layers (4)
        · K of each layer: type (4) · bytes of a row (8) · rows
        · V of each layer: the same; transposed: type (4) · bytes of a value (4) · values of a row (4) · values
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ipyllama.errors import BadState

State = NDArray[np.uint8]
_FRONT: Final = 8
_CELL: Final = 12
_LAYERS: Final = struct.Struct("<II")
_ROW: Final = struct.Struct("<iQ")
_VALUES: Final = struct.Struct("<iII")


@dataclass(frozen=True, slots=True)
class Run:
    """Bytes of a state that lie together: `width` times the same for each token, or what is there once."""

    width: int
    unit: int
    """bytes for each token; of what is there once, all"""
    once: bool = False

    def nbytes(self, n_tokens: int) -> int:
        return self.width * (self.unit if self.once else self.unit * n_tokens)


def shared_rest(state: State, base: State, n_tokens: int, n: int) -> State | None:
    """What a state of `n_tokens` does not share with `base`, whose first `n` tokens are the same: `joined` is the
    reverse. None where their rows differ, or are not to be told."""
    try:
        runs = list(_runs(state, n_tokens))
        mine, theirs = _views(state, runs, n_tokens), _views(base, runs, None)
    except BadState:
        return None
    rest = []
    for run, own, other in zip(runs, mine, theirs, strict=True):
        if run.once:
            rest.append(own.ravel())
            continue
        shared = n * run.unit
        if not np.array_equal(own[:, :shared], other[:, :shared]):
            return None
        rest.append(own[:, shared:].ravel())
    return np.concatenate(rest)


def joined(base: State, n: int, rest: State, n_tokens: int, out: State) -> None:
    """Put the state of `n_tokens` together in `out`: the first `n` of them from `base`. Raises `BadState` where it
    does not fit."""
    n_base = _n_cells(base)
    if not n <= min(n_base, n_tokens):
        raise BadState("it shares more than there is")
    runs = list(_runs(base, n_base))
    given, at = _views(base, runs, n_base), 0
    for run, whole, head in zip(runs, _views(out, runs, n_tokens), given, strict=True):
        shared = 0 if run.once else n * run.unit
        size = whole.size - run.width * shared
        if at + size > rest.size:
            raise BadState("it ends early")
        whole[:, :shared] = head[:, :shared]
        whole[:, shared:] = rest[at : at + size].reshape(run.width, -1)
        at += size
    if at != rest.size:
        raise BadState("its length is wrong")


def _views(state: State, runs: list[Run], n_tokens: int | None) -> list[NDArray[np.uint8]]:
    """A row for each of a run's `width`; None: as many tokens as the state says."""
    n = _n_cells(state) if n_tokens is None else n_tokens
    if sum(run.nbytes(n) for run in runs) != state.size:
        raise BadState("its length is wrong")
    views, at = [], 0
    for run in runs:
        size = run.nbytes(n)
        views.append(state[at : at + size].reshape(run.width, -1))
        at += size
    return views


def _n_cells(state: State) -> int:
    """Tokens of the first part. Raises `BadState`."""
    return int(_unpack(_LAYERS, state, _FRONT)[1])


def _runs(state: State, n_tokens: int) -> Iterator[Run]:
    """How a state of so many tokens is laid out. Raises `BadState` where it has other parts than attention."""
    at, before = _FRONT, _FRONT
    while at < state.size:
        streams, cells = _unpack(_LAYERS, state, at)
        at += _LAYERS.size + cells * _CELL
        transposed, layers = _unpack(_LAYERS, state, at)
        if streams != 1 or cells != n_tokens or transposed > 1:
            raise BadState("it is not laid out as attention is")
        yield Run(1, before + _LAYERS.size, once=True)
        yield Run(1, _CELL)
        at, before = at + _LAYERS.size, _LAYERS.size
        for layer in range(2 * layers):
            form = _VALUES if transposed and layer >= layers else _ROW
            _, unit, *width = _unpack(form, state, at)
            yield Run(1, before + form.size, once=True)
            run = Run(width[0] if width else 1, unit)
            yield run
            at, before = at + form.size + run.nbytes(n_tokens), 0
            if run.width < 1 or run.unit < 1 or at > state.size:
                raise BadState("it is not laid out as attention is")


def _unpack(form: struct.Struct, state: State, at: int) -> tuple[int, ...]:
    try:
        return form.unpack_from(state.data, at)
    except struct.error:
        raise BadState("it ends early") from None
