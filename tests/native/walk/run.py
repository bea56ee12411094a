"""Random walks, and the shortest list of operations that fails. `python -m native.walk.run` from tests/ runs many."""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Callable
from functools import partial

from native.shorten import shorten
from native.walk.kinds import KINDS, N_SEQUENCES, Kind
from native.walk.subject import Failure, Operation
from native.walk.walk import Walk
from tqdm import tqdm

_NAMES = "ABC"
_LENGTH = (10, 60)  # operations of a walk

Draw = random.Random


def _number(draw: Draw, walk: Walk) -> int:
    """Mostly of a sequence that holds something."""
    filled = [number for number, run in walk.model.runs.items() if run.tokens]
    return draw.choice(filled) if filled and draw.random() < 0.85 else draw.randrange(N_SEQUENCES)


def _n(draw: Draw) -> int:
    return draw.choice([1, 1, 2, 3, 5, 8, draw.randint(9, 24), draw.randint(25, 64)])


def _salt(draw: Draw) -> int:
    return draw.randrange(100)


def _range(draw: Draw, walk: Walk, number: int) -> tuple[int, int | None]:
    """Positions in and about the sequence; every other range goes to the end."""
    end = walk.model.runs[number].next if number in walk.model.runs else 0
    p0, p1 = sorted(draw.randint(0, end + 2) for _ in range(2))
    return draw.choice([0, p0, p0]), draw.choice([None, p1])


def _decode(draw: Draw, walk: Walk) -> Operation:
    number = draw.randrange(N_SEQUENCES)
    empty = number in walk.model.runs and not walk.model.runs[number].tokens
    position = draw.choice([None, draw.randint(0, 60)]) if empty or draw.random() < 0.03 else None
    outputs = draw.choice(["LAST", "LAST", "LAST", "ALL", "NONE"])
    return ("decode", number, _n(draw), _salt(draw), outputs, position)


def _parts(draw: Draw, walk: Walk) -> list[tuple[int, int, int, str]]:
    ids = draw.sample(list(walk.model.runs), draw.randint(1, len(walk.model.runs))) if walk.model.runs else [0]
    return [
        (number, draw.choice([1, 1, 2, 7, 15]), _salt(draw), draw.choice(["LAST", "ALL", "NONE"])) for number in ids
    ]


def _rm(draw: Draw, walk: Walk) -> Operation:
    number = _number(draw, walk)
    return ("sequence", "rm", number, *_range(draw, walk, number))


def _shift(draw: Draw, walk: Walk) -> Operation:
    """Recurrent state can be moved as a whole only, so the whole is what it is mostly asked for."""
    number = _number(draw, walk)
    p0, p1 = _range(draw, walk, number)
    if draw.random() < (0.7 if walk.kind.recurrent else 0.2):
        p0, p1 = 0, None
    if draw.random() < 0.3:
        return ("sequence", "div", number, p0, p1, draw.choice([1, 2, 2, 3, 4]))
    return ("sequence", "add", number, p0, p1, draw.choice([-7, -1, 1, 3, 20, 60, -p0]))


def _trim(draw: Draw, walk: Walk) -> Operation:
    number = _number(draw, walk)
    n = len(walk.model.runs[number].tokens) if number in walk.model.runs else 0
    return ("sequence", "trim", number, max(0, n - draw.choice([0, 1, 2, 5, 12, draw.randint(0, n + 1), -1])))


def _cp(draw: Draw, walk: Walk) -> Operation:
    source = _number(draw, walk)
    empty = [number for number, run in walk.model.runs.items() if not run.tokens]
    number = draw.choice(empty) if empty and draw.random() < 0.5 else draw.randrange(N_SEQUENCES)
    return ("cp", source, number, *draw.choice([(0, None), _range(draw, walk, source), _range(draw, walk, source)]))


def _save(draw: Draw, walk: Walk) -> Operation:
    number = _number(draw, walk)
    p0, p1 = draw.choice([(0, None), (0, None), _range(draw, walk, number)])
    return ("save", draw.choice(_NAMES), number, p0, p1, draw.random() < 0.5)


def _chain(draw: Draw, walk: Walk) -> list[Operation]:
    """What the blocks of a store are for: a prefix and what came after it, saved as it grew, put together again."""
    number = _number(draw, walk)
    end = walk.model.runs[number].next if number in walk.model.runs else 0
    return [
        ("save", "A", number),
        ("decode", number, _n(draw), _salt(draw)),
        ("save", "B", number, end, None),
        ("sequence", "clear", number),
        ("restore", "A", number),
        ("append", "B", number),
        ("sequence", "rm", number, end + draw.randint(0, 40), None),
    ]


def _copy(draw: Draw, walk: Walk) -> Operation:
    """Some use of something saved; mostly one that makes sense."""
    if not walk.copies:
        return _save(draw, walk)
    name = draw.choice(list(walk.copies))
    copy, runs = walk.copies[name], walk.model.runs
    if copy.owner is not None:
        return ("restore_on_device", name, draw.choice([*walk.on_device, _number(draw, walk)]))
    saved = [token.token for token in copy.saved.run.tokens]
    if copy.saved.partial:
        begin_so = [number for number, run in runs.items() if [t.token for t in run.tokens[: len(saved)]] == saved]
        return ("rewind", name, draw.choice(begin_so) if begin_so and draw.random() < 0.8 else _number(draw, walk))
    first = copy.saved.run.tokens[0].pos
    end_there = [number for number, run in runs.items() if run.next == first and run.tokens]
    if end_there and draw.random() < 0.8:
        return ("append", name, draw.choice(end_there))
    return (draw.choice(["restore", "restore", "append"]), name, draw.randrange(N_SEQUENCES))


_MAKERS: list[tuple[float, Callable[[Draw, Walk], Operation | list[Operation]]]] = [
    (26, _decode),
    (10, lambda draw, walk: ("batch", _parts(draw, walk))),
    (5, lambda draw, walk: ("fork", _number(draw, walk))),
    (6, _cp),
    (7, _rm),
    (7, _trim),
    (8, _shift),
    (10, _save),
    (18, _copy),
    (4, _chain),
    (3, lambda draw, walk: ("save_on_device", draw.choice("XY"), _number(draw, walk))),
    (2, lambda draw, walk: ("save_all", draw.choice(_NAMES))),
    (2, lambda draw, walk: ("restore_all", draw.choice([*walk.contexts, "A"]))),
    (1, lambda draw, walk: ("sequence", "keep", _number(draw, walk))),
    (1, lambda draw, walk: ("sequence", "clear", _number(draw, walk))),
    (0.3, lambda draw, walk: ("clear_all", draw.random() < 0.5)),
    (3, lambda draw, walk: ("close", _number(draw, walk))),
    (4, lambda draw, walk: ("open", draw.choice([None, draw.randrange(N_SEQUENCES)]))),
    (1, lambda draw, walk: ("flag", _number(draw, walk), _n(draw), _salt(draw))),
    (1, lambda draw, walk: ("abort", _parts(draw, walk), draw.choice([0, 1e-4, 3e-4]))),
]
_WEIGHTS = [weight for weight, _ in _MAKERS]


def walk(kind: Kind, seed: str) -> Counter[tuple[str, str]]:
    """One random walk; how its operations ended. Raises AssertionError with a short list of operations that fails."""
    draw, done = random.Random(seed), []
    subject = Walk(kind)
    try:
        crowded = draw.random() < 0.15
        for number in range(draw.randint(1, N_SEQUENCES)):
            done.append(("open", number))
            subject.do(done[-1])
            for salt in range(2 if crowded else 0):
                done.append(("decode", number, draw.randint(40, 64), salt))
                subject.do(done[-1])
        for _ in range(draw.randint(*_LENGTH)):
            made = draw.choices(_MAKERS, _WEIGHTS)[0][1](draw, subject)
            for operation in made if isinstance(made, list) else [made]:
                done.append(operation)
                subject.do(operation)
        for number in list(subject.sequences):
            done.append(("decode", number, 1, 7))
            subject.do(done[-1])
        done.append(("save_all", "A"))
        subject.do(done[-1])
    except Failure as failure:
        raise AssertionError(_report(kind, seed, done, failure)) from failure
    return subject.outcomes


def failure_of(kind: Kind, operations: list[Operation]) -> Failure | None:
    """What goes wrong in these operations."""
    subject = Walk(kind)
    try:
        for operation in operations:
            subject.do(operation)
    except Failure as failure:
        return failure
    return None


def _report(kind: Kind, seed: str, operations: list[Operation], failure: Failure) -> str:
    short, failure = shorten(operations, failure, partial(failure_of, kind))
    lines = "\n".join(f"    {operation!r}," for operation in short)
    return f"{kind.name!r}, seed {seed!r}, {len(operations)} operations, short form:\n{lines}\n{failure}"


def run(cases: int, seed: int) -> None:
    """That many walks, the kinds of memory in turn."""
    for case in tqdm(range(cases), unit=" walks"):
        walk(KINDS[case % len(KINDS)], f"{seed}.{case}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    run(arguments.cases, arguments.seed)
