"""How likely tokens were. The distribution is the model's own: the softmax of its raw logits over the whole vocabulary,
before grammar, penalties, filters and temperature."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

MOST: Final = 20
"""The most alternatives that are kept for a token."""


@dataclass(frozen=True, slots=True)
class Logprob:
    """A token, and the natural logarithm of its probability."""

    id: int
    bytes: bytes
    """what it stands for; parts of a character are possible, and a control token is written out"""
    logprob: float

    @property
    def probability(self) -> float:
        return math.exp(self.logprob)


@dataclass(frozen=True, slots=True)
class TokenLogprob(Logprob):
    """A token of an answer, and what the model thought of its place."""

    entropy: float
    """how open the choice was, in bits: 0 where one token was certain, 1 as for two of the same probability"""
    top: tuple[Logprob, ...] = ()
    """the likeliest tokens there, the likeliest first, equal ones by id; the one that was taken may be among them"""


def shortened(logprobs: Iterable[TokenLogprob], n: int) -> tuple[TokenLogprob, ...]:
    """The same with no more than `n` alternatives each."""
    return tuple(replace(each, top=each.top[:n]) for each in logprobs)


def has_top(logprobs: Iterable[TokenLogprob] | None, n: int | None) -> bool:
    """Whether this is known with at least `n` alternatives each; None asks for nothing."""
    return n is None or (logprobs is not None and all(len(each.top) >= n for each in logprobs))


def perplexity(logprobs: Iterable[Logprob]) -> float:
    """The exponential of the mean of the negative logarithms; NaN of nothing."""
    found = [each.logprob for each in logprobs]
    return math.exp(-math.fsum(found) / len(found)) if found else math.nan
