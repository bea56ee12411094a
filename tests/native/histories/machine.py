"""Random histories of a notebook against the plain rules. `python -m native.histories.machine --cases 2000` from tests/
runs many; a failure prints the shortest history that was found.

After every step: the head, whose turn is where and what it continues, which are stale, names, numbers, the messages
that a prompt holds, what the prompt cost, and that equal conversations are given equal answers. At the end answers of
some turns against a model that has nothing in memory, bit for bit.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import EllipsisType
from typing import Any, Final

import numpy as np
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from native.ask import bits
from native.histories.notebook import Cell, Notebook
from native.histories.rules import Owner, Refused, Rules, Said
from native.scenarios.cold import MOST, Cold
from tiny import build

from ipyllama.chat import Turn
from ipyllama.errors import BadOption, UnknownTurn
from ipyllama.ledger import Ledger
from ipyllama.options import GenerateOptions

ARCHS: Final = ("llama", "gemma3", "mamba", "lfm2", "jamba")
STEPS: Final = 20
"""Of a history at most."""
_TEXTS: Final = st.sampled_from(["one", "two", "one two", "and three more"])
_NAMES: Final = st.sampled_from([None, None, "x", "y"])
_AFTER: Final = st.sampled_from([..., ..., ..., ..., "none", "x", "y", "1", "2"])
_WHICH: Final = st.integers(0, 5)
_HAS_CELLS: Final = precondition(lambda machine: machine.notebook.cells)
_HAS_TURNS: Final = precondition(lambda machine: machine.rules.now.current)


class Histories(RuleBasedStateMachine):
    """Subclasses say which model. `total` counts over all histories."""

    model: Path
    cold: Cold
    total: Counter[str]
    told: dict[tuple[Any, ...], tuple[int, ...]]
    """what was answered to a conversation, in whatever history"""

    @initialize(replay=st.booleans(), n_cells=st.integers(0, 4))
    def start(self, replay: bool, n_cells: int) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="ipyllama-history-")
        self.notebook = Notebook(self.model, Path(self.folder.name) / "kept", replay=replay)
        self.rules = Rules()
        self.known: list[tuple[int, ...]] = []
        """tokens of which the state was computed and can be gone on from"""
        self.total["histories"] += 1
        for number in range(n_cells):
            self.run_a_new_cell(f"at first {number}")

    # -- editing ------------------------------------------------------------------------------------------

    @rule(at=_WHICH, text=_TEXTS, name=_NAMES, after=_AFTER)
    def insert(self, at: int, text: str, name: str | None, after: str | EllipsisType) -> None:
        self.notebook.insert(at, Cell(self.notebook.new_id(), text, name, after))

    @_HAS_CELLS
    @rule(at=_WHICH, text=_TEXTS, name=_NAMES, after=_AFTER)
    def edit(self, at: int, text: str, name: str | None, after: str | EllipsisType) -> None:
        at = self._cell(at)
        self.notebook.cells[at] = replace(self.notebook.cells[at], text=text, name=name, after=after)

    @_HAS_CELLS
    @rule(at=_WHICH, to=_WHICH)
    def move(self, at: int, to: int) -> None:
        self.notebook.insert(to, self.notebook.cells.pop(self._cell(at)))

    @_HAS_CELLS
    @rule(at=_WHICH)
    def delete(self, at: int) -> None:
        del self.notebook.cells[self._cell(at)]

    @_HAS_CELLS
    @rule(at=_WHICH, to=_WHICH)
    def copy(self, at: int, to: int) -> None:
        self.notebook.insert(to, replace(self.notebook.cells[self._cell(at)], id=self.notebook.new_id()))

    @_HAS_CELLS
    @rule(at=_WHICH)
    def split(self, at: int) -> None:
        self.notebook.split(self._cell(at))

    # -- running ------------------------------------------------------------------------------------------

    @rule(text=_TEXTS)
    def run_a_new_cell(self, text: str) -> None:
        cell = Cell(self.notebook.new_id(), text)
        self.notebook.cells.append(cell)
        self._run(cell)

    @_HAS_CELLS
    @rule(at=_WHICH)
    def run_one(self, at: int) -> None:
        self._run(self.notebook.cells[self._cell(at)])

    @_HAS_CELLS
    @rule(at=_WHICH, text=_TEXTS)
    def run_edited(self, at: int, text: str) -> None:
        at = self._cell(at)
        self.notebook.cells[at] = replace(self.notebook.cells[at], text=text)
        self._run(self.notebook.cells[at])

    @_HAS_CELLS
    @rule()
    def run_all(self) -> None:
        for cell in list(self.notebook.cells):
            if not self._run(cell):
                break  # as front ends stop at an error

    @_HAS_CELLS
    @rule(at=_WHICH)
    def run_all_above(self, at: int) -> None:
        for cell in self.notebook.cells[: self._cell(at)]:
            if not self._run(cell):
                break

    @rule(text=_TEXTS, name=_NAMES, after=_AFTER)
    def run_without_id(self, text: str, name: str | None, after: str | EllipsisType) -> None:
        self.rules.resumable = False
        self._run(Cell(None, text, name, after))

    # -- commands -----------------------------------------------------------------------------------------

    @_HAS_TURNS
    @rule(which=_WHICH)
    def goto(self, which: int) -> None:
        self.notebook.command(f"goto {self._number(which)}")
        self.rules.goto(self._owner(which))
        self._compare()

    @_HAS_TURNS
    @rule()
    def goto_none(self) -> None:
        self.notebook.command("goto none")
        self.rules.goto(None)
        self._compare()

    @_HAS_TURNS
    @rule(which=_WHICH)
    def rm(self, which: int) -> None:
        self.notebook.command(f"rm {self._number(which)}")
        self.rules.rm(self._owner(which))
        self._compare()

    @_HAS_TURNS
    @rule(which=_WHICH, name=st.sampled_from(["x", "y", "z"]))
    def rename(self, which: int, name: str) -> None:
        self.notebook.command(f"rename {self._number(which)} {name}")
        self.rules.rename(self._owner(which), name)
        self._compare()

    @rule()
    def undo(self) -> None:
        try:
            self.rules.undo()
        except Refused:
            return
        self.notebook.command("undo --chat default")
        self._compare()

    @rule()
    def restart(self) -> None:
        self.notebook.restart()
        self.rules.restart()
        self._compare()

    @precondition(lambda machine: machine.rules.resumable)
    @rule()
    def resume(self) -> None:
        self.notebook.command("resume")
        self.rules.resume()
        self._compare()

    def teardown(self) -> None:
        if hasattr(self, "notebook"):
            try:
                for turn in self.notebook.chat.all_turns[-2:]:
                    self._compare_with_a_cold_run(turn)
            finally:
                self.notebook.close()
                self.folder.cleanup()

    # -- comparing ----------------------------------------------------------------------------------------

    def _run(self, cell: Cell) -> bool:
        """Whether it was answered."""
        try:
            owner, before = self.rules.place(cell.id, cell.name, cell.after)
        except Refused:
            try:
                self.notebook.run(cell)
            except (BadOption, UnknownTurn):
                self.total["refused"] += 1
                self._compare()
                return False
            raise AssertionError("this cannot be asked there") from None
        turn = self.notebook.run(cell)
        became = self.rules.answered(Said(owner, cell.text, turn.text, turn.tokens, before), cell.name)
        now = self.rules.now
        named = dict.fromkeys(now.names.get(each) or f'"{now.current[each].question}"' for each in became)
        told = [*list(named)[:6], *([f"{len(named) - 6} more"] if len(named) > 6 else [])]
        notes = [note.partition("up to date: ")[2].replace(" and ", ", ") for note in turn.notes]
        assert notes == [", ".join(told).replace(" and ", ", ")] * bool(became)
        self._check_prompt(turn, before)
        self._check_cost(turn)
        self._compare()
        self.total["answers"] += 1
        return True

    def _check_prompt(self, turn: Turn, before: Said | None) -> None:
        asked = [*(before.messages() if before else []), {"role": "user", "content": turn.message}]
        template = self.notebook.llm.template
        assert template is not None
        assert turn.prompt == template.render(asked)
        conversation = [(said.question, said.tokens) for said in before.path()] if before else []
        assert self.told.setdefault((*conversation, turn.message), turn.tokens) == turn.tokens

    def _check_cost(self, turn: Turn) -> None:
        """No token of a prompt is computed twice, but its last."""
        prompt = turn.ledger.tokens[: len(turn.ledger) - len(turn.tokens)]
        assert turn.usage.prompt == len(prompt)
        assert turn.exact
        at_hand = [len(known) - 1 for known in self.known if known == prompt[: len(known)]]
        assert turn.usage.reused + turn.usage.restored >= max(at_hand, default=0), turn.usage
        if not turn.replayed:
            self.known += [prompt, turn.ledger.tokens]
            for what in ("reused", "restored", "computed"):
                self.total[what] += getattr(turn.usage, what)
        self.total["replayed"] += turn.replayed

    def _compare(self) -> None:
        chat, now = self.notebook.chat, self.rules.now
        turns = dict(zip(now.current, chat.all_turns, strict=True))
        for owner, said in now.current.items():
            turn = turns[owner]
            assert turn.cell == (owner if isinstance(owner, str) else None)
            assert (turn.message, turn.tokens) == (said.question, said.tokens)
            assert turn.messages == said.messages()
            assert turn.name == now.names.get(owner)
            assert [each.cell for each in turn.path] == [
                each.owner if isinstance(each.owner, str) else None for each in reversed(list(said.path()))
            ]
        assert chat.head is (None if now.head is None else turns[now.head])
        stale = self.rules.stale()
        assert chat.stale == tuple(turns[owner] for owner in stale)
        self.total["stale"] += bool(stale)
        rows = sorted(chat.tree().rows, key=lambda row: row.number)
        assert [(row.number, row.name, row.head, row.stale) for row in rows] == [
            (number, now.names.get(owner), owner == now.head, owner in stale)
            for number, owner in enumerate(now.current, start=1)
        ]
        self.total["steps"] += 1

    def _compare_with_a_cold_run(self, turn: Turn) -> None:
        prompt = Ledger(turn.ledger.segments[:-1])
        llm = self.notebook.llm
        reply = llm.generate(prompt, GenerateOptions(temperature=0, max_tokens=MOST), fresh=True).result()
        cold = self.cold.ask(prompt)
        assert reply.tokens == cold.tokens
        assert np.array_equal(bits(llm._engine._live.sequence.logits()), cold.logits[-1])
        self.total["cold"] += 1

    def _cell(self, at: int) -> int:
        return at % len(self.notebook.cells)

    def _number(self, which: int) -> int:
        return which % len(self.rules.now.current) + 1

    def _owner(self, which: int) -> Owner:
        return list(self.rules.now.current)[self._number(which) - 1]


@contextlib.contextmanager
def histories_of(path: Path) -> Iterator[type[Histories]]:
    """The machine for a model. The environment is as before afterwards."""
    before, cold = dict(os.environ), Cold(path)
    try:
        yield type("Histories", (Histories,), {"model": path, "cold": cold, "total": Counter(), "told": {}})
    finally:
        cold.close()
        os.environ.clear()
        os.environ.update(before)


def run(machine: type[Histories], cases: int, *, same: bool = False) -> Counter[str]:
    """Many random histories, with `same` the same ones each time; raises what goes wrong, in the shortest found."""
    chosen = settings(
        max_examples=cases,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        derandomize=same,
        report_multiple_bugs=False,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=chosen)
    return machine.total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--models", nargs="+", default=list(ARCHS), help="default: %(default)s")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ipyllama-histories-") as folder:
        for arch in arguments.models:
            path = Path(folder) / f"{arch}.gguf"
            build(arch, path)
            with histories_of(path) as machine, contextlib.redirect_stdout(io.StringIO()):
                total = run(machine, arguments.cases // len(arguments.models))
            sys.stdout.write(f"{arch}: {dict(sorted(total.items()))}\n")


if __name__ == "__main__":
    main()
