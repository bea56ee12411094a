"""A prompt out of parts that were computed once, each in a prompt of its own, and moved to where they stand now.

A part, such as a document after the frame of a prompt, is an exact prefix state like any other: it is saved, found and
deleted as one. To stand in another place its keys are turned (RoPE shift). What it cannot know is what stands before it
there, so the first tokens of each moved part are evaluated anew; the rest is approximate, and nothing of it is saved.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ipyllama import _core
from ipyllama.engine import PIECE, Fusing, Moved, Start, piece_ends
from ipyllama.ledger import Ledger

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ipyllama.prefix.live import Live
    from ipyllama.prefix.store.block import Block

FUSED_IN: Final = 2
"""Sequences that are needed beside the active one."""
Tell = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class _State:
    """What was saved of a part, at the positions of its source."""

    state: NDArray[np.uint8]
    tokens: tuple[int, ...]


class Fuser:
    """Puts one prompt together. The last token of the last part, and what follows it, is left to be evaluated."""

    def __init__(self, live: Live, ledger: Ledger, fusing: Fusing, tell: Tell, n_ctx: int) -> None:
        self._live, self._ledger, self._fusing, self._tell, self._n_ctx = live, ledger, fusing, tell, n_ctx
        self._states: dict[Moved, list[_State]] = {}
        self._moved: dict[Moved, int] = {}  # how many tokens of each part were moved
        self._at_hand: set[Moved] = set()
        self._evaluated = 0

    def run(self) -> Start:
        """As `States.fuse`; what goes wrong leaves the sequence as it is then."""
        first = start = self._live.begin(self._ledger)
        wanted = self._wanted(start)
        self._at_hand = {part for part in wanted if self._load(part)}
        if missing := [part for part in wanted if part not in self._at_hand]:
            for part in missing:
                self._compute(part, first.position)
            start = self._live.begin(self._ledger)
            wanted = self._wanted(start)  # the first one may be where it belongs now
        if wanted and not self._has_room(wanted):
            wanted = []  # all of it is computed then
        if wanted:
            with _core.Sequence(self._live.sequence.context) as there:
                self._move(wanted, there, start.position)
                self._join(wanted, there, start.position)
            self._live.joined(self._ledger)
        found = sum(n for part, n in self._moved.items() if part in self._at_hand)
        computed = max(0, len(self._live) - first.position - found)
        restored = len(self._live) - first.reused - computed
        exact, moved = start.exact and not wanted, sum(self._moved.values())
        return replace(first, restored=restored, computed=computed, exact=exact, moved=moved)

    def _wanted(self, start: Start) -> list[Moved]:
        """The parts that have something to move, after what is there as a cold run has it."""
        return [part for part in self._fusing.parts if self._first(part, start.position) < part.end - 1]

    def _has_room(self, wanted: Sequence[Moved]) -> bool:
        """Whether the context has room for the prompt, and for each part where it comes in."""
        coming = max(sum(len(state.tokens) for state in self._states[part]) for part in wanted)
        return len(self._ledger) + coming <= self._n_ctx

    def _first(self, part: Moved, n_exact: int) -> int:
        """The first position of a part that is moved."""
        return max(n_exact, part.start + self._fusing.recompute)

    def _load(self, part: Moved) -> bool:
        """Bring back what was saved of a part; False where not all of it is at hand."""
        memory, source = self._live.memory, part.source
        began = time.perf_counter()
        links = [link for link in memory.links(source) if link.end < len(source)]
        memory.ask_remote(links)
        found = memory.find(links)
        if not found or found[-1].end < len(source) - 1:
            return False
        found = [each for each in found if each.end > len(source) - part.n]
        blocks: list[Block] = []
        for each in found:
            block = memory.load(each)
            if block is None:
                return False
            blocks.append(block)
        memory.restored(found, blocks, time.perf_counter() - began)
        memory.used(found)
        self._states[part] = [_State(block.state, block.link.tokens) for block in blocks]
        return True

    def _compute(self, part: Moved, n_before: int) -> None:
        """Evaluate a part in its own prompt, which is saved like any other."""
        live, source = self._live, part.source
        end = len(source) - 1
        while len(live) < end or live.held(source.tokens) < end:
            start = live.begin(source)
            if not self._evaluate_from(start.position, source, n_before):
                continue  # what was restored did not prove right, and is gone
        live.finish(source)
        first = len(source) - part.n
        self._states[part] = [_State(live.sequence.save(first, end), source.tokens[first:end])]

    def _evaluate_from(self, position: int, source: Ledger, n_before: int) -> bool:
        for end in piece_ends(source)[:-1]:
            if end > position:
                piece = source.tokens[position:end]
                self._live.evaluate(piece)
                if not self._live.proven(piece):
                    return False
                self._evaluated += len(piece)
                self._tell(min(n_before + self._evaluated, len(self._ledger) - 1))
                position = end
        return True

    def _move(self, parts: Sequence[Moved], there: _core.Sequence, n_exact: int) -> None:
        """Bring the parts, without the tokens that are evaluated anew, into `there`, each at its place. Keys are turned
        at the next step: all of them at once, because that takes as long as turning a few."""
        with _core.Sequence(there.context) as scratch:
            for part in parts:
                first = self._first(part, n_exact)
                for each in self._states.pop(part):
                    scratch.append(each.state, each.tokens)
                scratch.rm(0, first - part.distance)
                scratch.add(0, None, part.distance)
                there.cp(scratch)
                scratch.clear()
                self._moved[part] = part.end - 1 - first

    def _join(self, parts: Sequence[Moved], there: _core.Sequence, n_exact: int) -> None:
        """Append the parts to what is live, and before each what is evaluated."""
        tokens = self._ledger.tokens
        for part in parts:
            first = self._first(part, n_exact)
            for at in range(len(self._live), first, PIECE):
                self._live.join(tokens[at : min(at + PIECE, first)])
            self._live.join(tokens[first : part.end - 1], there, restored=part in self._at_hand)
            self._tell(max(len(self._live), self._evaluated))
