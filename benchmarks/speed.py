"""Prefill and decoding through the Python API, against llama-bench built from the same source with the same options.

llama-bench runs with its own defaults (flash attention "auto", batches of 2,048 in micro-batches of 512, f16 KV) and
as many threads as we use. It evaluates random tokens and samples nothing. Ours is a whole job with every load option
at its default (flash attention "auto", f16 KV): the evaluation schedule in pieces of 256 tokens, the last prompt token
alone, sampling, text assembly, events. Decoding begins with an empty context in both.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.harness import Bench, Row, Target
from benchmarks.one_run import DECODE, PREFILL
from ipyllama.loading import physical_cores
from ipyllama.models import resolve

ROOT: Final = Path(__file__).resolve().parent.parent
PAIRS: Final = 7
AS_FAST: Final = Target("ratio", 0.97, at_least=True)


def measure(bench: Bench) -> Iterator[Row]:
    model, threads = str(resolve(bench.model).path), physical_cores()
    program = provide("llama-bench")
    runs = {"ours": lambda: ours(model), "theirs": lambda: theirs(program, model, threads)}
    found = bench.interleave(runs, PAIRS)

    def row(name: str, field: str, reference: str, target: Target | None = None) -> Row:
        a = median(speeds[field] for speeds in found["ours"])
        b = median(speeds[reference] for speeds in found["theirs"])
        return Row(name, a, "tok/s", b, "llama-bench", a / b, target)

    yield row(f"prefill, {PREFILL} tokens, {threads} threads", "prefill", "prefill", AS_FAST)
    yield row(f"decode, {DECODE} tokens, greedy", "decode", "decode", AS_FAST)
    yield row("  with the default sampling", "sampled", "decode")
    yield row("  native steps alone", "raw", "decode")


def provide(tool: str) -> str:
    """The path of one of upstream's programs, built when it is missing; progress goes to stderr."""
    return output(sys.executable, str(ROOT / "llama.cpp" / "provide.py"), "--tool", tool).splitlines()[-1]


def theirs(program: str, model: str, threads: int) -> dict[str, float]:
    sizes = ("-p", str(PREFILL), "-n", str(DECODE), "-t", str(threads))
    tests = json.loads(output(program, "-m", model, *sizes, "-r", "1", "-fa", "auto", "-o", "json"))
    rates = {test["n_gen"]: test["avg_ts"] for test in tests}
    return {"prefill": rates[0], "decode": rates[DECODE]}


def ours(model: str) -> dict[str, float]:
    speeds: dict[str, float] = json.loads(output(sys.executable, "-m", "benchmarks.one_run", model))
    return speeds


def output(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout
