"""Prefill and decoding through the Python API, against llama-bench built from the same source with the same options.

llama-bench runs with its own defaults (flash attention "auto", batches of 2,048 in micro-batches of 512, f16 KV) and
as many threads as we use. It evaluates random tokens and samples nothing. Ours is a whole job: the evaluation schedule
in pieces of 256 tokens, the last prompt token alone, sampling, text assembly, events.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.harness import Bench, Row, Target
from ipyllama import _core
from ipyllama.ledger import Ledger
from ipyllama.llm import LLM
from ipyllama.loading import context_options
from ipyllama.options import GenerateOptions
from ipyllama.reply import Reply

PROVIDE: Final = Path(__file__).resolve().parent.parent / "llama.cpp" / "provide.py"
PREFILL: Final = 512
DECODE: Final = 128
PAIRS: Final = 7
AS_FAST: Final = Target("ratio", 0.97, at_least=True)


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens per second."""

    prefill: float
    decode: float
    sampled: float = 0.0
    """decoding with the default sampling options instead of greedily"""
    raw: float = 0.0
    """decoding steps of the native sequence, nothing else"""


def measure(bench: Bench) -> Iterator[Row]:
    program = provide("llama-bench")
    with bench.load() as llm:
        path, threads = llm.path, llm.n_threads
    runs = {"ours": lambda: ours(bench), "theirs": lambda: theirs(program, path, threads)}
    found = bench.interleave(runs, PAIRS)

    def row(name: str, field: str, reference: str, target: Target | None = None) -> Row:
        a = median(getattr(speed, field) for speed in found["ours"])
        b = median(getattr(speed, reference) for speed in found["theirs"])
        return Row(name, a, "tok/s", b, "llama-bench", a / b, target)

    yield row(f"prefill, {PREFILL} tokens, {threads} threads", "prefill", "prefill", AS_FAST)
    yield row(f"decode, {DECODE} tokens, greedy", "decode", "decode", AS_FAST)
    yield row("  with the default sampling", "sampled", "decode")
    yield row("  native steps alone", "raw", "decode")


def provide(tool: str) -> Path:
    """The path of one of upstream's programs, built when it is missing; progress goes to stderr."""
    command = [sys.executable, str(PROVIDE), "--tool", tool]
    return Path(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split("\n")[-2])


def theirs(program: Path, model: Path, threads: int) -> Speed:
    command = [str(program), "-m", str(model), "-t", str(threads), "-p", str(PREFILL), "-n", str(DECODE)]
    command += ["-r", "1", "-fa", "auto", "-o", "json"]
    tests = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    rates = {test["n_gen"]: test["avg_ts"] for test in tests}
    return Speed(prefill=rates[0], decode=rates[DECODE])


def ours(bench: Bench) -> Speed:
    """A fresh load each time, as for llama-bench, which is a new process each time."""
    with bench.load() as llm:
        warm_up(llm)
        text = llm.tokenize("The light was slow to come over the hills, and the river was quiet. " * 60)
        prefill = generate(llm, text[:PREFILL], 1, temperature=0.0).timings.prefill
        decode = decode_rate(generate(llm, text[:1], DECODE, temperature=0.0))
        sampled = decode_rate(generate(llm, text[1:2], DECODE))
    return Speed(PREFILL / prefill, decode, sampled, raw(llm))


def warm_up(llm: LLM) -> None:
    """llama-bench evaluates once before it measures: pages of the weights and threads are there then."""
    generate(llm, llm.tokenize("Warm up. " * 80), 2, temperature=0.0)


def generate(llm: LLM, tokens: list[int], max_tokens: int, **options: float) -> Reply:
    """A reply computed in full: nothing of it was in memory, and it went on to `max_tokens`."""
    ledger = Ledger().append_prompt(tokens)
    reply = llm.generate(ledger, GenerateOptions(max_tokens=max_tokens).replace_from(options)).result()
    if reply.usage.computed != len(tokens) or reply.usage.generated != max_tokens:
        raise RuntimeError(f"not the run that was to be measured: {reply.usage}")
    return reply


def decode_rate(reply: Reply) -> float:
    return reply.timings.tokens_per_second(reply.usage.generated)


def raw(llm: LLM) -> float:
    """Decoding in a loop over the native sequence, on this thread, with a model and a context of its own."""
    model = _core.Model.load(str(llm.path))
    context = _core.Context(model, context_options(llm.options))
    sequence = _core.Sequence(context)
    token = model.tokenize("the")[:1]
    for _ in range(8):
        sequence.decode(token)
    sequence.clear()
    began = time.monotonic()
    for _ in range(DECODE):
        sequence.decode(token)
    rate = DECODE / (time.monotonic() - began)
    context.close()
    model.close()
    return rate
