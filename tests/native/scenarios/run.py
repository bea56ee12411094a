"""Random scenarios, and the shortest list of operations that fails. `python -m native.scenarios.run` from tests/ runs
many."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from native.scenarios.cold import MOST, Cold
from native.scenarios.damage import DAMAGES
from native.scenarios.subject import RAM, Kind, Mismatch, Operation, Subject, blocks_of
from native.shorten import shorten
from tiny import build
from tqdm import tqdm

TINY: Final = ("llama", "gemma3", "mamba", "lfm2", "jamba")
"""Full attention, a window, recurrent, two hybrids."""
_LENGTH: Final = (6, 18)  # operations of a scenario
_SALTS: Final = 3

Draw = random.Random


def _salt(draw: Draw) -> int:
    return draw.randrange(_SALTS)


def _n(draw: Draw) -> int:
    """About the ends of pieces and windows above all."""
    return draw.choice([2, 3, 8, 33, 64, 65, draw.randint(4, 120), 256, 257, 258, draw.randint(240, 530), 513, 600])


def _out(draw: Draw) -> int:
    return draw.choice([1, 2, 3, MOST])


def _point(draw: Draw) -> int:
    """Mostly the newest, or that before it, as two conversations that take turns."""
    return draw.choice([-1, -1, -1, -2, draw.randrange(20)])


def _evict(draw: Draw) -> Operation:
    return ("evict", draw.choice([0.0, 0.3, 0.6, 0.9, 1.0]), draw.choice([None, None, draw.randint(0, 9)]))


def _damage(draw: Draw) -> Operation:
    if draw.random() < 0.1:
        return ("plant", draw.randrange(1000), draw.randrange(1000))
    return ("damage", draw.choice([*DAMAGES, "flip", "rot"]), draw.randrange(1000), draw.randrange(1 << 20))


def _go_on(draw: Draw) -> Operation:
    sizes = (_n(draw), _n(draw)) if draw.random() < 0.2 else (_n(draw),)
    return ("go_on", _point(draw), _salt(draw), sizes, _out(draw))


def _edit(draw: Draw, how: str) -> Operation:
    return (how, _point(draw), draw.randrange(9), draw.randrange(600), _salt(draw), _out(draw))


_MAKERS: Final[list[tuple[float, Callable[[Draw], Operation]]]] = [
    (10, lambda draw: ("ask", _salt(draw), _n(draw), _out(draw))),
    (20, _go_on),
    (10, lambda draw: ("again", _point(draw), _out(draw))),
    (12, lambda draw: _edit(draw, "edit")),
    (5, lambda draw: _edit(draw, "loosely")),
    (7, lambda draw: ("stop", _point(draw), _salt(draw), _n(draw), draw.randrange(8))),
    (14, lambda draw: ("restart",)),
    (5, _evict),
    (4, lambda draw: ("ram", draw.choice([0, 0, 4_000, 60_000, RAM]))),
    (12, _damage),
]
_WEIGHTS: Final = [weight for weight, _ in _MAKERS]
_LOSSY: Final = ("evict", "damage", "plant")


def operations_of(seed: str) -> tuple[bool, list[Operation]]:
    """Whether the model is to seem slow, and what happens. In a third of all nothing that was kept is lost."""
    draw = random.Random(seed)
    slow, lossless = draw.random() < 0.7, draw.random() < 0.33
    made = [draw.choices(_MAKERS, _WEIGHTS)[0][1](draw) for _ in range(draw.randint(*_LENGTH))]
    first: Operation = ("ask", _salt(draw), _n(draw), _out(draw))
    return slow, [first, *(each for each in made if not (lossless and each[0] in _LOSSY))]


def carry_out(kind: Kind, slow: bool, operations: Sequence[Operation]) -> tuple[Subject, Mismatch | None]:
    """What goes wrong in these operations."""
    with tempfile.TemporaryDirectory(prefix="ipyllama-scenario-") as folder:
        subject = Subject(kind, Path(folder), slow=slow)
        try:
            for operation in operations:
                subject.do(operation)
                subject.counts[operation[0]] += 1
        except Mismatch as mismatch:
            return subject, mismatch
        finally:
            subject.close()
    return subject, None


def scenario(kind: Kind, seed: str) -> Subject:
    """One random scenario, with what it came to. Raises AssertionError with a short list of operations that fails."""
    slow, operations = operations_of(seed)
    subject, failure = carry_out(kind, slow, operations)
    if failure is not None:
        short, last = shorten(operations, failure, lambda fewer: carry_out(kind, slow, fewer)[1])
        lines = "\n".join(f"    {operation!r}," for operation in short)
        raise AssertionError(
            f"{kind.name!r}, seed {seed!r}, slow={slow}, {len(operations)} operations: {failure}\n"
            f"short form:\n{lines}\n{last}"
        )
    return subject


@contextmanager
def kinds(names: Sequence[str], folder: Path, smollm2: Path | None = None) -> Iterator[list[Kind]]:
    """The models by name, tiny ones built in `folder`; each has blocks of the one before it to be planted."""
    opened: list[Kind] = []
    try:
        for name in names:
            if name == "smollm2":
                assert smollm2 is not None
                kind = Kind(name, smollm2, Cold(smollm2), (100, 40_000), longest=70)
            else:
                path = folder / f"{name}.gguf"
                build(name, path)
                kind = Kind(name, path, Cold(path), (262, 356), longest=600)
            opened.append(kind)
        foreign = [blocks_of(kind, folder / f"blocks-{kind.name}") for kind in opened]
        yield [replace(kind, foreign=foreign[number - 1]) for number, kind in enumerate(opened)]
    finally:
        for kind in opened:
            kind.cold.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--models", nargs="+", default=[*TINY, "smollm2"], help="default: %(default)s")
    arguments = parser.parse_args()
    from ipyllama.models import resolve

    smollm2 = resolve("smollm2").path if "smollm2" in arguments.models else None
    total, worst = Counter[str](), 0.0
    with (
        tempfile.TemporaryDirectory(prefix="ipyllama-scenarios-") as folder,
        kinds(arguments.models, Path(folder), smollm2) as models,
    ):
        for case in tqdm(range(arguments.cases), unit=" scenarios"):
            subject = scenario(models[case % len(models)], f"{arguments.seed}.{case}")
            total, worst = total + subject.counts, max(worst, subject.worst)
    sys.stdout.write(f"{arguments.cases} scenarios, no mismatch: {dict(sorted(total.items()))}\n")
    sys.stdout.write(f'largest difference of a logit under reuse="token": {worst:.3g}\n')


if __name__ == "__main__":
    main()
