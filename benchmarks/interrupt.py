"""Stop: from the kernel interrupt to the prompt, while a prompt is read and while an answer is written."""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median
from typing import Final

from benchmarks.harness import Bench, Row, Target
from benchmarks.kernel import Kernel, started

TIMES: Final = 10
AT_ONCE: Final = Target("ours", 300)
LONG: Final = "'The snow had begun to fall before the last of the travellers came in. ' * 265"
"""About 4,000 tokens."""


def measure(bench: Bench) -> Iterator[Row]:
    with started(bench.model) as kernel:
        kernel.run(f"long = {LONG}")
        numbers = iter(range(10**6))
        runs = {"prefill": lambda: in_prefill(kernel, next(numbers)), "generation": lambda: in_generation(kernel)}
        found = bench.interleave(runs, TIMES)
    for where, seconds in found.items():
        yield Row(f"interrupt in {where}, median", 1000 * median(seconds), "ms", target=AT_ONCE)
        yield Row(f"interrupt in {where}, worst of {len(seconds)}", 1000 * max(seconds), "ms", target=AT_ONCE)


def in_prefill(kernel: Kernel, number: int) -> float:
    """The number comes first in the prompt, so that nothing of an earlier one can be reused."""
    cell = kernel.start(f"%%llama --raw --no-stream\n{number}: {{{{long}}}}")
    kernel.wait_for(cell, "execute_input")
    time.sleep(0.7 + number % 5 / 10)
    return kernel.interrupt(cell)


def in_generation(kernel: Kernel) -> float:
    cell = kernel.start("%%llama --raw -t 0 -n 4000\n1, 2, 3, 4, 5, 6, 7,")
    kernel.wait_for(cell, "update_display_data")
    return kernel.interrupt(cell)
