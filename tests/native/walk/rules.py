"""What a context's memory does, in plain Python, written from the documentation of Sequence and Memory alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from native.walk.kinds import N_BATCH, N_SEQUENCES, Kind
from native.walk.reference import Array

from ipyllama.errors import (
    Aborted,
    BadArgument,
    CannotShift,
    CannotTrim,
    ClosedError,
    DecodeError,
    LlamaError,
)

END = 2**31 - 1
MAX_POSITION = 2**30


class Refused(Exception):
    """The operation raises this error, and changes nothing."""

    def __init__(self, error: type[LlamaError]) -> None:
        super().__init__(error.__name__)
        self.error = error


class Token(NamedTuple):
    """One evaluated token in one sequence."""

    token: int
    pos: int
    cell: int  # the same in sequences that share it
    made: object  # what its evaluation gave: stays with it through copies


@dataclass(frozen=True, slots=True)
class Run:
    """What a sequence holds. Of windowed layers, cells below `hole_end` may be missing whatever pos_min says."""

    tokens: tuple[Token, ...] = ()
    hole_end: int = 0
    history: tuple[object, ...] = ()  # token ids, and ("add" or "div", by): how the recurrent state came about

    @property
    def next(self) -> int:
        return self.tokens[-1].pos + 1 if self.tokens else 0

    def inside(self, p0: int, p1: int | None) -> list[Token]:
        return [token for token in self.tokens if p0 <= token.pos < (END if p1 is None else p1)]


class Piece(NamedTuple):
    """Tokens of one sequence in a step."""

    number: int
    tokens: tuple[int, ...]
    wanted: bool = True  # logits after the last
    position: int | None = None


class Oracle(Protocol):
    """Evaluates tokens without the memory under test."""

    def step(
        self, run: Run, tokens: tuple[int, ...], first: int, wanted: bool
    ) -> tuple[list[object], Array | None]: ...


@dataclass(slots=True)
class Memory:
    """All sequences. `pos_min` is llama.cpp's own, by sequence: when a window lets cells go is for it to say."""

    kind: Kind
    oracle: Oracle
    runs: dict[int, Run] = field(default_factory=dict)  # of open sequences
    logits: dict[int, Array] = field(default_factory=dict)
    pos_min: dict[int, int] = field(default_factory=dict)
    shift_pending: bool = False
    _cells: int = 0

    # what is asked

    def run(self, number: int) -> Run:
        if number not in self.runs:
            raise Refused(ClosedError)
        return self.runs[number]

    def used(self) -> int:
        return len({cell for run in self.runs.values() for cell in self.cells(run.tokens)})

    def cells(self, tokens: Iterable[Token]) -> set[int]:
        """The cells of these tokens, the last being that of the sequence: recurrent state alone has one."""
        numbers = [token.cell for token in tokens]
        return set(numbers if self.kind.attention else numbers[-1:])

    def complete_from(self, number: int) -> int:
        """From which position on no cell is missing."""
        run = self.run(number)
        if not self.kind.window or not run.tokens:
            return 0
        return max(self.pos_min[number], run.hole_end)

    def resident(self, number: int) -> bool:
        run = self.run(number)
        return not run.tokens or self.complete_from(number) <= run.tokens[0].pos

    def seen_from(self, tokens: list[Token] | tuple[Token, ...]) -> int:
        """The first of these positions that a token after them can see in every layer."""
        unseen = tokens[-1].pos + 1 - self.kind.window if self.kind.window else -1
        return next(token.pos for token in tokens if token.pos > unseen)

    # changes

    def open(self, number: int | None) -> None:
        free = [number for number in range(N_SEQUENCES) if number not in self.runs]
        if not free or (number is not None and number not in free):
            raise Refused(BadArgument)
        self.runs[free[0] if number is None else number] = Run()

    def close(self, number: int) -> None:
        self._change(number, Run())
        del self.runs[number]

    def clear(self, number: int) -> None:
        self._change(number, Run())

    def clear_all(self) -> None:
        self.runs = dict.fromkeys(self.runs, Run())
        self.logits.clear()
        self.shift_pending = False

    def keep(self, number: int) -> None:
        self.runs = {other: self.run(number) if other == number else Run() for other in self.runs}
        self.logits = {other: logits for other, logits in self.logits.items() if other == number}

    def rm(self, number: int, p0: int, p1: int | None) -> None:
        run = self.run(number)
        gone = run.inside(p0, p1)
        if not gone:
            return
        kept = tuple(token for token in run.tokens if not gone[0].pos <= token.pos <= gone[-1].pos)
        if not kept:
            self._change(number, Run())
            return
        if self.kind.recurrent:
            raise Refused(CannotTrim)
        tail = kept[-1].pos < gone[0].pos
        if not self.resident(number) and not (tail and self.complete_from(number) <= self.seen_from(kept)):
            raise Refused(CannotTrim)
        self._change(number, replace(run, tokens=kept))

    def trim(self, number: int, n: int) -> None:
        tokens = self.run(number).tokens
        if n > len(tokens) or (0 < n < len(tokens) and tokens[n - 1].pos == tokens[n].pos):
            raise Refused(BadArgument)
        if n < len(tokens):
            self.rm(number, tokens[n].pos, None)

    def fork(self, number: int) -> None:
        self.run(number)
        free = [number for number in range(N_SEQUENCES) if number not in self.runs]
        self.open(None)
        self.cp(number, free[0], 0, None)

    def cp(self, source: int, number: int, p0: int, p1: int | None) -> None:
        run, to = self.run(source), self.run(number)
        if source == number:
            raise Refused(BadArgument)
        shared = run.inside(p0, p1)
        if not shared:
            return
        entire = len(shared) == len(run.tokens) and not to.tokens
        if self.kind.recurrent and not entire:
            raise Refused(CannotTrim)
        if not entire and not self.resident(source) and shared[0].pos < self.complete_from(source):
            raise Refused(CannotTrim)
        if {token.pos for token in shared} & {token.pos for token in to.tokens}:
            raise Refused(BadArgument)
        if entire:
            self._change(number, run)
            return
        hole_end = to.hole_end if self.resident(number) else self.complete_from(number)
        self._change(number, Run(_ordered([*to.tokens, *shared]), hole_end))

    def add(self, number: int, p0: int, p1: int | None, delta: int) -> None:
        moved = self.run(number).inside(p0, p1)
        if moved and delta and (moved[0].pos + delta < 0 or moved[-1].pos + delta > MAX_POSITION):
            raise Refused(BadArgument)
        if moved and delta:
            self._move(number, moved, lambda pos: pos + delta, ("add", delta))

    def div(self, number: int, p0: int, p1: int | None, divisor: int) -> None:
        moved = self.run(number).inside(p0, p1)
        if divisor < 1:
            raise Refused(BadArgument)
        if moved and divisor > 1:
            self._move(number, moved, lambda pos: pos // divisor, ("div", divisor))

    def _move(self, number: int, moved: list[Token], to: Callable[[int], int], step: tuple[str, int]) -> None:
        run = self.run(number)
        cells = {token.cell for token in moved}
        shared = any(
            other != number and self.cells(moved) & self.cells(theirs.tokens) for other, theirs in self.runs.items()
        )
        part = len(moved) < len(run.tokens)
        if not self.kind.can_shift or (self.kind.recurrent and part) or not self.resident(number) or shared:
            raise Refused(CannotShift)
        tokens = [token._replace(pos=to(token.pos)) if token.cell in cells else token for token in run.tokens]
        self._change(number, Run(_ordered(tokens), run.hole_end, (*run.history, step)))
        self.shift_pending = self.shift_pending or self.kind.attention

    # steps

    def decode(self, pieces: list[Piece], flag: bool = False) -> None:
        """One step; `flag`: the abort flag is set."""
        self.check_step(pieces)
        if flag:
            raise Refused(Aborted)
        self.logits.clear()
        self.shift_pending = False
        n = sum(len(piece.tokens) for piece in pieces)
        if self.kind.attention and self.used() + n > self.kind.n_ctx:
            raise Refused(DecodeError)
        for piece in pieces:
            self.evaluate(piece)

    def check_step(self, pieces: list[Piece]) -> None:
        if any(piece.number not in self.runs for piece in pieces):
            raise Refused(ClosedError)
        twice = len({piece.number for piece in pieces}) < len(pieces)
        n = [len(piece.tokens) for piece in pieces]
        if twice or not pieces or 0 in n or sum(n) > N_BATCH:
            raise Refused(BadArgument)
        for piece in pieces:
            run = self.run(piece.number)
            off = run.tokens and piece.position not in (None, run.next)
            if off or len(run.tokens) + len(piece.tokens) > self.kind.n_ctx:
                raise Refused(BadArgument)

    def evaluate(self, piece: Piece) -> None:
        run = self.run(piece.number)
        first = run.next if piece.position is None else piece.position
        made, logits = self.oracle.step(run, piece.tokens, first, piece.wanted)
        new = [Token(t, first + i, self.new_cell(), made[i]) for i, t in enumerate(piece.tokens)]
        history = run.history or (("at", first),)
        self.runs[piece.number] = Run((*run.tokens, *new), run.hole_end, (*history, *piece.tokens))
        if logits is not None:
            self.logits[piece.number] = logits

    def new_cell(self) -> int:
        self._cells += 1
        return self._cells

    def _change(self, number: int, run: Run) -> None:
        """Logits belong to the last token and go when the sequence changes."""
        before = self.run(number)
        self.runs[number] = run
        if [token.pos for token in before.tokens] != [token.pos for token in run.tokens]:
            self.logits.pop(number, None)


def _ordered(tokens: list[Token]) -> tuple[Token, ...]:
    return tuple(sorted(tokens, key=lambda token: token.pos))
