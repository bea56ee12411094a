"""What a model answers that has nothing in memory: what every answer has to equal, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from native.ask import bits
from numpy.typing import NDArray

from ipyllama.ledger import Ledger
from ipyllama.llm import LLM, load
from ipyllama.options import GenerateOptions, Reuse
from ipyllama.prefix import PrefixMemory
from ipyllama.reply import Reply, Usage

N_CTX: Final = 2048
MOST: Final = 12
"""Tokens of an answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Greedy tokens, and the bits of the logits that each was chosen by."""

    tokens: tuple[int, ...]
    logits: tuple[NDArray[np.uint32], ...]

    def begins(self, n: int) -> Answer:
        return Answer(self.tokens[:n], self.logits[:n])

    def differs(self, other: Answer) -> str:
        """Where, in words; empty where every bit is the same."""
        if len(self.logits) != len(other.logits):
            return f"{len(self.logits)} rows of logits against {len(other.logits)}"
        for n, (a, b) in enumerate(zip(self.logits, other.logits, strict=True)):
            if not np.array_equal(a, b):
                most = np.abs(a.view(np.float32) - b.view(np.float32)).max()
                return f"logits of sampled token {n} are off by {most:.3g}"
        return "" if self.tokens == other.tokens else f"tokens {self.tokens} against {other.tokens}"


class Watched:
    """A loaded model; the logits after each of its steps are kept."""

    def __init__(self, path: Path, cache: PrefixMemory | None, ram_limit: int) -> None:
        self.llm: LLM = load(path, cache=cache, ram_limit=ram_limit, n_ctx=N_CTX, n_threads=1)
        self.live = self.llm._engine._live
        self._evaluate, self._rows = self.live.evaluate, dict[int, NDArray[np.uint32]]()
        self.live.evaluate = self._step

    def ask(
        self, ledger: Ledger, n: int, stop_after: int | None = None, reuse: Reuse = "exact"
    ) -> tuple[Reply, Ledger, Answer]:
        """Up to `n` tokens, cancelled after that many events. Also the ledger with them."""
        self._rows, kept = {}, list[Ledger]()

        def keep(reply: Reply, after: Ledger) -> Reply:
            kept.append(after)
            return reply

        options = GenerateOptions(temperature=0, max_tokens=n, reuse=reuse)
        job = self.llm.generate(ledger, options, wrap=keep, fresh=True)
        if stop_after is not None:
            for number, _ in enumerate(job):
                if number == stop_after:
                    job.cancel()
        reply = job.result()
        rows = [self._rows[len(ledger) + i] for i in range(len(reply.tokens))]
        return reply, kept[0], Answer(reply.tokens, tuple(rows))

    def replay(self, ledger: Ledger, n: int) -> tuple[int, ...]:
        """The tokens of a reply that may be a remembered one."""
        return self.llm.generate(ledger, GenerateOptions(temperature=0, max_tokens=n)).result().tokens

    def _step(self, tokens: Sequence[int]) -> None:
        self._evaluate(tokens)
        self._rows[len(self.live)] = bits(self.live.sequence.logits())


class Cold:
    """One model, asked from an empty context every time. What it said is remembered."""

    def __init__(self, path: Path) -> None:
        self._model = Watched(path, None, 0)
        self._said: dict[Ledger, Answer] = {}

    def ask(self, ledger: Ledger) -> Answer:
        if ledger not in self._said:
            self._model.llm._engine.call(lambda task: self._model.live.clear()).result()
            reply, _, answer = self._model.ask(ledger, MOST)
            assert reply.usage == Usage(computed=len(ledger), generated=len(reply.tokens))
            self._said[ledger] = answer
        return self._said[ledger]

    def close(self) -> None:
        self._model.llm.close()
