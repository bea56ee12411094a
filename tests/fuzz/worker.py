"""The process that runs cases: `python -m fuzz.worker TARGET SEED FIRST END FOLDER` tells the end of each on stdout."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from random import Random


def run_case(target: str, seed: int, number: int, folder: Path) -> str:
    """Run one case; how it ended. The numbers of a case do not depend on the cases before it."""
    outcome: str = import_module(f"fuzz.{target}").case(Random(f"{seed}/{number}"), folder)
    return outcome


def main() -> None:
    target, folder = sys.argv[1], Path(sys.argv[5])
    seed, first, end = map(int, sys.argv[2:5])
    for number in range(first, end):
        sys.stdout.write(f"{run_case(target, seed, number, folder)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
