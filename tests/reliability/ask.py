"""A process that asks a model again and again, as the kernel of a notebook does; what it was told, as JSON.

python -m reliability.ask MODEL FOLDER ROUNDS SEED
"""

from __future__ import annotations

import json
import random
import sys
import warnings
from typing import Any

import ipyllama
from ipyllama.llm import LLM
from ipyllama.prefix import PrefixMemory
from ipyllama.prefix.rates import Rate

N_TOKENS = 24
COMMON = [1, *(262 + (n * n) % 94 for n in range(560))]
PROMPTS = [[*COMMON[: 300 + 40 * (n % 4)], *(262 + (n + k * k) % 94 for k in range(60 * n))] for n in range(8)]


class Slow(Rate):
    """A tiny model computes faster than anything restores; that is not what is tested here."""

    def learn(self, amount: float, seconds: float) -> None:
        pass


def answer(llm: LLM, n: int) -> tuple[list[int], Any]:
    """The tokens that the model continues the n-th prompt with, and the usage."""
    from ipyllama.ledger import Ledger
    from ipyllama.options import GenerateOptions

    options = GenerateOptions(max_tokens=N_TOKENS, temperature=0.0)
    reply = llm.generate(Ledger().append_prompt(PROMPTS[n]), options, fresh=True).result()
    return list(reply.tokens), reply.usage


def ask(model: str, folder: str | None, rounds: int, seed: int) -> dict[str, Any]:
    """Every answer by prompt, and how many tokens came from the store."""
    rng, restored, damaged = random.Random(seed), 0, 0
    answers: dict[int, list[list[int]]] = {}
    memory = PrefixMemory(folder, bytes_limit="3M", ram_limit=0) if folder else None
    with ipyllama.load(model, n_ctx=2048, n_threads=1, cache=memory) as llm:
        llm.memory.rates.prefill = Slow(1.0)
        for _ in range(rounds):
            n = rng.randrange(len(PROMPTS))
            tokens, usage = answer(llm, n)
            assert usage.reused + usage.restored + usage.computed == len(PROMPTS[n])
            restored += usage.restored
            if tokens not in answers.setdefault(n, []):
                answers[n].append(tokens)
        llm.memory.flush()
        damaged = len(llm.memory.counts.damaged)
    return {"answers": answers, "restored": restored, "damaged": damaged}


if __name__ == "__main__":
    warnings.simplefilter("error")
    model, folder, rounds, seed = sys.argv[1:]
    print(json.dumps(ask(model, folder, int(rounds), int(seed))))
