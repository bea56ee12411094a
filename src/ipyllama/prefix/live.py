"""What is in memory: the active sequence in the context, and the way to and from what is kept elsewhere.

The active sequence occupies contiguous cells from 0, because only then are its logits those of a cold run. As it is
evaluated, its blocks are handed to the prefix memory; when another prompt comes, the longest beginning that is at hand
is put together from what is live and from blocks that come back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import takewhile
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ipyllama import _core, crash
from ipyllama.engine import Fusing, KVBoard, Shift, Start, piece_ends, shared_end
from ipyllama.engine.kv import Spans
from ipyllama.errors import BadArgument, BadState, CannotShift, CannotTrim, LlamaError
from ipyllama.ledger import Ledger, common_prefix
from ipyllama.options import Reuse
from ipyllama.prefix.fuse import Fuser
from ipyllama.prefix.keys import Link
from ipyllama.prefix.memory import PrefixMemory
from ipyllama.prefix.plan import Plan, choose
from ipyllama.prefix.reason import Facts, explain
from ipyllama.prefix.records import Found
from ipyllama.prefix.saving import Saving
from ipyllama.prefix.search import find_to_the_token
from ipyllama.prefix.store.block import Block, Probe, Unchecked

TOLERANCE: Final = 0.02
"""Largest difference of a probed logit. On a CPU there is none; a GPU may round otherwise from run to run."""
TOKEN_TOLERANCE: Final = 2.0
"""The same under token-level reuse, where sums are taken in another order (measured: below 1 on SmolLM2)."""


class Live:
    """Owned by the engine's worker thread; nobody else touches it."""

    def __init__(self, sequence: _core.Sequence, memory: PrefixMemory, n_ctx: int, *, can_trim: bool) -> None:
        self.sequence, self.memory = sequence, memory
        self._n_ctx, self._can_trim = n_ctx, can_trim
        self._tokens: tuple[int, ...] = ()
        self._ends: list[int] = []
        self._exact = 0  # up to here the state is what a cold run's would be, bit for bit
        self._to_the_token = False
        self._saving = Saving(sequence, memory)
        self._links: list[Link] = []  # of the prompt that is being brought together
        self._restored: tuple[Found, ...] = ()
        self._probe: Probe | None = None  # of the restored state, until the next step
        self._moved: int | None = None  # from here on KV was moved: good for this conversation, not to be kept
        self._unusable: set[bytes] = set()  # keys that `find` sees and that could not be used for this prompt
        self._refused = False  # a cut was wanted and could not be made
        self._n_damaged = 0  # entries that were known to be damaged before this prompt
        self.board = KVBoard()
        self._came = 0, 0, 0  # of the newest prompt: reused, restored, all
        self._apart: Spans = ()  # what else of it was restored
        self._rooms = [np.empty(0, np.uint8)] * 2  # blocks from disk are read into the same memory again and again

    def __len__(self) -> int:
        return len(self._tokens)

    def held(self, tokens: Sequence[int]) -> int:
        """As `States.held`."""
        mine = self._tokens  # replaced at each step, never changed
        n = common_prefix(mine, tokens)
        return n if self._can_trim or n == len(mine) else 0

    def warm_up(self) -> None:
        """One token there and back: llama.cpp makes its buffers, and the layout of states is learnt.

        Memory to read blocks into is touched, too: the system gives new memory no faster than a disk its bytes.
        """
        filler = 0
        with crash.running(f"making a context for {self.memory.binding.model}"):
            self.sequence.decode([filler])
            state = self.sequence.save()
            self.sequence.clear()
            self.sequence.append(state, [filler])
            self.sequence.clear()
        if self._can_trim and self.memory.store is not None:
            self.memory.rates.bytes_per_token = state.nbytes
            for number in range(len(self._rooms)):
                self._room(self.memory.binding.cut.grid, number).fill(0)

    def begin(self, ledger: Ledger, reuse: Reuse = "exact", shift: Shift | None = None) -> Start:
        """Make the sequence hold the longest start of the prompt that is at hand; its last token never counts.

        Afterwards `evaluate` continues from the returned position. What goes wrong leaves the sequence empty.
        """
        try:
            came = self._move(shift) if shift else 0
            start = self._begin(ledger, reuse)
            restored = min(came, start.reused)
            moved = max(0, start.position - self._moved) if self._moved is not None else 0
            start = replace(start, reused=start.reused - restored, restored=start.restored + restored, moved=moved)
            self._came, self._apart = (start.reused, start.restored, len(ledger)), ()
            self.board.show(self._tokens, *self._came)
            return start
        except BaseException:
            # It may hold another prompt's tokens still, and `finish` is told of this one.
            self.clear()
            self._saving.follow([], 0)
            raise

    def _begin(self, ledger: Ledger, reuse: Reuse) -> Start:
        self._probe = None
        self._restored, self._unusable, self._refused = tuple[Found, ...](), set(), False
        self._to_the_token = reuse == "token" and self._can_trim
        self._links = self.memory.links(ledger)
        self.memory.ask_remote(link for link in self._links if link.end < len(ledger))
        while True:
            plan = self._plan(ledger)
            self._cut(plan.keep)
            if len(self._tokens) == plan.keep and (not plan.found or self._append(plan.found)):
                break
        n = len(self._tokens)
        # Evaluation that goes on inside a piece is not what a cold run does: exact is then what ends with a piece.
        self._exact = min(self._exact, self._shared(ledger))
        links = self._links if self._exact == n else self._keepable(ledger, self._exact)
        self._saving.follow(links, n, [block.link.key for block in self._restored])
        damaged = self.memory.counts.damaged[self._n_damaged :]
        why = explain(self.memory, ledger, self._n_ctx, Facts(n, "; ".join(damaged), self._refused))
        return Start(plan.keep, n - plan.keep, exact=self._exact == n, why=why)

    def _move(self, shift: Shift) -> int:
        """Cut the range out and move what follows it, if that is at hand; how many tokens had to be restored for it.

        Where it cannot be done the prompt is begun like any other.
        """
        found = self._begin(shift.before, "token")
        if len(self._tokens) <= shift.end:
            return 0
        try:
            self.sequence.rm(shift.start, shift.end)
            self.sequence.add(shift.end, None, shift.start - shift.end)
        except (CannotTrim, CannotShift):
            self.clear()
            return 0
        self._tokens = self._tokens[: shift.start] + self._tokens[shift.end :]
        self._ends = [end for end in self._ends if end <= shift.start]
        self._exact, self._moved = min(self._exact, shift.start), shift.start
        return found.restored

    def fuse(self, ledger: Ledger, fusing: Fusing, tell: Callable[[int], None]) -> Start:
        """As `States.fuse`. What goes wrong leaves the sequence empty."""
        try:
            return Fuser(self, ledger, fusing, tell, self._n_ctx).run()
        except BaseException:
            self.clear()
            self._saving.follow([], 0)
            raise

    def join(self, tokens: Sequence[int], moved: _core.Sequence | None = None, *, restored: bool = False) -> None:
        """Append tokens beside the schedule: evaluated now, or the cells that another sequence has at the end of this
        one, which may have been restored. They are not what a cold run has."""
        n = len(self._tokens)
        if moved is None:
            self.sequence.decode(list(tokens))
        else:
            self.sequence.cp(moved, n, n + len(tokens))
            self._moved = n if self._moved is None else self._moved
        if restored:
            self._apart += ((n, n + len(tokens)),)
        self._tokens += tuple(tokens)
        self.board.show(self._tokens, *self._came, self._apart)

    def joined(self, ledger: Ledger) -> None:
        """All is appended that there is beside the schedule. None of it may be saved as what a cold run has, and from
        the first moved token on nothing at all."""
        self._probe = None
        self._saving.follow(self._keepable(ledger, self._exact), len(self._tokens))

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
        exact = self._exact == len(self._tokens)
        self._tokens += tuple(tokens)
        self._ends.append(len(self._tokens))
        self._exact = len(self._tokens) if exact else self._exact
        self.board.show(self._tokens, *self._came, self._apart)
        self._saving.stepped(len(self._tokens), tokens[0] if len(tokens) == 1 else None)

    def proven(self, tokens: Sequence[int]) -> bool:
        """False if a state was restored and the step that followed, of `tokens`, gave other logits than it once did.

        Everything that it was made of is then quarantined, and the sequence is empty.
        """
        probe, self._probe = self._probe, None
        if probe is None or len(tokens) != 1 or tokens[0] != probe.token:
            return True
        logits, tolerance = self.sequence.logits(), TOKEN_TOLERANCE if self._to_the_token else TOLERANCE
        if max(probe.ids, default=0) < len(logits):  # files tell what they like
            now = logits[list(probe.ids)]
            if np.allclose(now, probe.logits, rtol=0, atol=tolerance):
                return True
        for found in self._restored:
            self.memory.quarantine(found.link, "the model answers differently after it")
        self.clear()
        return False

    def finish(self, ledger: Ledger) -> None:
        """Hand the rest of what was evaluated to the memory. `ledger` is the prompt and what was sampled."""
        n = len(self._tokens)
        self._saving.finish(self._keepable(ledger, None if self._exact == n else self._exact), n)
        self._n_damaged = len(self.memory.counts.damaged)
        self.memory.used(self._restored)
        if n:
            known = ledger.head(n if self._moved is None else self._moved)  # what was moved can be had once only
            self.memory.seen.add(self.memory.binding.root, known)

    def _keepable(self, ledger: Ledger, exact: int | None = None) -> list[Link]:
        """The blocks of a ledger that may be saved."""
        links = self.memory.links(ledger, exact)
        return links if self._moved is None else [link for link in links if link.end <= self._moved]

    def clear(self) -> None:
        """Forget the active sequence; what is kept elsewhere stays."""
        self.sequence.clear()
        self._tokens, self._ends, self._exact, self._moved = (), [], 0, None
        self.board.show((), 0, 0, 0)

    # -- the way in ---------------------------------------------------------------------------------------

    def _plan(self, ledger: Ledger) -> Plan:
        if self._to_the_token:
            live = min(common_prefix(self._tokens, ledger.tokens), len(ledger) - 1)
            found = [] if self._unusable else find_to_the_token(self.memory, ledger, self._n_ctx)
        else:
            live = self._shared(ledger)
            found = self._usable(ledger)
        if not self._can_trim and live < len(self._tokens):
            self._refused = self._refused or live > 0
            live = 0
        return choose(self.memory, len(ledger), live, found, can_cut=self._can_trim)

    def _shared(self, ledger: Ledger) -> int:
        """Up to where what is live equals a cold run of the prompt, at the end of a piece that both have."""
        ends = [end for end in self._ends if end <= self._exact]
        return shared_end(self._tokens, ends, ledger.tokens, piece_ends(ledger)[:-1])

    def _usable(self, ledger: Ledger) -> list[Found]:
        """Blocks at hand, up to the last after which evaluation can go on."""
        links = takewhile(lambda link: link.end < len(ledger) and link.key not in self._unusable, self._links)
        found = self.memory.find(links)
        while found and not found[-1].link.usable:
            found.pop()
        return found

    def _append(self, wanted: Sequence[Found]) -> bool:
        """Put blocks after what is live: all of them; or none, and the sequence is as it was, or empty."""
        began = time.perf_counter()
        exact_keys = {link.key for link in self._links}
        blocks: list[Block] = []
        for found, loaded in zip(wanted, self._loaded(wanted), strict=True):
            block = self._fetch(found, loaded)
            if block is None:
                self._unusable.add(found.link.key)
                if blocks or len(self.sequence) != len(self._tokens):
                    self.clear()
                return False
            same = block.origin == self.memory.binding.origin and found.link.key in exact_keys
            if same and self._exact == len(self._tokens):
                self._exact = found.end
            self._tokens += block.link.tokens[: found.take]
            self._ends.extend(end for end in block.link.ends if end <= found.end)
            blocks.append(block)
        self._restored = tuple(wanted)
        self._probe = blocks[-1].probe if wanted[-1].take is None else None
        self.memory.restored(wanted, blocks, time.perf_counter() - began)
        return True

    def _loaded(self, wanted: Sequence[Found]) -> Iterator[Block | None]:
        """The blocks, each valid until the next but one: while one is checked and appended, the next is read."""
        rooms = (self._room(len(found.link.tokens), number) for number, found in enumerate(wanted))
        with ThreadPoolExecutor(1, "ipyllama-read") as reader:
            coming: Future[Block | Unchecked | None] | None = None
            for found, following in zip(wanted, (*wanted[1:], None), strict=True):
                fetched = coming.result() if coming else self.memory.fetch(found, next(rooms))
                if following is not None:
                    coming = reader.submit(self.memory.fetch, following, next(rooms))
                yield self.memory.checked(found, fetched)

    def _fetch(self, found: Found, block: Block | None) -> Block | None:
        """Bring a block to the end of the sequence; None, and it may be there in part, where that cannot be done."""
        if block is None or (block.origin != self.memory.binding.origin and not self._to_the_token):
            return None
        try:
            self.sequence.append(block.state, block.link.tokens)
        except (BadState, BadArgument, CannotTrim) as error:
            self.memory.quarantine(found.link, str(error))
            return None
        if found.take is not None:
            try:
                self.sequence.trim(found.end)
            except CannotTrim:
                self._refused = True
                return None
        return block

    def _room(self, n_tokens: int, number: int) -> NDArray[np.uint8]:
        needed = int(n_tokens * self.memory.rates.bytes_per_token * 1.1)
        turn = number % len(self._rooms)
        if self._rooms[turn].nbytes < needed:
            self._rooms[turn] = np.empty(needed, np.uint8)
        return self._rooms[turn]

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
            self._refused = True
            self.clear()
        else:
            self._tokens = self._tokens[:n]
            self._ends = [end for end in self._ends if end <= n]
            self._exact = min(self._exact, n)
            if self._moved is not None and n <= self._moved:
                self._moved = None

    def _drop_partial_piece(self) -> None:
        extra = len(self.sequence) - len(self._tokens)
        if extra < 0:  # recurrent state was spoilt on the way
            self.clear()
        elif extra > 0:
            try:
                self.sequence.trim(len(self._tokens))
            except CannotTrim:
                self.clear()
