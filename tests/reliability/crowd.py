"""Many processes read, write, evict and verify one store at once; every block that is read is true, and the limit holds
at every instant of every write.

    python -m reliability.crowd [--processes 8] [--seconds 30] [--seed 1]     from tests/; make faults runs it
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

from blocks import bound, disk_bytes, is_true, make_alike, make_block, make_chain

from ipyllama.errors import StoreBusy
from ipyllama.prefix import Block, LocalBackend, PrefixMemory, register_store_backend

LIMIT = 1_000_000
LINKS = make_chain(range(240))
ALIKE = [make_alike(end, end % 3 * 20, row=600) for end in range(30)]
"""Blocks that share what they begin with."""


def block(n: int) -> Block:
    return ALIKE[n - len(LINKS)] if n >= len(LINKS) else make_block(LINKS[n], 2000 + n * 997 % 60_000)


class Watched(LocalBackend):
    """Looks at the sum of sizes while a block is written: nobody else writes then."""

    most = 0

    def write(self, name: str, parts: Sequence[memoryview], durable: bool = True) -> None:
        super().write(name, parts, durable)
        if name.startswith("blocks/"):
            Watched.most = max(Watched.most, disk_bytes(self.folder))


def work(folder: Path, seconds: float, seed: int) -> dict[str, int]:
    """One process: what it did, and the largest sum of sizes that it saw."""
    warnings.simplefilter("error")
    register_store_backend("watched", Watched)
    rng, counts = random.Random(seed), {"written": 0, "read": 0, "missed": 0, "evicted": 0, "busy": 0}
    memory = bound(PrefixMemory(folder, backend="watched", bytes_limit=LIMIT, ram_limit=0))
    assert memory.writer is not None
    assert memory.store is not None
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        n, what = rng.randrange(len(LINKS) + len(ALIKE)), rng.random()
        try:
            if what < 0.45:
                counts["written"] += memory.writer.write(block(n))
            elif what < 0.96:
                link = block(n).link
                found = memory.store.read(link.parent, link.key)
                assert found is None or (found.link == link and is_true(found))
                counts["missed" if found is None else "read"] += 1
            elif what < 0.99:
                counts["evicted"] += memory.reduce_size(rng.randrange(LIMIT))
            else:
                assert memory.verify() == []
        except StoreBusy:
            counts["busy"] += 1
    return counts | {"most": Watched.most}


def run(folder: Path, processes: int, seconds: float, seed: int) -> list[dict[str, int]]:
    """What each process did."""
    command = [sys.executable, "-m", "reliability.crowd", "--work", str(folder), "--seconds", str(seconds), "--seed"]
    started = [
        subprocess.Popen([*command, str(seed + n)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[1])
        for n in range(processes)
    ]
    outputs = [process.communicate(timeout=seconds + 200)[0] for process in started]
    assert [process.returncode for process in started] == [0] * processes
    return [json.loads(output) for output in outputs]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", type=Path)
    asked = parser.parse_args()
    if asked.work:
        print(json.dumps(work(asked.work, asked.seconds, asked.seed)))
    else:
        with tempfile.TemporaryDirectory() as place:
            for counts in run(Path(place), asked.processes, asked.seconds, asked.seed):
                print(counts)
                assert counts["most"] <= LIMIT
        print(f"{asked.processes} processes, {asked.seconds:g} s: every block true, the sum at most {LIMIT:,} bytes")
