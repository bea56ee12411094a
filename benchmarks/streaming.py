"""What the streaming display costs: one answer in a real kernel, shown while it is written and not shown at all."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Final

from benchmarks.harness import Bench, Row, Target
from benchmarks.kernel import started

TOKENS: Final = 128
PAIRS: Final = 15


def measure(bench: Bench) -> Iterator[Row]:
    with started(bench.model) as kernel:

        def seconds(*options: str) -> float:
            line = " ".join(("--raw", f"-n {TOKENS}", "-t 0", "--out reply --fresh", *options))
            took = kernel.run(f"%%llama {line}\nOnce upon a time")
            if (generated := kernel.value("reply.usage.generated")) != str(TOKENS):
                raise RuntimeError(f"{generated} tokens where {TOKENS} were to be measured")
            return took

        seconds()  # warm up
        runs = {"shown": seconds, "quiet": lambda: seconds("--quiet")}
        found = bench.interleave(runs, PAIRS)
    shown, quiet = (1000 * median(found[name]) for name in ("shown", "quiet"))
    against = "with --quiet"
    yield Row(f"cell of {TOKENS} tokens, streamed", shown, "ms", quiet, against, shown / quiet, Target("ratio", 1.03))
