"""What the benchmarks share: medians of runs that take turns, and the rows that come out of them."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeVar

import psutil

from ipyllama.llm import LLM, load

T = TypeVar("T")

QUIET: Final = 10.0
"""Percent of all CPUs that may be busy with something else when a measured run begins."""


@dataclass(frozen=True, slots=True)
class Target:
    """A limit on our own figure, or on the ratio of ours to the reference."""

    of: Literal["ours", "ratio"]
    limit: float
    at_least: bool = False

    def met(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value < self.limit


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `reference` is in the same unit as `ours`; `against` says in a few words what it is."""

    name: str
    ours: float
    unit: str
    reference: float | None = None
    against: str = ""
    ratio: float | None = None
    target: Target | None = None

    @property
    def ok(self) -> bool | None:
        """Whether the target is met; None where there is none."""
        value = self.ratio if self.target and self.target.of == "ratio" else self.ours
        return None if self.target is None or value is None else self.target.met(value)


@dataclass
class Bench:
    """The machine and the model under test. `quick` runs everything once: to see that it works, not how fast."""

    model: str
    quick: bool = False
    patience: float = 120.0
    """seconds left, over all runs, to wait for other work on this machine to end"""
    folder: tempfile.TemporaryDirectory[str] = field(init=False, default_factory=tempfile.TemporaryDirectory)
    """for what is kept on disk; gone at the end"""
    runs: int = field(default=0, init=False)
    disturbed: int = field(default=0, init=False)

    def load(self) -> LLM:
        """The model as a notebook loads it, with every option left at its default but the folder: a new one."""
        return load(self.model, cache=tempfile.mkdtemp(prefix="ipyllama-bench-", dir=self.folder.name))

    def interleave(self, runs: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
        """The results of `rounds` calls of each, every other round in reverse, so that drift hits all alike."""
        results: dict[str, list[T]] = {name: [] for name in runs}
        order = list(runs)
        for _ in range(1 if self.quick else rounds):
            for name in order:
                self.wait_until_quiet()
                results[name].append(runs[name]())
            order.reverse()
        return results

    def wait_until_quiet(self) -> None:
        """Return when nothing else uses the CPU, or when patience has run out."""
        self.runs += 1
        while psutil.cpu_percent(interval=0.2) > QUIET:
            if self.quick or self.patience <= 0:
                self.disturbed += 1
                return
            time.sleep(0.3)
            self.patience -= 0.5
