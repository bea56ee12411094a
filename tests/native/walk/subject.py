"""Walks: the same operations on a context and on the rules, and everything compared after each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from native.walk import upstream
from native.walk.kinds import N_VOCAB, Kind
from native.walk.oracles import oracle
from native.walk.rules import Refused, Run, Token
from native.walk.states import MemoryWithStates, Saved

from ipyllama import _core
from ipyllama.errors import LlamaError

Operation = tuple[Any, ...]
"""Name and arguments; printed as it is, and done again from that."""


class Failure(AssertionError):
    """The context and the rules disagree."""


def tokens_of(n: int, salt: int) -> tuple[int, ...]:
    """n tokens that look random."""
    return tuple((salt * 97 + i * i * 31 + i * salt) % N_VOCAB for i in range(n))


@dataclass(slots=True)
class Copy:
    """Saved bytes and what is in them. `origin`: all tokens of the sequence then."""

    data: Any
    saved: Saved
    origin: tuple[Token, ...] = ()
    owner: object = None  # of a state on the device


@dataclass(slots=True)
class Subject:
    """A context, and what it should be."""

    kind: Kind
    context: _core.Context = field(init=False)
    model: MemoryWithStates = field(init=False)
    sequences: dict[int, _core.Sequence] = field(default_factory=dict)
    copies: dict[str, Copy] = field(default_factory=dict)
    contexts: dict[str, tuple[Any, dict[int, Run]]] = field(default_factory=dict)
    on_device: dict[int, str] = field(default_factory=dict)
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)  # by name of operation, and of error
    _name: str = ""

    def __post_init__(self) -> None:
        self.context = self.kind.context()
        self.context.memory.capability()  # learns the layout of states, so that no later call has to
        self.model = MemoryWithStates(self.kind, oracle(self.kind))

    def do(self, operation: Operation) -> None:
        """One operation on both. Raises Failure."""
        name, *arguments = operation
        self._name = arguments[0] if name == "sequence" else name
        getattr(self, f"do_{name}")(*arguments)
        self.check()

    def _full_early(self) -> None:
        """Windowed layers have fewer cells and keep shared ones: how many are free is for llama.cpp to say."""
        self.outcomes[self._name, "full early"] += 1

    def both(self, act: Callable[[], object], rule: Callable[[], object]) -> Any:
        """What `act` and `rule` give, (None, None) if both refuse with the same error."""
        result, got = attempt(act)
        return self.settle(result, got, rule)

    def _observed(self, rule: Callable[[], object]) -> Callable[[], object]:
        """The rule with pos_min as it is now: applying a shift is a step, which may push cells out of a window."""

        def look_first() -> object:
            self.model.pos_min.update({number: sequence.pos_min for number, sequence in self.sequences.items()})
            return rule()

        return look_first

    def settle(self, result: object, got: LlamaError | None, rule: Callable[[], object]) -> Any:
        wanted: type[LlamaError] | None = None
        expected = None
        try:
            expected = rule()
        except Refused as refused:
            wanted = refused.error
        self.outcomes[self._name, wanted.__name__ if wanted else "done"] += 1
        if (type(got) if got else None) is not wanted:
            raise Failure(f"should have {'raised ' + wanted.__name__ if wanted else 'worked'}, but: {got!r}")
        return (result, expected) if wanted is None else (None, None)

    def check(self) -> None:
        model, pairs = self.model, set()
        for number, sequence in self.sequences.items():
            model.pos_min[number] = sequence.pos_min
            run = model.run(number)
            self._check_ledger(number, sequence, run)
            pairs |= set(zip(sequence.cells, [token.cell for token in run.tokens], strict=True))
            if sequence.has_logits != (number in model.logits):
                raise Failure(f"sequence {number}: has_logits is {sequence.has_logits}")
            if number in model.logits:
                off = float(np.abs(sequence.logits() - model.logits[number]).max())
                if not off <= self.kind.tolerance:
                    raise Failure(f"sequence {number}: logits are off by {off:.3g}")
        one_to_one = len({a for a, _ in pairs}) == len({b for _, b in pairs}) == len(pairs)
        if self.kind.attention and not one_to_one:
            raise Failure("other sequences share cells")
        memory = self.context.memory
        if memory.used != model.used():
            raise Failure(f"used is {memory.used} instead of {model.used()}")
        if memory.counts != {number: len(run.tokens) for number, run in model.runs.items()}:
            raise Failure(f"counts are {memory.counts}")

    def _check_ledger(self, number: int, sequence: _core.Sequence, run: Run) -> None:
        positions = [token.pos for token in run.tokens]
        if sequence.tokens != [token.token for token in run.tokens] or len(sequence) != len(run.tokens):
            raise Failure(f"sequence {number}: tokens are {sequence.tokens}")
        if sequence.positions != positions:
            raise Failure(f"sequence {number}: positions are {sequence.positions} instead of {positions}")
        if sequence.pos_max != (positions[-1] if positions else -1):
            raise Failure(f"sequence {number}: pos_max is {sequence.pos_max}")
        if self.kind.window and positions:
            ok = positions[0] <= sequence.pos_min and self.model.complete_from(number) <= self.model.seen_from(
                run.tokens
            )
        else:
            ok = sequence.pos_min == ((positions[-1] if self.kind.recurrent else positions[0]) if positions else -1)
        if not ok:
            raise Failure(f"sequence {number}: pos_min is {sequence.pos_min}")

    def audit(self, parts: list[list[upstream.Cell]]) -> None:
        """llama.cpp's own cells are those of the rules."""
        wanted: dict[int, tuple[int, set[int]]] = {}
        for number, run in self.model.runs.items():
            for token in run.tokens if self.kind.attention else run.tokens[-1:]:
                wanted.setdefault(token.cell, (token.pos, set()))[1].add(number)
        if Counter(parts[0]) != Counter((pos, frozenset(ids)) for pos, ids in wanted.values()):
            raise Failure(f"llama.cpp holds other cells: {Counter(parts[0])}")
        for number, run in self.model.runs.items() if self.kind.window else ():
            there = {cell.pos for cell in parts[1] if number in cell.sequences}
            if any(t.pos not in there for t in run.tokens if t.pos >= self.model.complete_from(number)):
                raise Failure(f"cells of windowed layers of sequence {number} are missing")


def attempt(act: Callable[[], object]) -> tuple[Any, LlamaError | None]:
    try:
        return act(), None
    except LlamaError as error:
        return None, error
