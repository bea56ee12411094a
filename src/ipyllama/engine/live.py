"""What is in memory: the active sequence in the context, and other branches waiting in RAM.

The active sequence occupies contiguous cells from 0, because only then are its logits those of a cold run. A
branch that another prompt pushes out is copied to RAM and comes back with one copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ipyllama import _core
from ipyllama.engine.schedule import shared_end
from ipyllama.errors import BadState, CannotTrim, LlamaError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

WORTH_PARKING: Final = 32
"""Tokens. A branch that would lose fewer is cheaper to compute again than to keep."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where a prompt's evaluation starts, and where the KV before it came from."""

    reused: int = 0
    restored: int = 0

    @property
    def position(self) -> int:
        return self.reused + self.restored


@dataclass(frozen=True, slots=True)
class _Parked:
    tokens: tuple[int, ...]
    ends: tuple[int, ...]
    state: NDArray[np.uint8]


class Live:
    """Owned by the engine's worker thread; nobody else touches it."""

    def __init__(self, sequence: _core.Sequence, *, can_trim: bool, window: int, ram_limit: int) -> None:
        """`ram_limit` in bytes bounds the branches that wait in RAM; 0 keeps none. `window` is the model's sliding
        window in tokens, 0 where it has none."""
        self.sequence = sequence
        self._can_trim = can_trim
        self._window = window
        self._ram_limit = ram_limit
        self._tokens: tuple[int, ...] = ()
        self._ends: list[int] = []
        self._parked: list[_Parked] = []  # least recently used first

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def parked_bytes(self) -> int:
        return sum(parked.state.nbytes for parked in self._parked)

    def begin(self, tokens: Sequence[int], ends: Sequence[int]) -> Start:
        """Make the sequence hold the longest start of `tokens` that is at hand; its last token never counts.

        `ends` are the prompt's piece ends. Afterwards `evaluate` continues from the returned position.
        """
        tokens, usable = tuple(tokens), ends[:-1]  # a list never equals a tuple
        live = self._usable(self._tokens, self._ends, tokens, usable)
        best, parked = 0, None
        for candidate in self._parked:
            shared = self._usable(candidate.tokens, candidate.ends, tokens, usable)
            if shared > best:
                best, parked = shared, candidate
        if parked is None or best <= live:
            return Start(reused=self._cut(live))
        return Start(restored=self._cut(best)) if self._restore(parked) else Start()

    def evaluate(self, tokens: Sequence[int]) -> None:
        """One step: append a piece. After `Aborted` the sequence holds whole pieces only."""
        try:
            self.sequence.decode(list(tokens))
        except LlamaError:
            self._drop_partial_piece()
            raise
        self._tokens += tuple(tokens)
        self._ends.append(len(self._tokens))

    def checkpoint(self) -> None:
        """Keep a way back to here where the sequence could not be trimmed to it."""
        if not self._can_trim:
            self._park()

    def clear(self) -> None:
        """Forget the active sequence; what waits in RAM stays."""
        self.sequence.clear()
        self._tokens, self._ends = (), []

    def release(self) -> None:
        """Forget everything, what waits in RAM as well."""
        self.clear()
        self._parked = []

    def _usable(
        self, has: Sequence[int], has_ends: Sequence[int], want: Sequence[int], want_ends: Sequence[int]
    ) -> int:
        shared = shared_end(has, has_ends, want, want_ends)
        return shared if self._can_trim or shared == len(has) else 0

    def _cut(self, n: int) -> int:
        """Drop what follows the first n tokens; returns how many are left: n, or 0."""
        if len(self._tokens) - n >= WORTH_PARKING:
            self._park()
        if n < len(self._tokens):
            self._trim(n)
        return len(self._tokens)

    def _trim(self, n: int) -> None:
        if n == 0:
            self.clear()
            return
        try:
            self.sequence.trim(n)
        except CannotTrim:
            self.clear()
        else:
            self._tokens = self._tokens[:n]
            self._ends = [end for end in self._ends if end <= n]

    def _drop_partial_piece(self) -> None:
        extra = len(self.sequence) - len(self._tokens)
        if extra < 0:  # recurrent state was spoilt on the way
            self.clear()
        elif extra > 0:
            self._trim(len(self._tokens))

    def _park(self) -> None:
        """Copy the active sequence to RAM, in place of its own beginnings; drop the oldest over the limit."""
        if not self._tokens or self._ram_limit == 0:
            return
        if 0 < self._window < len(self._tokens):
            return  # llama.cpp copies no cells outside the window: what came back would not be what is here
        ends = tuple(self._ends)
        parked = next((p for p in self._parked if p.tokens == self._tokens and p.ends == ends), None)
        if parked is None:
            parked = _Parked(self._tokens, ends, self.sequence.save())
            if parked.state.nbytes > self._ram_limit:
                return
            if self._can_trim:  # the longer branch can be cut back to them
                self._parked = [p for p in self._parked if p.ends != ends[: len(p.ends)] or not self._begins_with(p)]
        self._touch(parked)
        while self.parked_bytes > self._ram_limit:
            del self._parked[0]

    def _begins_with(self, parked: _Parked) -> bool:
        return self._tokens[: len(parked.tokens)] == parked.tokens

    def _touch(self, parked: _Parked) -> None:
        self._parked = [p for p in self._parked if p is not parked] + [parked]

    def _restore(self, parked: _Parked) -> bool:
        """Swap the active sequence for one from RAM; False, and empty, where the copy does not fit."""
        self._touch(parked)  # first, so that parking the active one drops it last
        if len(self._tokens) >= WORTH_PARKING:
            self._park()
        self._tokens, self._ends = (), []
        try:
            self.sequence.restore(parked.state, parked.tokens)
        except BadState:
            self._parked = [p for p in self._parked if p is not parked]
            return False
        self._tokens, self._ends = parked.tokens, list(parked.ends)
        return True
