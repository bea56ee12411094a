"""Memory operations: what they do to tokens, positions, cells and logits, and that what is refused does nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from native.core import make_context, run_apart
from native.walk import upstream
from native.walk.kinds import KINDS
from native.walk.run import failure_of
from native.walk.subject import Operation

from ipyllama import _core
from ipyllama.errors import BadArgument, BadState, CannotShift, CannotTrim, LlamaError

MEMORIES = [("llama", True), ("gemma3", True), ("gemma3", False), ("mamba", True), ("lfm2", True), ("jamba", True)]
RECURRENT = ("mamba", "lfm2", "jamba")
TOKENS = [1, *(262 + n * n % 94 for n in range(399))]

every_memory = pytest.mark.parametrize(("arch", "swa_full"), MEMORIES)


@dataclass
class Scene:
    """Three sequences: `long` has outgrown a window, `twin` shares its first 150 tokens, `short` has its own."""

    context: _core.Context
    long: _core.Sequence
    twin: _core.Sequence
    short: _core.Sequence

    @property
    def sequences(self) -> list[_core.Sequence]:
        return [self.long, self.twin, self.short]

    def look(self) -> list[object]:
        """Everything that there is to see."""
        seen: list[object] = [self.context.memory.used, self.context.memory.counts]
        for each in self.sequences:
            seen += [each.tokens, each.positions, each.cells, each.pos_min, each.pos_max, each.has_logits]
            seen += [each.logits().tobytes()] if each.has_logits else []
        return seen


@pytest.fixture
def scene(tiny) -> Callable[[str, bool], Scene]:
    def make(arch: str, swa_full: bool) -> Scene:
        model = _core.Model.load(str(tiny(arch)))
        context = make_context(model, n_ctx=1024, n_batch=64, n_seq_max=4, swa_full=swa_full)
        context.memory.capability()
        long = _core.Sequence(context)
        for start in range(0, 150, 50):
            long.decode(TOKENS[start : start + 50])
        twin, short = long.fork(), _core.Sequence(context)
        batch = _core.Batch()
        batch.add(long, TOKENS[150:170])
        batch.add(short, TOKENS[:20])
        context.decode(batch)
        return Scene(context, long, twin, short)

    return make


def refusals(scene: Scene, arch: str, swa_full: bool) -> list[tuple[type[LlamaError], Callable[[], object]]]:
    """Calls that this memory refuses, and how."""
    long, twin, short = scene.sequences
    state = short.save()
    calls: list[tuple[type[LlamaError], Callable[[], object]]] = [
        (BadArgument, lambda: long.trim(len(long) + 1)),
        (BadArgument, lambda: long.cp(long)),
        (BadArgument, lambda: short.rm(-1)),
        (BadArgument, lambda: short.add(0, None, -1)),
        (BadArgument, lambda: short.add(0, None, 2**30)),
        (BadArgument, lambda: short.div(0, None, 0)),
        (BadArgument, lambda: short.save(100, 120)),
        (BadArgument, lambda: long.append(state, TOKENS[:20])),
        (BadState, lambda: short.restore(state[:-1], TOKENS[:20])),
    ]
    if arch != "mamba":  # its states parted when the longer one went on; of the others the twin has cells
        calls += [(CannotShift, lambda: long.add(0, None, 5)), (CannotShift, lambda: twin.div(0, None, 2))]
    if arch in RECURRENT:
        calls += [
            (CannotTrim, lambda: short.rm(5, 10)),
            (CannotTrim, lambda: short.trim(19)),
            (CannotTrim, lambda: short.cp(long)),
            (CannotTrim, lambda: short.save(0, 10)),
            (CannotShift, lambda: short.add(5, None, 5)),
        ]
        return calls
    calls.append((BadState, lambda: short.restore(state, TOKENS[:19])))
    if swa_full:
        calls.append((BadArgument, lambda: short.cp(long, 0, 20)))
    else:
        calls += [
            (CannotTrim, lambda: short.cp(long, 0, 20)),
            (CannotShift, lambda: short.add(0, None, 5)),
            (CannotTrim, lambda: long.trim(100)),
            (CannotTrim, lambda: long.rm(0, 10)),
            (CannotTrim, lambda: long.save(0, 100)),
        ]
    return calls


@every_memory
def test_what_is_refused_changes_nothing(scene, arch: str, swa_full: bool) -> None:
    """Neither what can be seen nor, bit for bit, what is computed next and what is in the memory then: a twin context
    that was never asked has the same."""
    asked, other = scene(arch, swa_full), scene(arch, swa_full)
    if not swa_full:
        make_the_window_go(asked)
        make_the_window_go(other)
    before = asked.look()
    for error, call in refusals(asked, arch, swa_full):
        with pytest.raises(error) as caught:
            call()
        assert type(caught.value) is error
        assert asked.look() == before
    logits: list[bytes] = []
    for place in (asked, other):
        for sequence in place.sequences:
            sequence.decode([300, 301])
            logits.append(sequence.logits().tobytes())
    assert logits[:3] == logits[3:]
    assert asked.context.save().tobytes() == other.context.save().tobytes()


def make_the_window_go(place: Scene) -> None:
    """As long as the twin shares its cells they stay; afterwards new tokens take those outside the window."""
    place.twin.clear()
    place.twin.decode(TOKENS[:10])
    for start in range(170, 398, 19):
        place.long.decode(TOKENS[start : start + 19])
    place.twin.clear()
    place.twin.cp(place.long)


@every_memory
def test_used_cells_are_those_that_llama_cpp_counts(scene, arch: str, swa_full: bool) -> None:
    place = scene(arch, swa_full)
    memory = place.context.memory

    def check() -> None:
        cells = upstream.parts(place.context.save(), arch != "mamba", False)[0]
        assert memory.used == len(cells)
        counted = {s.id: sum(s.id in cell.sequences for cell in cells) for s in place.sequences}
        if arch != "mamba":  # one cell of state says nothing of how many tokens it is of
            assert memory.counts == counted
        for sequence in place.sequences:
            own = [cell.pos for cell in cells if sequence.id in cell.sequences]
            assert max(own, default=-1) == sequence.pos_max

    assert memory.total == (4 + 1 if arch == "mamba" else 1024)
    assert memory.used == (3 if arch == "mamba" else 190)
    assert memory.counts == {0: 170, 1: 150, 2: 20}
    check()
    place.twin.decode(TOKENS[:5])
    check()
    place.long.clear()
    check()
    place.short.keep()
    assert memory.counts == {0: 0, 1: 0, 2: 20}
    check()
    if arch not in RECURRENT:
        place.short.rm(3, 8)
        assert memory.used == 15
        check()
    memory.clear()
    assert (memory.used, memory.counts) == (0, {0: 0, 1: 0, 2: 0})
    check()


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_operations_on_positions(scene, arch: str) -> None:
    place = scene(arch, True)
    short, twin = place.short, place.twin
    short.rm(5, 10)
    assert short.positions == [*range(5), *range(10, 20)]
    assert short.tokens == [*TOKENS[:5], *TOKENS[10:20]]
    short.add(10, None, -5)
    assert short.positions == [*range(15)]
    short.div(5, None, 2)
    assert short.positions == sorted([*range(5), *(pos // 2 for pos in range(5, 15))])
    assert (len(short), short.pos_min, short.pos_max) == (15, 0, 7)
    with pytest.raises(BadArgument, match="same position"):
        short.trim(short.positions.index(6) + 1)
    short.rm(0, 7)
    assert short.positions == [7]
    twin.trim(6)
    short.cp(twin, 2, 6)  # before what it has
    assert (short.positions, short.tokens) == ([2, 3, 4, 5, 7], [*TOKENS[2:6], TOKENS[19]])
    assert short.cells[:4] == twin.cells[2:]
    with pytest.raises(BadArgument, match="position 2 is taken"):
        short.cp(twin, 0, 3)
    short.rm()
    assert (len(short), short.pos_min, short.pos_max) == (0, -1, -1)
    short.rm(0, 5)
    short.decode(TOKENS[:3], position=40)
    assert short.positions == [40, 41, 42]
    with pytest.raises(BadArgument, match="goes on at position 43"):
        short.decode([5], position=44)
    short.decode([5], position=43)


@every_memory
def test_a_fork_goes_its_own_way(scene, arch: str, swa_full: bool) -> None:
    """Bit for bit as the sequence itself would have gone on in its place, and the other one notices nothing."""
    one, two = scene(arch, swa_full), scene(arch, swa_full)
    fork = one.short.fork()
    assert (fork.tokens, fork.positions, fork.cells) == (one.short.tokens, one.short.positions, one.short.cells)
    fork.decode(TOKENS[100:110])
    two.short.decode(TOKENS[100:110])
    assert fork.logits().tobytes() == two.short.logits().tobytes()
    with pytest.raises(BadArgument, match="in use: close one"):
        fork.fork()
    fork.close()
    one.short.decode([7])
    two = scene(arch, swa_full)
    two.short.decode([7])
    assert np.abs(one.short.logits() - two.short.logits()).max() < 0.05  # its cells may lie elsewhere


@every_memory
def test_moved_as_a_whole_it_is_what_evaluation_there_gives(tiny, arch: str, swa_full: bool) -> None:
    """0.05: keys are f16, and turning them rounds them once more."""
    context = make_context(_core.Model.load(str(tiny(arch))), n_seq_max=2, swa_full=swa_full, n_ctx=1024, n_batch=64)
    moved, there = _core.Sequence(context), _core.Sequence(context)
    moved.decode(TOKENS[:40])
    there.decode(TOKENS[:40], position=25)
    if not swa_full:
        with pytest.raises(CannotShift):
            moved.add(0, None, 25)
        return
    moved.add(0, None, 25)
    assert not moved.has_logits
    assert (moved.positions, moved.pos_max) == (there.positions, 64)
    moved.decode([9])
    logits = moved.logits()
    there.decode([9])
    assert np.abs(logits - there.logits()).max() < 0.05


CAPABILITIES = {
    ("llama", True): ("full", True, ""),
    ("gemma3", True): ("full", True, ""),
    ("gemma3", False): ("extend", False, "sliding window of 32 tokens without swa_full"),
    ("mamba", True): ("extend", False, "recurrent"),
    ("lfm2", True): ("extend", False, "hybrid: part attention, part recurrent"),
    ("jamba", True): ("extend", False, "hybrid: part attention, part recurrent"),
}


@every_memory
def test_capability_is_what_really_happens(tiny, arch: str, swa_full: bool) -> None:
    context = make_context(_core.Model.load(str(tiny(arch))), n_ctx=1024, n_batch=64, swa_full=swa_full)
    sequence = _core.Sequence(context)
    for start in range(0, 400, 50):
        sequence.decode(TOKENS[start : start + 50])
    found = context.memory.capability()
    assert (found.level, found.can_shift, found.reason) == CAPABILITIES[arch, swa_full]
    assert (sequence.tokens, sequence.positions) == (TOKENS, [*range(400)])
    try:
        sequence.trim(50)
        level = "full"
    except CannotTrim:
        level = "extend"
    assert found.level == level
    try:
        sequence.add(20, None, 1)
        shifted = True
    except CannotShift:
        shifted = False
    assert found.can_shift == shifted
    again = context.memory.capability()  # found out once
    assert (again.level, again.can_shift, again.reason) == CAPABILITIES[arch, swa_full]


def test_a_model_that_encodes_has_no_memory(tiny) -> None:
    memory = make_context(_core.Model.load(str(tiny("bert")))).memory
    assert (memory.used, memory.total, memory.counts, memory.can_shift) == (0, 0, {}, False)
    assert memory.capability().level == "none"
    assert "no KV memory" in memory.capability().reason


FOUND: list[tuple[str, str, list[Operation]]] = [
    (
        "llama.cpp's division turns keys the wrong way",
        "attention",
        [("open", 0), ("decode", 0, 8, 27), ("sequence", "div", 0, 0, None, 2), ("decode", 0, 1, 7)],
    ),
    (
        "recurrent state knows no position but its last, which may be less than the tokens before it",
        "recurrent",
        [
            ("open", 0),
            ("decode", 0, 5, 54),
            ("sequence", "div", 0, 0, None, 3),
            ("save_all", "A"),
            ("restore_all", "A"),
            ("decode", 0, 1, 7),
        ],
    ),
    (
        "cells before the hole of a window do not close it",
        "window",
        [
            ("open", 0),
            ("open", 1),
            ("decode", 0, 60, 1, "LAST", 50),
            *[("decode", 0, 60, n) for n in (2, 3, 4)],
            ("decode", 1, 60, 5),
            ("cp", 1, 0, 0, 10),
            ("sequence", "rm", 0, 110, None),
            ("decode", 0, 1, 7),
        ],
    ),
    (
        "cells of a window are let go before the first micro-batch of a step sees them",
        "window",
        [
            ("open", 0),
            ("open", 1),
            ("open", 2),
            ("batch", [(1, 7, 36, "ALL"), (0, 1, 66, "LAST"), (2, 1, 88, "NONE")]),
            ("fork", 2),
            ("save", "C", 1),
            ("restore", "C", 2),
            ("batch", [(1, 2, 69, "NONE"), (3, 1, 71, "LAST"), (2, 15, 25, "LAST")]),
            ("decode", 1, 23, 12),
            ("sequence", "clear", 2),
            ("decode", 1, 45, 33, "ALL"),
        ],
    ),
    (
        "there is no state of no tokens",
        "hybrid, mamba",
        [("open", 0), ("decode", 0, 5, 1), ("save", "A", 0, 7, 9), ("save", "A", 0, 5, None)],
    ),
]


@pytest.mark.parametrize(("name", "operations"), [case[1:] for case in FOUND], ids=[case[0] for case in FOUND])
def test_faults_that_random_walks_have_found(name: str, operations: list[Operation]) -> None:
    assert failure_of(next(kind for kind in KINDS if kind.name == name), operations) is None


def test_the_partial_state_of_a_range_is_not_all_that_a_window_needs(tiny) -> None:
    sequence = _core.Sequence(make_context(_core.Model.load(str(tiny("gemma3")))))
    sequence.decode(TOKENS[:50])
    part, whole = sequence.save(40, None, partial=True), sequence.save(partial=True)
    sequence.decode([9])
    logits = sequence.logits()
    with pytest.raises(BadState, match="cells are missing before position 40"):
        sequence.rewind(part, TOKENS[:50])
    assert sequence.logits().tobytes() == logits.tobytes()
    sequence.rewind(whole, TOKENS[:50])
    sequence.decode([9])
    assert np.abs(sequence.logits() - logits).max() < 0.05


def test_a_copy_on_the_device_that_lies_in_more_pieces_than_the_last() -> None:
    """llama.cpp would end the process: it reuses the buffer of the last one, which has no room between pieces."""
    run_apart(
        """
        from native.walk.kinds import KINDS
        from native.walk.run import failure_of
        pieces = [("batch", [(0, 1, n, "LAST"), (1, 1, n, "LAST")]) for n in range(40)]
        for kind in [kind for kind in KINDS if kind.on_device]:
            operations = [
                ("open", 0), ("open", 1), ("decode", 0, 40, 3), ("save_on_device", "X", 0), ("decode", 0, 9, 1),
                ("restore_on_device", "X", 0), ("clear_all", True), *pieces, ("save_on_device", "Y", 0),
                ("decode", 0, 3, 5), ("restore_on_device", "Y", 0), ("decode", 0, 1, 7), ("save_all", "A"),
            ]
            failure = failure_of(kind, operations)
            assert failure is None, (kind.name, failure)
        """
    )
