"""What is in a context's KV cells, and where it came from: kept by the engine's thread, read by anybody.

llama.cpp is not asked: a reader never waits for a step, and never touches what a job works on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

Origin = Literal["reused", "restored", "computed", "generated"]
"""Of the newest prompt: was there already; came back from RAM or disk; was evaluated now. Then what was sampled."""

Spans = tuple[tuple[int, int], ...]
"""Positions, each from the first to before the second."""


@dataclass(frozen=True, slots=True)
class KVRun:
    """Cells that lie together: tokens at positions from `start` on, which these sequences hold."""

    tokens: tuple[int, ...]
    start: int
    sequences: tuple[int, ...]
    origin: Origin

    @property
    def shared(self) -> bool:
        return len(self.sequences) > 1


@dataclass(frozen=True, slots=True)
class KVCell:
    """One cell. `index` counts cells in use, the active sequence's first."""

    index: int
    token: int
    position: int
    sequences: tuple[int, ...]
    origin: Origin


@dataclass(frozen=True, slots=True)
class _Branch:
    """A sequence beside the active one, as `KVBoard.fork` takes it."""

    sequence: int
    prompt: Sequence[int]
    sampled: Sequence[int]


class KVBoard:
    """The engine's thread writes what it has done; `runs` may be asked for from any thread."""

    def __init__(self) -> None:
        self._active: tuple[tuple[int, ...], tuple[int, int, int], Spans] = (), (0, 0, 0), ()
        self._forks: tuple[int, tuple[_Branch, ...]] = 0, ()
        self._listeners: tuple[Callable[[], None], ...] = ()

    def show(self, tokens: tuple[int, ...], reused: int, restored: int, prompt: int, apart: Spans = ()) -> None:
        """The active sequence: its tokens, of which so many were reused, then restored; the prompt ends at `prompt`.
        `apart` are spans that were restored as well, between others that were computed, ascending."""
        self._active = tokens, (reused, reused + restored, prompt), apart
        self._changed()

    def fork(self, n_shared: int, branches: Sequence[tuple[int, Sequence[int], Sequence[int]]]) -> None:
        """Sequences that share the first `n_shared` cells of the active one. Of each: its number, the rest of its
        prompt, and what was sampled for it, the last of which has no KV yet."""
        self._forks = n_shared, tuple(_Branch(*branch) for branch in branches)
        self._changed()

    def listen(self, wake: Callable[[], None]) -> None:
        """Have `wake` called after each change, on the engine's thread: it must be quick."""
        self._listeners += (wake,)

    def forget(self, wake: Callable[[], None]) -> None:
        """Call it no more."""
        self._listeners = tuple(each for each in self._listeners if each != wake)

    def runs(self) -> tuple[KVRun, ...]:
        """What is in the cells, the active sequence's first."""
        (tokens, bounds, apart), (n_shared, branches) = self._active, self._forks
        everyone = (0, *(branch.sequence for branch in branches))
        found = [
            run
            for start, end, sequences in ((0, n_shared, everyone), (n_shared, len(tokens), (0,)))
            for run in _with_spans(_runs(tokens[:end], start, sequences, bounds), apart)
        ]
        for branch in branches:
            prompt, sampled = tuple(branch.prompt), tuple(branch.sampled)[:-1]
            end = n_shared + len(prompt)
            found += _runs((*tokens[:n_shared], *prompt, *sampled), n_shared, (branch.sequence,), (0, 0, end))
        return tuple(found)

    def _changed(self) -> None:
        for wake in self._listeners:
            wake()


def _runs(
    tokens: tuple[int, ...], start: int, sequences: tuple[int, ...], bounds: tuple[int, int, int]
) -> Iterator[KVRun]:
    """The tokens from `start` on, cut where their origin changes."""
    origins: tuple[Origin, ...] = ("reused", "restored", "computed", "generated")
    for origin, bound in zip(origins, (*bounds, len(tokens)), strict=True):
        end = min(bound, len(tokens))
        if start < end:
            yield KVRun(tokens[start:end], start, sequences, origin)
            start = end


def _with_spans(runs: Iterable[KVRun], apart: Spans) -> Iterator[KVRun]:
    """The runs, those that were computed cut where a span was restored."""
    for run in runs:
        at, end = run.start, run.start + len(run.tokens)
        for first, last in apart if run.origin == "computed" else ():
            for upto, origin in ((min(first, end), run.origin), (min(last, end), "restored")):
                if at < upto:
                    yield replace(run, tokens=run.tokens[at - run.start : upto - run.start], start=at, origin=origin)
                    at = upto
        if at < end:
            yield replace(run, tokens=run.tokens[at - run.start :], start=at)


@dataclass(frozen=True, slots=True)
class KVMap:
    """The cells of a context. Of `n_cells` there are, `used` hold something."""

    n_cells: int
    runs: tuple[KVRun, ...]
    model: str = ""
    note: str = ""
    """what is particular about this model's memory"""

    @property
    def used(self) -> int:
        return sum(len(run.tokens) for run in self.runs)

    @property
    def free(self) -> int:
        return max(0, self.n_cells - self.used)

    @property
    def shared(self) -> int:
        """Cells that more than one sequence holds."""
        return sum(len(run.tokens) for run in self.runs if run.shared)

    @property
    def sequences(self) -> dict[int, int]:
        """Tokens of each sequence, by its number; 0 is the active one."""
        numbers = sorted({number for run in self.runs for number in run.sequences})
        return {n: sum(len(run.tokens) for run in self.runs if n in run.sequences) for n in numbers}

    def count(self, origin: Origin) -> int:
        """Cells of this origin."""
        return sum(len(run.tokens) for run in self.runs if run.origin == origin)

    def cells(self) -> Iterator[KVCell]:
        """Every cell in use."""
        index = 0
        for run in self.runs:
            for offset, token in enumerate(run.tokens):
                yield KVCell(index, token, run.start + offset, run.sequences, run.origin)
                index += 1

    def __str__(self) -> str:
        from ipyllama.display.kv import kv_text

        return kv_text(self)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        from ipyllama.display.kv import kv_bundle

        return kv_bundle(self)
