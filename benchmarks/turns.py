"""A conversation of 200 turns: what a turn costs, at the beginning and at the end, beside the model's own steps.

The model's own steps are those that the turn took (the same pieces, the same single tokens, at the same length) on the
native sequence alone. They grow with the conversation, because attention does; what is around them should not.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from statistics import median
from typing import Any, Final

from benchmarks.harness import Bench, Row, Target
from benchmarks.one_conversation import TURNS, WINDOWS

SMALL: Final = Target("ours", 25.0)
BOUNDED: Final = Target("ratio", 1.1)


def measure(bench: Bench) -> Iterator[Row]:
    found = bench.interleave({"ours": lambda: one(bench)}, 1)["ours"][0]
    around = {end: [a - b for a, b in zip(found["turns"][end], found["steps"][end], strict=True)] for end in WINDOWS}
    first = median(around[WINDOWS[0]])
    for end in WINDOWS:
        ours, steps = median(found["turns"][end]), median(found["steps"][end])
        length = found["lengths"][end]
        yield Row(f"turn {end}, {length:,} tokens", ours, "ms", steps, "its steps alone", ours / steps)
    for end in WINDOWS:
        yield Row(f"  around the steps, turn {end}", median(around[end]), "ms", first, f"turn {WINDOWS[0]}")
    for end in WINDOWS:
        yield Row(f"  prompt and tree in Python, turn {end}", median(found["python"][end]), "ms", target=SMALL)
    # The context's cells are in memory from the turn on that first uses them.
    per_token = found["kv_least"] / found["lengths"][TURNS]
    cells = per_token * (found["lengths"][TURNS] - found["lengths"][WINDOWS[0]])
    memory, least = found["memory"][TURNS], found["memory"][WINDOWS[0]] + cells
    against = f"after {WINDOWS[0]}, and the cells since"
    yield Row(f"memory after {TURNS} turns", memory, "MB", least, against, memory / least, BOUNDED)
    yield Row("  KV on disk", found["kv"], "MB", found["kv_least"], "the bytes of one state")
    yield Row("  conversation on disk", found["chat"], "MB")


def one(bench: Bench) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.one_conversation", bench.model]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return {
        key: {int(end): each for end, each in value.items()} if isinstance(value, dict) else value
        for key, value in found.items()
    }
