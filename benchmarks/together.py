"""Several answers at once against the same answers one after another: samples of one message, and independent prompts.

Every answer has the same number of tokens, because the model is not allowed to end one. Single answers reuse what is in
memory of their prompt, as they do in a notebook. What a batch saves depends on the file: llama.cpp multiplies weights
of some types, Q4_1 among them, with one token after the other, so such a file is measured with these as Q8_0, too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.harness import Bench, Row, Target
from benchmarks.requantized import as_q8_0
from ipyllama.llm import LLM
from ipyllama.models import resolve
from ipyllama.reply import Reply

SAMPLES: Final = 4
LONG: Final = 128
"""Tokens of each sample."""
SHORT: Final = 32
"""Tokens of each answer to an independent prompt."""
ROUNDS: Final = 5
SAMPLED: Final = f"{SAMPLES} samples of {LONG} tokens"
AT_MOST: Final = Target("ratio", 0.6)
TOPICS: Final = (
    *("rain", "snow", "wind", "bread", "salt", "honey", "glass", "paper"),
    *("wool", "iron", "stone", "ships", "bridges", "maps", "clocks", "bells"),
)


def measure(bench: Bench) -> Iterator[Row]:
    with bench.load() as llm:
        numbers = count()
        runs = {
            "samples": lambda: samples(llm, next(numbers)),
            "singles": lambda: singles(llm, next(numbers)),
            "map": lambda: mapped(llm, next(numbers)),
            "loop": lambda: looped(llm, next(numbers)),
        }
        found = {name: median(seconds) for name, seconds in bench.interleave(runs, ROUNDS).items()}
    yield row(SAMPLED, found["samples"], found["singles"], "one by one", AT_MOST)
    yield row(f"map, {len(TOPICS)} prompts, {SHORT} tokens each", found["map"], found["loop"], "one after another")
    other = Path(bench.folder.name) / "q8_0.gguf"
    if as_q8_0(resolve(bench.model).path, other):
        with Bench(str(other), bench.quick).load() as llm:
            runs = {"samples": lambda: samples(llm, next(numbers)), "singles": lambda: singles(llm, next(numbers))}
            found = {name: median(seconds) for name, seconds in bench.interleave(runs, ROUNDS).items()}
        yield row(f"{SAMPLED}, weights as Q8_0", found["samples"], found["singles"], "one by one", AT_MOST)


def row(name: str, ours: float, reference: float, against: str, target: Target | None = None) -> Row:
    return Row(name, ours, "s", reference, against, ours / reference, target)


def samples(llm: LLM, number: int) -> float:
    chat, began = llm.chat(), time.perf_counter()
    return _seconds(began, chat.samples(_message(number), SAMPLES, **_options(llm, LONG)), LONG)


def singles(llm: LLM, number: int) -> float:
    chat, options, began = llm.chat(), _options(llm, LONG), time.perf_counter()
    turns = [chat.ask(_message(number), after=None, seed=seed, **options) for seed in range(SAMPLES)]
    return _seconds(began, turns, LONG)


def mapped(llm: LLM, number: int) -> float:
    began = time.perf_counter()
    replies = llm.map(_prompts(number), progress=lambda done, total, label: None, **_options(llm, SHORT))
    return _seconds(began, replies, SHORT)


def looped(llm: LLM, number: int) -> float:
    options, began = _options(llm, SHORT), time.perf_counter()
    return _seconds(began, [llm.chat().ask(prompt, **options) for prompt in _prompts(number)], SHORT)


def _message(number: int) -> str:
    """A question that was never asked before: nothing is replayed."""
    return f"Invent a village, number {number}, and tell who lives there and what they do all day."


def _prompts(number: int) -> list[str]:
    return [f"Letter {number}: what is {topic} good for?" for topic in TOPICS]


def _options(llm: LLM, n: int) -> dict[str, Any]:
    ends = [token for token in range(llm.vocab.n_tokens) if llm.vocab.is_eog(token)]
    return {"max_tokens": n, "temperature": 0.8, "logit_bias": [(token, -math.inf) for token in ends]}


def _seconds(began: float, replies: Sequence[Reply], n: int) -> float:
    seconds = time.perf_counter() - began
    if any(reply.replayed or reply.usage.generated != n for reply in replies):
        raise RuntimeError(f"not the run that was to be measured: {[reply.usage for reply in replies]}")
    return seconds
