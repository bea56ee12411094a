"""Prefill and decoding through the Python API, against llama-bench built from the same source with the same options.

llama-bench runs with our choice of flash attention, else with its own defaults (batches of 2,048 in micro-batches of
512, f16 KV), and as many threads as we use. It evaluates random tokens and samples nothing. Ours is a whole job with
every load option at its default: the evaluation schedule in pieces of 256 tokens, the last prompt token alone,
sampling, text assembly, events. Decoding begins with an empty context in both.

Another group of runs lets llama-bench choose flash attention itself ("auto", which is on for CPUs): reading is faster
so, writing after a long prompt slower. That is what our default is about.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from benchmarks.harness import Bench, Row, Target
from benchmarks.one_run import AFTER, DECODE, LONG, PREFILL
from ipyllama.loading import LoadOptions, choose, physical_cores
from ipyllama.models import resolve

ROOT: Final = Path(__file__).resolve().parent.parent
PAIRS: Final = 7
LONG_PAIRS: Final = 3
AS_FAST: Final = Target("ratio", 0.97, at_least=True)


class Lengths(NamedTuple):
    """Tokens that are in the context already, that are read, and that are written."""

    after: int
    prefill: int
    decode: int


def measure(bench: Bench) -> Iterator[Row]:
    local, threads = resolve(bench.model), physical_cores()
    model, chosen = str(local.path), choose(local, LoadOptions()).flash_attention
    as_ours = "auto" if chosen is None else str(int(chosen))
    program = provide("llama-bench")
    short, long = Lengths(0, PREFILL, DECODE), Lengths(AFTER, PREFILL, LONG)
    runs = {"ours": lambda: ours(model, "short"), "theirs": lambda: theirs(program, model, threads, as_ours, short)}
    found = bench.interleave(runs, PAIRS)

    def row(name: str, field: str, reference: str, target: Target | None = None) -> Row:
        a = median(speeds[field] for speeds in found["ours"])
        b = median(speeds[reference] for speeds in found["theirs"])
        return Row(name, a, "tok/s", b, "llama-bench", a / b, target)

    yield row(f"prefill, {PREFILL} tokens, {threads} threads", "prefill", "prefill", AS_FAST)
    yield row(f"decode, {DECODE} tokens, greedy", "decode", "decode", AS_FAST)
    yield row("  with the default sampling", "sampled", "decode")
    yield row("  native steps alone", "raw", "decode")
    runs = {"ours": lambda: ours(model, "long"), "theirs": lambda: theirs(program, model, threads, "auto", long)}
    found = bench.interleave(runs, LONG_PAIRS)
    yield row(f'prefill of {PREFILL} more after {AFTER:,}, it with flash attention "auto"', "prefill", "prefill")
    yield row(f'decode, {LONG} tokens after {AFTER:,}, it with flash attention "auto"', "decode", "decode")


def provide(tool: str) -> str:
    """The path of one of upstream's programs, built when it is missing; progress goes to stderr."""
    return output(sys.executable, str(ROOT / "llama.cpp" / "provide.py"), "--tool", tool).splitlines()[-1]


def theirs(program: str, model: str, threads: int, flash_attention: str, lengths: Lengths) -> dict[str, float]:
    after, prefill, decode = lengths
    sizes = ("-d", str(after), "-p", str(prefill), "-n", str(decode), "-t", str(threads))
    tests = json.loads(output(program, "-m", model, *sizes, "-r", "1", "-fa", flash_attention, "-o", "json"))
    rates = {test["n_gen"]: test["avg_ts"] for test in tests}
    return {"prefill": rates[0], "decode": rates[decode]}


def ours(model: str, which: str) -> dict[str, float]:
    speeds: dict[str, float] = json.loads(output(sys.executable, "-m", "benchmarks.one_run", model, which))
    return speeds


def output(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout
