"""`python -m benchmarks.one_run MODEL short|long`: the speeds of one fresh process, as JSON.

A process of its own, because llama-bench is one each time, and because OpenMP counts the threads of all contexts in a
process.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from typing import Final

from ipyllama import _core
from ipyllama.ledger import Ledger
from ipyllama.llm import LLM, load
from ipyllama.loading import LoadOptions, context_options
from ipyllama.options import GenerateOptions
from ipyllama.reply import Reply

PREFILL: Final = 512
DECODE: Final = 128
AFTER: Final = 2048
"""Tokens that are in the context when the long run begins to measure."""
LONG: Final = 64
"""Tokens that it writes."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens per second."""

    prefill: float
    decode: float
    """greedily, through the Python API"""
    sampled: float
    """with the default sampling options"""
    raw: float
    """steps of the native sequence, nothing else"""


def main() -> None:
    path, which = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="ipyllama-bench-") as folder, load(path, cache=folder) as llm:
        found = short(llm) if which == "short" else long(llm)
    print(json.dumps(found))


def long(llm: LLM) -> dict[str, float]:
    """What a prompt and an answer take after a long prompt."""
    text = llm.tokenize("The light was slow to come over the hills, and the river was quiet. " * 240)
    generate(llm, text[: AFTER + 1], 1)  # the last token of a prompt is evaluated alone
    reply = generate(llm, text[: AFTER + PREFILL], LONG, known=AFTER, temperature=0.0)
    return {"prefill": reply.usage.computed / reply.timings.prefill, "decode": decode_rate(reply)}


def short(llm: LLM) -> dict[str, float]:
    """What both take with an empty context."""
    text = llm.tokenize("The light was slow to come over the hills, and the river was quiet. " * 60)
    generate(llm, text[3:PREFILL], 2)  # llama-bench warms up too
    prefill = PREFILL / generate(llm, text[:PREFILL], 1, temperature=0.0).timings.prefill
    greedy = decode_rate(generate(llm, text[:1], DECODE, temperature=0.0))
    sampled = decode_rate(generate(llm, text[1:2], DECODE))
    return asdict(Speed(prefill, greedy, sampled, raw_rate(str(llm.path), llm.options)))


def generate(llm: LLM, tokens: list[int], max_tokens: int, known: int = 0, **options: float) -> Reply:
    """A reply of which `known` tokens were in memory and the rest was computed, and that went on to `max_tokens`."""
    ledger = Ledger().append_prompt(tokens)
    reply = llm.generate(ledger, GenerateOptions(max_tokens=max_tokens).replace_from(options)).result()
    if reply.usage.computed != len(tokens) - known or reply.usage.generated != max_tokens:
        raise RuntimeError(f"not the run that was to be measured: {reply.usage}")
    return reply


def decode_rate(reply: Reply) -> float:
    return reply.timings.tokens_per_second(reply.usage.generated)


def raw_rate(path: str, options: LoadOptions) -> float:
    """Decoding in a loop over the native sequence, on this thread."""
    model = _core.Model.load(path)
    sequence = _core.Sequence(_core.Context(model, context_options(options)))
    token = model.tokenize("the")[:1]
    for _ in range(8):
        sequence.decode(token)
    sequence.clear()
    began = time.monotonic()
    for _ in range(DECODE):
        sequence.decode(token)
    return DECODE / (time.monotonic() - began)


if __name__ == "__main__":
    main()
