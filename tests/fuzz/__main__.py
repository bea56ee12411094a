"""The command line: see the package's docstring."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from fuzz.driver import Report, run
from fuzz.worker import run_case


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description="Run many random cases against a target.")
    parser.add_argument("target", help="a module of tests/fuzz: state, gguf, calls")
    parser.add_argument("--cases", type=int, default=1000, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000, help="default: another one each time")
    parser.add_argument("--patience", type=float, default=30, help="seconds for one case (default: %(default)s)")
    parser.add_argument("--only", type=int, metavar="N", help="run case N in this process, for a debugger")
    arguments = parser.parse_args()
    if arguments.only is not None:
        with tempfile.TemporaryDirectory() as folder:
            say(run_case(arguments.target, arguments.seed, arguments.only, Path(folder)))
        return 0
    began = time.monotonic()
    report = run(arguments.target, arguments.cases, seed=arguments.seed, patience=arguments.patience, watch=watch)
    seconds = time.monotonic() - began
    say(f"{arguments.target}, seed {arguments.seed}, {seconds:.0f} s: {report}")
    for failure in report.failures:
        again = f"python -m fuzz {arguments.target} --seed {arguments.seed} --only {failure.number}"
        say(f"\n{failure.kind} in case {failure.number}: {again}\n{failure.detail}")
    return 1 if report.failures else 0


def watch(report: Report, done: int) -> None:
    if done % 5000 == 0 and done:
        say(f"{done:,} cases: {report}")


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
