"""The rest of the rules: what can be saved, and what is there after it was brought back."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from native.walk.rules import Memory, Refused, Run

from ipyllama.errors import BadArgument, BadState, CannotTrim


@dataclass(frozen=True, slots=True)
class Saved:
    """What is in a saved state: `run`, with all cells of windowed layers from run.hole_end on."""

    run: Run
    partial: bool = False


class MemoryWithStates(Memory):
    """All of what a context's memory does."""

    def applied_shift(self) -> None:
        """Keys are turned before a state is copied out; the logits go."""
        if self.shift_pending:
            self.logits.clear()
            self.shift_pending = False

    def save(self, number: int, p0: int = 0, p1: int | None = None, partial: bool = False) -> Saved:
        run = self.run(number)
        self.applied_shift()
        tokens = run.inside(p0, p1)
        if not tokens:
            raise Refused(BadArgument)
        if self.kind.recurrent and tokens[-1].pos != run.tokens[-1].pos:
            raise Refused(CannotTrim)
        first = self.complete_from(number)
        if not self.resident(number) and first > self.seen_from(tokens):
            raise Refused(CannotTrim)
        copied_from = max(first, tokens[-1].pos + 1 - self.kind.window if self.kind.window else 0)
        return Saved(Run(tuple(tokens), max(copied_from, tokens[0].pos), run.history), partial)

    def restore(self, number: int, saved: Saved) -> None:
        self.run(number)
        self._check_room(saved, self._used_without(number))
        self.logits.pop(number, None)
        self.runs[number] = self._fresh(saved.run)

    def append(self, number: int, saved: Saved) -> None:
        run, new = self.run(number), self._fresh(saved.run)
        if run.tokens and run.tokens[-1].pos >= new.tokens[0].pos:
            raise Refused(BadArgument)
        self._check_room(saved, self.used())
        self.logits.pop(number, None)
        hole_end = max(run.hole_end, new.hole_end)
        self.runs[number] = Run((*run.tokens, *new.tokens), hole_end, new.history)

    def rewind(self, number: int, saved: Saved) -> None:
        tokens, n = self.run(number).tokens, len(saved.run.tokens)
        same = [token.token for token in tokens[:n]] == [token.token for token in saved.run.tokens]
        if not self.kind.has_partial or not same or (n < len(tokens) and tokens[n].pos == tokens[n - 1].pos):
            raise Refused(BadArgument)
        self.applied_shift()
        start = saved.run.tokens[-1].pos if self.kind.recurrent else saved.run.hole_end
        named = [token.pos for token in saved.run.tokens if token.pos >= start]  # by the partial state
        kept = [token.pos for token in tokens[:n]]
        if named[-1] != kept[-1] or Counter(named) - Counter(kept):
            raise Refused(BadState)
        complete_from = kept[0]
        if self.kind.window:
            pairs = zip(reversed(named), reversed(kept), strict=False)
            complete_from = [pos for pos, other in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)][-1]
            if complete_from > self.seen_from(tokens[:n]):
                raise Refused(BadState)
        self.logits.pop(number, None)
        hole_end = _hole(kept[0], complete_from)
        self.runs[number] = Run(tokens[:n], hole_end, _first(self.run(number).history, n))

    def save_all(self) -> dict[int, Run]:
        self.applied_shift()
        return {
            number: replace(run, hole_end=self.complete_from(number)) for number, run in self.runs.items() if run.tokens
        }

    def restore_all(self, saved: Mapping[int, Run]) -> None:
        if not set(saved) <= set(self.runs):
            raise Refused(BadArgument)
        self.clear_all()
        cells: dict[int, int] = {}  # sequences that shared one share one again
        for number, run in saved.items():
            old = [token.cell for token in run.tokens]
            numbers = [cells.setdefault(cell, self.new_cell()) for cell in old]
            self.runs[number] = self._fresh(run, numbers)

    def _used_without(self, number: int) -> int:
        return replace(self, runs={other: run for other, run in self.runs.items() if other != number}).used()

    def _check_room(self, saved: Saved, used: int) -> None:
        if self.kind.attention and used + len(saved.run.tokens) > self.kind.n_ctx:
            raise Refused(BadState)

    def _fresh(self, run: Run, cells: list[int] | None = None) -> Run:
        """The same in cells of its own. Recurrent state alone knows its last position: the others are counted back."""
        numbers = cells or [self.new_cell() for _ in run.tokens]
        tokens = tuple(token._replace(cell=cell) for token, cell in zip(run.tokens, numbers, strict=True))
        if not self.kind.attention:
            last = run.tokens[-1].pos - len(tokens) + 1
            tokens = tuple(token._replace(pos=max(last + i, 0)) for i, token in enumerate(tokens))
        return Run(tokens, _hole(tokens[0].pos, run.hole_end), run.history)


def _first(history: tuple[object, ...], n: int) -> tuple[object, ...]:
    """The history of the first n tokens; what moves a sequence moves all of it."""
    counts = itertools.accumulate(isinstance(step, int) for step in history)
    return tuple(step for step, k in zip(history, counts, strict=True) if k <= n or not isinstance(step, int))


def _hole(first: int, complete_from: int) -> int:
    return 0 if complete_from <= first else complete_from
