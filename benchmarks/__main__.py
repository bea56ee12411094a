"""`python -m benchmarks`: run them, print one table."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from typing import Final

from benchmarks import (
    fingerprint,
    fused,
    interrupt,
    memory,
    page,
    rag,
    restart,
    reuse,
    saving,
    speed,
    startup,
    state,
    streaming,
    together,
    turns,
)
from benchmarks.harness import Bench, Row
from benchmarks.table import RESULTS, aligned, as_lines, caution, markdown, save
from ipyllama.models import resolve

BENCHMARKS: Final[dict[str, Callable[[Bench], Iterator[Row]]]] = {
    "speed": speed.measure,
    "streaming": streaming.measure,
    "startup": startup.measure,
    "interrupt": interrupt.measure,
    "reuse": reuse.measure,
    "together": together.measure,
    "fused": fused.measure,
    "divergence": fused.measure_divergence,
    "turns": turns.measure,
    "restart": restart.measure,
    "saving": saving.measure,
    "state": state.measure,
    "fingerprint": fingerprint.measure,
    "memory": memory.measure,
    "page": page.measure,
    "rag": rag.measure,
    "index": rag.measure_large,
}

ONLY_BY_NAME: Final = {"divergence"}
"""It takes half an hour."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure ipyllama on this machine.")
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"which to run: {', '.join(BENCHMARKS)} (default: all but {', '.join(ONLY_BY_NAME)})",
    )
    parser.add_argument("--model", default="smollm2", help="name or path of the model (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="run everything once: shows that it works, not how fast")
    parser.add_argument("--save", action="store_true", help=f"write the table to {RESULTS.name} too")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.names if name not in BENCHMARKS]:
        parser.error(f"unknown benchmark {unknown[0]!r}: known are {', '.join(BENCHMARKS)}")
    resolve(arguments.model)  # fetched now, when it is missing, and not while something is measured
    bench, rows = Bench(arguments.model, arguments.quick), list[Row]()
    for name in arguments.names or [name for name in BENCHMARKS if name not in ONLY_BY_NAME]:
        began = time.monotonic()
        rows += BENCHMARKS[name](bench)
        sys.stderr.write(f"{name}: measured in {time.monotonic() - began:.0f} s\n")
    lines = as_lines(rows)
    print("\n".join(filter(None, (aligned(lines), caution(bench)))))
    if arguments.save:
        save(RESULTS, [markdown(lines), caution(bench)], bench, " ".join(["python -m benchmarks", *sys.argv[1:]]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
