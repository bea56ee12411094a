"""Ask the oracle program, and work out the evaluation schedule a second time, from its definition alone."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Segments = Sequence[tuple[Sequence[int], bool]]
"""(tokens, sampled) for each part of a ledger."""


def schedule(segments: Segments, piece: int = 256) -> list[int]:
    """Where pieces end: prompt tokens at multiples of `piece` and before the last token, sampled ones everywhere."""
    ends: set[int] = set()
    start = 0
    for tokens, sampled in segments:
        end = start + len(tokens)
        places = range(start + 1, end + 1)
        ends |= set(places) if sampled else {p for p in places if p % piece == 0 or p >= end - 1}
        start = end
    return sorted(ends)


def bits(logits: NDArray[np.float32]) -> NDArray[np.uint32]:
    """The bit patterns, so that equal means equal: -0.0 is not 0.0, and a NaN is itself."""
    return np.ascontiguousarray(logits, dtype=np.float32).view(np.uint32)


@dataclass(frozen=True, slots=True)
class Oracle:
    """The compiled program."""

    program: Path

    def tokenize(self, model: Path, text: bytes, *, add_special: bool, parse_special: bool) -> list[int]:
        return self._numbers("tokenize", model, int(add_special), int(parse_special), stdin=text)

    def run(
        self, model: Path, segments: Segments, *, n_ctx: int, n_threads: int, n_greedy: int, folder: Path
    ) -> Answer:
        """Evaluate the prompt in the pieces of its schedule, then `n_greedy` tokens one by one."""
        tokens = [token for part, _ in segments for token in part]
        lines = (_line(schedule(segments)), _line(tokens))
        out = folder / "oracle-logits.f32"
        greedy = self._numbers("run", model, n_ctx, n_threads, n_greedy, out, stdin="".join(lines).encode())
        first, last = np.fromfile(out, np.float32).reshape(2, -1)
        return Answer(tuple(greedy), first, last)

    def _numbers(self, *arguments: object, stdin: bytes) -> list[int]:
        command = [str(argument) for argument in (self.program, *arguments)]
        done = subprocess.run(command, input=stdin, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return [int(word) for word in done.stdout.split()]


@dataclass(frozen=True, slots=True)
class Answer:
    """Greedy tokens; logits after the prompt, and after the last but one of the tokens."""

    greedy: tuple[int, ...]
    first: NDArray[np.float32]
    last: NDArray[np.float32]


def _line(numbers: Iterable[int]) -> str:
    return " ".join(map(str, numbers)) + "\n"
