"""Time to the first token of a cell whose long prompt is in memory, against a cell that has to compute it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from statistics import median
from typing import Final

from benchmarks.harness import Bench, Row
from ipyllama.chat import Chat
from ipyllama.llm import LLM
from ipyllama.reply import Reply, Usage

PREFIX: Final = 2000
ROUNDS: Final = 3


@dataclass(frozen=True, slots=True)
class Round:
    """Milliseconds to the first token."""

    cold: float
    warm: float
    back: float


def measure(bench: Bench) -> Iterator[Row]:
    with bench.load() as llm:
        numbers = count()
        found = bench.interleave({"ours": lambda: one_round(llm, next(numbers))}, ROUNDS)["ours"]
    cold, warm, back = (median(getattr(each, name) for each in found) for name in ("cold", "warm", "back"))
    against = f"to compute {PREFIX:,} tokens"
    yield Row("first token, the next cell", warm, "ms", cold, against, warm / cold)
    yield Row("first token, back in another chat", back, "ms", cold, against, back / cold)


def one_round(llm: LLM, number: int) -> Round:
    """A new conversation, its second cell, another conversation, and back in the first one, which waited in RAM."""
    chat = llm.chat(system=long_text(llm, number))
    cold, warm = ask(chat), ask(chat)
    ask(llm.chat(system="You answer in verse."))
    back = ask(chat)
    usages = (cold.usage, warm.usage, back.usage)
    if not (all(map(most_of_it, usages, ("computed", "reused", "restored")))):
        raise RuntimeError(f"not the rounds that were to be measured: {usages}")
    return Round(*(1000 * reply.timings.first_token for reply in (cold, warm, back)))


def ask(chat: Chat) -> Reply:
    return chat.ask("And then, what did they do?", max_tokens=8, temperature=0.0)


def most_of_it(usage: Usage, how: str) -> bool:
    return bool(getattr(usage, how) > 0.9 * usage.prompt)


def long_text(llm: LLM, number: int) -> str:
    """A system prompt of about 2,000 tokens that begins like no other."""
    tokens = llm.tokenize(
        f"Story {number}. " + "They went on, over the bridge and along the old road to the sea. " * 200
    )
    return llm.detokenize(tokens[:PREFIX])
