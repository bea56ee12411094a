"""From logits to what is told of a token: see `ipyllama.logprobs`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from ipyllama.logprobs import Logprob, TokenLogprob

Logits = NDArray[np.float32]
Piece = Callable[[int], bytes]
"""The bytes of a token."""


def likeliest(logits: Logits, k: int) -> NDArray[np.intp]:
    """The ids of the `k` largest logits, the largest first, equal ones by id."""
    if k <= 0:
        return np.empty(0, np.intp)
    k = min(k, len(logits))
    least = np.partition(logits, len(logits) - k)[len(logits) - k]
    found = np.flatnonzero(logits >= least)
    return found[np.lexsort((found, -logits[found]))][:k]


class Recorder:
    """What is known of the tokens of an answer, token by token, with `n` alternatives each."""

    def __init__(self, n: int, piece: Piece, known: Iterable[TokenLogprob] = ()) -> None:
        self._n, self._piece = n, piece
        self.found = list(known)

    def add(self, token: int, logits: Logits) -> None:
        """Take note of a token and the logits that it was chosen from, shape (n_vocab,)."""
        scaled = logits.astype(np.float64) - float(logits.max())
        weights = np.exp(scaled)
        total = float(weights.sum())
        rest = math.log(total)
        surprise = -float(np.dot(weights, np.where(weights > 0, scaled, 0))) / total
        ids = likeliest(logits, self._n).tolist()
        top = tuple(Logprob(other, self._piece(other), float(scaled[other]) - rest) for other in ids)
        entropy = max(0.0, (rest + surprise) / math.log(2))
        self.found.append(TokenLogprob(token, self._piece(token), float(scaled[token]) - rest, entropy, top))
