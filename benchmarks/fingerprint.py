"""The digest that tells weights apart: of the model under test, and of 40 GB in a sparse file, whose header is real and
whose weights are a hole. Every run is a fresh process."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Final

import gguf
import numpy as np

from benchmarks.harness import Bench, Row, Target
from ipyllama.models import resolve

ROUNDS: Final = 7
N_TENSORS: Final = 1000
LARGE: Final = 40_000_000_000
VOCABULARY: Final = 150_000

SCRIPT: Final = """
import sys, time
from pathlib import Path
from ipyllama.models.fingerprint import fingerprint
began = time.perf_counter()
fingerprint(Path(sys.argv[1]))
between = time.perf_counter()
fingerprint(Path(sys.argv[1]))
print(between - began, time.perf_counter() - between)
"""


def measure(bench: Bench) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="ipyllama-bench-") as folder:
        small, large = Path(resolve(bench.model).path), Path(folder) / "large.gguf"
        write_sparse(large)
        runs = {"small": lambda: seconds(small), "large": lambda: seconds(large)}
        found = bench.interleave(runs, ROUNDS)
        sizes = {"small": small.stat().st_size, "large": large.stat().st_size}
    for name, limit in (("small", 200), ("large", 2000)):
        first, again = (1000 * median(part) for part in zip(*found[name], strict=True))
        label = f"fingerprint of {sizes[name] / 1e6:,.0f} MB"
        yield Row(label, first, "ms", again, "the second time", None, Target("ours", limit))


def seconds(path: Path) -> tuple[float, float]:
    """The first and the second time."""
    command = [sys.executable, "-c", SCRIPT, str(path)]
    first, again = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    return float(first), float(again)


def write_sparse(path: Path) -> None:
    """A model of a thousand tensors and a large vocabulary, as far as its header is concerned."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_type("model")
    writer.add_token_list([f"token-{n}" for n in range(VOCABULARY)])
    writer.add_token_merges([f"t {n}" for n in range(VOCABULARY)])
    shape = (LARGE // N_TENSORS // 2 // 4096, 4096)
    for n in range(N_TENSORS):
        writer.add_tensor_info(f"blk.{n}.weight", shape, np.dtype(np.float16), 2 * shape[0] * shape[1])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + 64 + N_TENSORS * 2 * shape[0] * shape[1])


if __name__ == "__main__":
    write_sparse(Path(sys.argv[1]))
