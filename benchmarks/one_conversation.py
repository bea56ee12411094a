"""`python -m benchmarks.one_conversation MODEL`: 200 short turns in a fresh process, as JSON.

turns    {end: [ms]}     from the question to the turn in the tree, of the WINDOW turns up to `end`
python   {end: [ms]}     of these, all that is done before the model's worker thread gets the prompt
steps    {end: [ms]}     the same steps on the native sequence
lengths  {end: tokens}   memory {end: MB} resident   kv, kv_least, chat: MB on disk
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from ipyllama import _core
from ipyllama.chat import Turn
from ipyllama.engine.schedule import piece_ends
from ipyllama.llm import LLM, load
from ipyllama.loading import LoadOptions, context_options

TURNS: Final = 200
WINDOW: Final = 10
WINDOWS: Final = (20, 100, 200)
"""The turns at whose ends it is looked."""
ANSWER: Final = 10
"""Tokens, so that 200 turns have room in the context."""


@dataclass(frozen=True, slots=True)
class Step:
    """A turn and what it took, in ms."""

    turn: Turn
    whole: float
    python: float


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="ipyllama-bench-") as folder:
        with load(sys.argv[1], cache=Path(folder) / "prefix") as llm:
            steps, memory = converse(llm, Path(folder) / "chat")
            llm.memory.flush()
            options, path, per_token = llm.options, str(llm.path), llm.memory.rates.bytes_per_token
        sizes = {"kv": _megabytes(Path(folder) / "prefix"), "chat": _megabytes(Path(folder) / "chat")}
    windows = {end: steps[end - WINDOW : end] for end in WINDOWS}
    native = Native(path, options)
    found = {
        "turns": {end: [step.whole for step in window] for end, window in windows.items()},
        "python": {end: [step.python for step in window] for end, window in windows.items()},
        "steps": {end: native.replay([step.turn for step in window]) for end, window in windows.items()},
        "lengths": {end: len(window[-1].turn.ledger) for end, window in windows.items()},
        "memory": memory,
        "kv_least": per_token * len(steps[-1].turn.ledger) / 1e6,
    }
    print(json.dumps(found | sizes))


def converse(llm: LLM, folder: Path) -> tuple[list[Step], dict[int, float]]:
    """The turns, and the resident memory at the end of each window, in MB."""
    chat, steps, memory = llm.chat(system="You are brief."), list[Step](), dict[int, float]()
    chat.keep(folder)
    for number in range(1, TURNS + 1):
        began = time.perf_counter()
        job = chat.start(f"What comes after {number}?", cell=f"cell-{number}", max_tokens=ANSWER, temperature=0.0)
        handed_over = time.perf_counter()
        turn = job.result()
        ended = time.perf_counter()
        if not isinstance(turn, Turn) or turn.replayed or turn.usage.restored or turn.usage.computed > 40:
            raise RuntimeError(f"not the turn that was to be measured: {turn}")
        steps.append(Step(turn, 1000 * (ended - began), 1000 * (handed_over - began)))
        if number in WINDOWS:
            memory[number] = psutil.Process().memory_info().rss / 1e6
    return steps, memory


class Native:
    """The native sequence and nothing else."""

    def __init__(self, path: str, options: LoadOptions) -> None:
        model = _core.Model.load(path)
        self._sequence = _core.Sequence(_core.Context(model, context_options(options)))

    def replay(self, turns: Sequence[Turn]) -> list[float]:
        """The time of the steps that each turn took, in ms."""
        self._sequence.clear()
        times = []
        for turn in turns:
            n_prompt = turn.usage.prompt
            read = n_prompt - turn.usage.computed
            while len(self._sequence) < read:  # what was in memory already
                at = len(self._sequence)
                self._sequence.decode(list(turn.ledger.tokens[at : min(at + 256, read)]))
            began = time.perf_counter()
            for end in [*(end for end in piece_ends(turn.ledger) if read < end <= n_prompt)]:
                self._sequence.decode(list(turn.ledger.tokens[len(self._sequence) : end]))
            for token in turn.tokens[:-1]:  # the last one is sampled and not read
                self._sequence.decode([token])
            times.append(1000 * (time.perf_counter() - began))
        return times


def _megabytes(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6


if __name__ == "__main__":
    main()
