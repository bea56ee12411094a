"""A new process whose prompt is on disk: time to the first token, against computing it, and against what cannot be
left out of a restore: reading the bytes, giving them to llama.cpp, evaluating the last token."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.harness import Bench, Row, Target
from benchmarks.one_restart import N_TOKENS, Restart, forget

ROUNDS: Final = 7
TIMES_COMPUTED: Final = 3
MUCH_FASTER: Final = Target("ratio", 0.01)
LITTLE_ADDED: Final = Target("ratio", 2)


def measure(bench: Bench) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="ipyllama-bench-") as name:
        folder = Path(name)
        one(bench, "save", folder)
        computed = bench.interleave({"compute": lambda: one(bench, "compute")}, TIMES_COMPUTED)["compute"]
        runs = {
            "restore": lambda: one(bench, "restore", folder),
            "parts": lambda: one(bench, "parts", folder),
            "cold restore": lambda: one(bench, "restore", folder, cold=True),
            "cold parts": lambda: one(bench, "parts", folder, cold=True),
        }
        found = bench.interleave(runs, ROUNDS)

    def milliseconds(name: str, field: str = "first_token") -> float:
        return 1000 * median(getattr(each, field) for each in found.get(name, computed))

    against = f"to compute {N_TOKENS:,} tokens"
    for label, kind in (("first token after a restart", ""), ("  files not in the page cache", "cold ")):
        ours, whole = milliseconds(f"{kind}restore"), milliseconds("compute")
        yield Row(label, ours, "ms", whole, against, ours / whole, MUCH_FASTER)
        pieces = [f"{part} {milliseconds(f'{kind}parts', part):.1f}" for part in ("read", "set", "decode")]
        bare = milliseconds(f"{kind}parts")
        yield Row("  and its parts alone", ours, "ms", bare, f"= {' + '.join(pieces)}", ours / bare, LITTLE_ADDED)
    ours, whole = milliseconds("restore", "process"), milliseconds("compute", "process")
    yield Row("  with import and load", ours, "ms", whole, against, ours / whole)


def one(bench: Bench, mode: str, folder: Path | None = None, *, cold: bool = False) -> Restart:
    """A run in a process of its own."""
    if cold and folder is not None:
        forget(folder)
    command = [sys.executable, "-m", "benchmarks.one_restart", bench.model, mode, *([str(folder)] if folder else [])]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return Restart(**json.loads(done.stdout))
