"""Random walks over everything that a context's memory can do, on attention, windowed, recurrent and hybrid models.

After each operation tokens, positions, shared cells, counts, refusals and the presence of logits equal a plain Python
model of the rules (walk/rules.py, walk/states.py), and all logits equal a computation without this memory: NumPy for
llama and gemma3 (walk/reference.py), the sequence's own history in an empty context for the others (walk/oracles.py).
From time to time, and at the end, llama.cpp's own cells are read out of Context.save(). Tolerances: walk/kinds.py.
What is for llama.cpp to say is taken as it says it, and the state has to be right then: which cells a window lets go
(pos_min), when windowed layers are full, how far an aborted step came.

`python -m native.walk.run --cases 5000` (from tests/) makes many walks, here are a few hundred. A failure names its
seed and the shortest list of operations that was found. Walks with `abort` depend on the machine and may not repeat.

Bugs that were planted in ext/engine to see that they are found, and the walk of --seed 0 that did:

- Kv::check_shift does not look for shared cells. Walk 14, attention: 2 tokens, cp to another sequence, add(0, None, 60)
  there: "should have raised CannotShift, but: None".
- Kv::join forgets hole_end_. Walk 3, window: 8 tokens, save A, 58 more, save B of [60, None), restore A, append B,
  rm(96, None): "should have raised CannotTrim, but: None".
- Sequence::append does not clear the scratch sequence. Walk 0, attention: 15 tokens, save A, 1 more, save B of
  [15, None), restore A, append B, save_all: "llama.cpp holds other cells: ... Cell(pos=15, sequences={2, 4})".
- Kv::remove lets the window begin one token too late. Walk 339, window: three sequences that fill the memory, trim(106)
  of 107: "tokens are []" (the check after the removal sees it, and the sequence is gone).

Faults of llama.cpp and of ours that they found are in test_core_memory.py and test_core_batches.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
import pytest
from native.walk.kinds import KINDS, Kind
from native.walk.oracles import Replay, oracle
from native.walk.rules import Run, Token
from native.walk.run import failure_of, walk

WALKS = 25  # of each kind
OPERATIONS = {
    *("decode", "batch", "fork", "cp", "rm", "trim", "add", "div", "keep", "clear", "clear_all", "close", "open"),
    *("save", "restore", "append", "rewind", "save_on_device", "restore_on_device", "save_all", "restore_all", "flag"),
}


def names(outcomes: Iterable[tuple[str, str]], ended: str) -> set[str]:
    return {name for name, end in outcomes if end == ended}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_random_walks(kind: Kind) -> None:
    outcomes: Counter[tuple[str, str]] = Counter()
    for number in range(WALKS):
        outcomes += walk(kind, f"sample.{number}")
    never = set() if kind.has_partial else {"rewind"}
    never |= set() if kind.on_device else {"save_on_device", "restore_on_device"}
    assert names(outcomes, "done") >= OPERATIONS - {"flag"} - never
    assert names(outcomes, "Aborted") >= {"flag"}
    refused = {"rm", "trim", "cp", "save"} if kind.recurrent else set()
    assert names(outcomes, "CannotTrim") >= refused
    assert "add" in names(outcomes, "CannotShift")


@pytest.mark.parametrize("kind", KINDS[:4], ids=lambda kind: kind.name)
def test_the_reference_is_this_model(kind: Kind) -> None:
    """NumPy against llama.cpp in an empty context: the tolerance has room, and what it has to show is beyond it.

    One token of a hundred that is missing shows in every kind; one that is moved by one only where there is neither a
    table nor flash-attention.
    """
    tokens = tuple(7 * n % 356 for n in range(100))
    _, plain = Replay(kind).step(Run(), tokens, 5, True)
    _, computed = oracle(kind).step(Run(), tokens, 5, True)
    assert np.abs(plain - computed).max() < kind.tolerance / 2
    made, _ = oracle(kind).step(Run(), tokens[:-1], 5, False)
    before = [Token(token, 5 + n, n, made[n]) for n, token in enumerate(tokens[:-1])]
    others = [Run(tuple(before[:n] + before[n + 1 :])) for n in (70, 98)]
    if kind.tolerance < 0.01:
        others += [Run((*before[:n], before[n]._replace(pos=4 + n), *before[n + 1 :])) for n in (0, 70)]
    for other in others:
        _, logits = oracle(kind).step(other, tokens[-1:], 104, True)
        assert np.abs(plain - logits).max() > 1.5 * kind.tolerance


def test_a_failure_names_the_operations_that_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that is wrong on purpose: clear() keeps the tokens."""
    monkeypatch.setattr("native.walk.rules.Memory.clear", lambda self, number: None)

    def until_one_fails() -> None:
        for number in range(50):
            walk(KINDS[0], f"wrong.{number}")

    with pytest.raises(AssertionError, match=r"'attention', seed 'wrong.\d+', \d+ operations, short form:") as caught:
        until_one_fails()
    lines = str(caught.value).splitlines()
    assert len(lines) <= 6
    assert "('sequence', 'clear', " in lines[-2]
    assert "tokens are []" in lines[-1]


def test_operations_that_make_no_sense_do_nothing() -> None:
    """So that any can be left out of a list."""
    nowhere = [("decode", 3, 5, 1), ("fork", 2), ("restore", "A", 1), ("rewind", "A", 0), ("restore_all", "B")]
    assert failure_of(KINDS[0], [*nowhere, ("open", 0), ("append", "A", 0), ("cp", 0, 1, 0, None)]) is None
