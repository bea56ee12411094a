"""What keeping states costs while a prompt is read and an answer is written: on disk, in RAM only, and not at all."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from statistics import median
from typing import Final

from benchmarks.harness import Bench, Row, Target
from benchmarks.one_run import DECODE, PREFILL, Speed

ROUNDS: Final = 9
LITTLE: Final = Target("ratio", 0.97, at_least=True)


def measure(bench: Bench) -> Iterator[Row]:
    runs = {where: (lambda where=where: one(bench, where)) for where in ("disk", "ram", "nothing")}
    found = bench.interleave(runs, ROUNDS)
    for name, field in ((f"prefill, {PREFILL:,} tokens", "prefill"), (f"decode, {DECODE} tokens", "decode")):
        disk, ram, nothing = (median(getattr(speed, field) for speed in found[where]) for where in runs)
        yield Row(f"{name}, states kept on disk", disk, "tok/s", nothing, "nothing kept", disk / nothing, LITTLE)
        yield Row("  in RAM only", ram, "tok/s", nothing, "nothing kept", ram / nothing)


def one(bench: Bench, where: str) -> Speed:
    command = [sys.executable, "-m", "benchmarks.one_saving", bench.model, where]
    return Speed(**json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))
