"""How fast this machine computes and restores: measured as it works, to tell what is worth saving and restoring."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Final

_WEIGHT: Final = 0.2
"""Of the newest measurement in the running mean."""


@dataclass(slots=True)
class Rate:
    """A running mean of amount per second, starting from a guess."""

    per_second: float
    measured: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def learn(self, amount: float, seconds: float) -> None:
        """One measurement; too short ones tell nothing."""
        if amount <= 0 or seconds < 1e-5:
            return
        with self._lock:
            new = amount / seconds
            self.per_second = self.per_second * (1 - _WEIGHT) + new * _WEIGHT if self.measured else new
            self.measured = True

    def seconds(self, amount: float) -> float:
        return amount / self.per_second


@dataclass(slots=True)
class Rates:
    """Prefill in tokens per second, the others in bytes per second. The guesses are for a small machine."""

    prefill: Rate = field(default_factory=lambda: Rate(200.0))
    ram: Rate = field(default_factory=lambda: Rate(4e9))
    disk: Rate = field(default_factory=lambda: Rate(1e9))
    remote: Rate = field(default_factory=lambda: Rate(3e7))
    bytes_per_token: float = 25_000.0
    """of the newest block"""
