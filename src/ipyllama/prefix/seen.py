"""Prompts that were evaluated lately: what a new one is compared with, to say where it parts from them."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ipyllama.ledger import Ledger

REMEMBERED: Final = 32
"""Prompts. Comparing with all of them takes less than a millisecond."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt with its reply."""

    root: bytes
    """key of the model and its settings"""
    ledger: Ledger
    tokens: NDArray[np.int32]


class Seen:
    """The latest prompts of all models that share a memory. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._prompts: deque[Prompt] = deque(maxlen=REMEMBERED)

    def add(self, root: bytes, ledger: Ledger) -> None:
        prompt = Prompt(root, ledger, np.array(ledger.tokens, np.int32))
        with self._lock:
            self._prompts.append(prompt)

    def nearest(self, root: bytes, tokens: tuple[int, ...]) -> tuple[int, Prompt | None]:
        """The prompt that begins most like these tokens, and how many they have in common.

        Of equals one under `root` comes first, then the newest.
        """
        wanted = np.array(tokens, np.int32)
        with self._lock:
            prompts = list(self._prompts)
        ranked = [(_common(prompt.tokens, wanted), prompt.root == root, n) for n, prompt in enumerate(prompts)]
        if not ranked or max(ranked)[0] == 0:
            return 0, None
        n_common, _, n = max(ranked)
        return n_common, prompts[n]


def _common(a: NDArray[np.int32], b: NDArray[np.int32]) -> int:
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if len(differ) else n
