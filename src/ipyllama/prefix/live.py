"""What is in memory: the active sequence in the context, and the way to and from what is kept elsewhere.

The active sequence occupies contiguous cells from 0, because only then are its logits those of a cold run. As it is
evaluated, its blocks are handed to the prefix memory; when another prompt comes, the longest beginning that is at hand
is put together from what is live and from blocks that come back.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ipyllama import _core
from ipyllama.engine import Start, piece_ends, shared_end
from ipyllama.errors import BadArgument, BadState, CannotTrim, LlamaError
from ipyllama.ledger import Ledger
from ipyllama.prefix.block import Block, Probe
from ipyllama.prefix.keys import Link
from ipyllama.prefix.memory import Found, PrefixMemory

N_PROBED: Final = 8
"""Logits that prove a restored state."""
TOLERANCE: Final = 0.02
"""Largest difference of a probed logit. On a CPU there is none; a GPU may round otherwise from run to run."""
INSTANT: Final = 0.02
"""Seconds that nobody notices: within them the plan that computes least wins."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """Keep the first `keep` live tokens, then put `found` after them."""

    keep: int
    found: tuple[Found, ...]
    seconds: float
    """predicted, with computing the rest of the prompt"""

    @property
    def end(self) -> int:
        return self.found[-1].link.end if self.found else self.keep


class Live:
    """Owned by the engine's worker thread; nobody else touches it."""

    def __init__(self, sequence: _core.Sequence, memory: PrefixMemory, *, can_trim: bool) -> None:
        self.sequence, self.memory = sequence, memory
        self._can_trim = can_trim
        self._tokens: tuple[int, ...] = ()
        self._ends: list[int] = []
        self._links: list[Link] = []  # of the ledger that is being evaluated
        self._kept = 0  # how many of them the memory has, or will not take
        self._pending: tuple[Link, NDArray[np.uint8]] | None = None  # waits for its probe
        self._restored: tuple[Found, ...] = ()
        self._probe: Probe | None = None  # of the restored state, until the next step
        self._unusable: set[bytes] = set()  # keys that `find` sees and that could not be used for this prompt
        self._buffer = np.empty(0, np.uint8)  # blocks from disk are read into the same memory again and again

    def __len__(self) -> int:
        return len(self._tokens)

    def begin(self, ledger: Ledger) -> Start:
        """Make the sequence hold the longest start of the prompt that is at hand; its last token never counts.

        Afterwards `evaluate` continues from the returned position.
        """
        self._pending = self._probe = None
        self._restored, self._unusable = (), set()
        self._links = self.memory.links(ledger)
        while True:
            plan = self._plan(ledger)
            self._cut(plan.keep)
            if not plan.found or self._append(plan.found):
                break
        self._kept = sum(link.end <= len(self._tokens) for link in self._links)
        reused = min(plan.keep, len(self._tokens))
        return Start(reused, len(self._tokens) - reused)

    def evaluate(self, tokens: Sequence[int]) -> None:
        """One step: append a piece. After `Aborted` the sequence holds whole pieces only."""
        began = time.perf_counter()
        try:
            self.sequence.decode(list(tokens))
        except LlamaError:
            self._drop_partial_piece()
            raise
        if len(tokens) > 1:
            self.memory.rates.prefill.learn(len(tokens), time.perf_counter() - began)
        self._tokens += tuple(tokens)
        self._ends.append(len(self._tokens))
        self._keep_pending(tokens[0] if len(tokens) == 1 else None)
        self._keep_reached()

    def proven(self, tokens: Sequence[int]) -> bool:
        """False if a state was restored and the step that followed, of `tokens`, gave other logits than it once did.

        Everything that it was made of is then quarantined, and the sequence is empty.
        """
        probe, self._probe = self._probe, None
        if probe is None or len(tokens) != 1 or tokens[0] != probe.token:
            return True
        now = self.sequence.logits()[list(probe.ids)]
        if np.allclose(now, probe.logits, rtol=0, atol=TOLERANCE):
            return True
        for found in self._restored:
            self.memory.quarantine(found.link, "the model answers differently after it")
        self.clear()
        return False

    def finish(self, ledger: Ledger) -> None:
        """Hand the rest of what was evaluated to the memory. `ledger` is the prompt and what was sampled."""
        saved_to = self._links[self._kept - 1].end if self._kept else 0
        self._links = self.memory.links(ledger)
        self._kept = sum(link.end <= saved_to for link in self._links)
        self._keep_reached()
        self._keep_pending(None)

    def clear(self) -> None:
        """Forget the active sequence; what is kept elsewhere stays."""
        self.sequence.clear()
        self._tokens, self._ends = (), []

    # -- the way in ---------------------------------------------------------------------------------------

    def _plan(self, ledger: Ledger) -> _Plan:
        """The way to the prompt's state with the least predicted time; of equals, the one that computes least."""
        tokens, ends = ledger.tokens, piece_ends(ledger)[:-1]
        live = shared_end(self._tokens, self._ends, tokens, ends)
        if not self._can_trim and live < len(self._tokens):
            live = 0
        found = self._usable(ledger)
        compute = self.memory.rates.prefill.seconds
        plans = [_Plan(live, (), compute(len(tokens) - live))]
        joints = {0} | {block.link.end for block in found if block.link.end <= live}
        for keep in (0, max(joints)) if self._can_trim or live in joints else (0,):
            blocks = tuple(block for block in found if block.link.start >= keep)
            if blocks:
                rest = compute(len(tokens) - blocks[-1].link.end)
                plans.append(_Plan(keep, blocks, self.memory.restore_seconds(blocks) + rest))
        limit = min(plan.seconds for plan in plans) + INSTANT
        return max((plan for plan in plans if plan.seconds <= limit), key=lambda plan: (plan.end, -plan.seconds))

    def _usable(self, ledger: Ledger) -> list[Found]:
        """Blocks at hand, up to the last after which evaluation can go on."""
        links = takewhile(lambda link: link.end < len(ledger) and link.key not in self._unusable, self._links)
        found = self.memory.find(links)
        while found and not found[-1].link.usable:
            found.pop()
        return found

    def _append(self, wanted: Sequence[Found]) -> bool:
        """Put blocks after what is live: all of them, or none and the sequence is empty."""
        began = time.perf_counter()
        blocks: list[Block] = []
        for found in wanted:
            block = self.memory.load(found, self._room(found))
            if block is None:
                self._unusable.add(found.link.key)
                self.clear()
                return False
            try:
                self.sequence.append(block.state, block.link.tokens)
            except (BadState, BadArgument, CannotTrim) as error:
                self._unusable.add(found.link.key)
                self.memory.quarantine(found.link, str(error))
                self.clear()
                return False
            self._tokens += block.link.tokens
            self._ends.extend(block.link.ends)
            blocks.append(block)
        self._restored, self._probe = tuple(wanted), blocks[-1].probe
        self.memory.restored(wanted, blocks, time.perf_counter() - began)
        return True

    def _room(self, found: Found) -> NDArray[np.uint8]:
        needed = int(len(found.link.tokens) * self.memory.rates.bytes_per_token * 1.5)
        if self._buffer.nbytes < needed:
            self._buffer = np.empty(needed, np.uint8)
        return self._buffer

    def _cut(self, n: int) -> None:
        """Drop what follows the first n tokens; everything, where that cannot be done."""
        if n == len(self._tokens):
            return
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
            try:
                self.sequence.trim(len(self._tokens))
            except CannotTrim:
                self.clear()

    # -- the way out --------------------------------------------------------------------------------------

    def _keep_reached(self) -> None:
        """Copy out the blocks that the sequence has reached the end of."""
        while self._kept < len(self._links) and self._links[self._kept].end <= len(self._tokens):
            link = self._links[self._kept]
            self._kept += 1
            if not self.memory.wants(link):
                continue
            try:
                state = self.sequence.save(link.start, link.end)
            except CannotTrim:  # recurrent state has moved on; the chain ends here
                self._links = self._links[: self._kept - 1]
                return
            if link.end == len(self._tokens):
                self._pending = (link, state)  # the next step may tell what the model says after it
            else:
                self._keep(link, state, None)

    def _keep_pending(self, token: int | None) -> None:
        if self._pending is None:
            return
        (link, state), self._pending = self._pending, None
        probe = None
        if token is not None:
            logits = self.sequence.logits()
            best = np.argsort(logits)[: -N_PROBED - 1 : -1]
            probe = Probe(token, tuple(best.tolist()), tuple(logits[best].tolist()))
        self._keep(link, state, probe)

    def _keep(self, link: Link, state: NDArray[np.uint8], probe: Probe | None) -> None:
        seconds = self.memory.rates.prefill.seconds(len(link.tokens))
        self.memory.save(Block(link, state, self.memory.binding.origin, seconds, probe))
