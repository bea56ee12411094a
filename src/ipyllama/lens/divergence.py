"""How far an approximate answer is from the exact one, token by token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ipyllama.engine import Opening, Request
from ipyllama.engine.logprobs import Logits
from ipyllama.options import GenerateOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ipyllama.engine import Engine
    from ipyllama.ledger import Ledger

MOST: Final = 64
"""Tokens of an answer that are compared: the logits of each are kept until then."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """An approximate answer against the exact distributions after the same tokens."""

    kl: tuple[float, ...]
    """for each token the Kullback-Leibler divergence of the approximate from the exact distribution, in nats"""
    same: tuple[bool, ...]
    """for each, whether the likeliest token is the same"""
    computed: int
    """prompt tokens that the exact run had to compute"""
    seconds: float
    """what it took to its first token"""

    @property
    def mean_kl(self) -> float:
        """In nats; 0 where no token was compared."""
        return float(np.mean(self.kl)) if self.kl else 0.0

    @property
    def agreement(self) -> float:
        """The share of tokens where the likeliest one is the same; 1 where no token was compared."""
        return float(np.mean(self.same)) if self.same else 1.0

    def __str__(self) -> str:
        from ipyllama.display.divergence import divergence_text

        return divergence_text(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        from ipyllama.display.progress import line_bundle

        return line_bundle(str(self))


class Seen:
    """The logits that an answer's first tokens were chosen from: `Request.watch`."""

    def __init__(self) -> None:
        self.logits: list[Logits] = []

    def __call__(self, logits: Logits) -> None:
        if len(self.logits) < MOST:
            self.logits.append(logits)


def compare(engine: Engine, model: str, prompt: Ledger, tokens: Sequence[int], seen: Seen) -> Divergence:
    """Evaluate the prompt exactly, then the same answer, and compare with what was seen. Ctrl-C raises
    `Interrupted`."""
    approximate = seen.logits[: len(tokens)]
    kl: list[float] = []
    same: list[bool] = []

    def watch(logits: Logits) -> None:
        exact, other = _log_shares(logits), _log_shares(approximate[len(kl)])
        likely = exact > -np.inf
        kl.append(max(0.0, float(np.dot(np.exp(exact[likely]), exact[likely] - other[likely]))))
        same.append(bool(exact.argmax() == other.argmax()))

    if not approximate:
        return Divergence((), (), 0, 0.0)
    script = tuple(tokens[: len(approximate)])
    options = GenerateOptions(max_tokens=len(script), temperature=0)
    request = Request(prompt, options, model, opening=Opening(script=script), watch=watch)
    reply = engine.submit(request).result()
    return Divergence(tuple(kl), tuple(same), reply.usage.computed, reply.timings.first_token)


def _log_shares(logits: Logits) -> NDArray[np.float64]:
    scaled = logits.astype(np.float64) - float(logits.max())
    return np.asarray(scaled - np.log(np.exp(scaled).sum()), np.float64)
