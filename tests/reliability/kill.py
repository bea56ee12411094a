"""A process that saves is killed at random instants; what it leaves is whole, true and within the limit.

python -m reliability.kill [--kills 200] [--seed 1]     from tests/; make faults runs it
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import tempfile
import time
from pathlib import Path

from blocks import bound, disk_bytes, is_true, local_store, make_alike, make_block, make_chain

from ipyllama.prefix import Block, PrefixMemory

LIMIT = 2_000_000
LARGEST = 150_000
"""Bytes of a state."""
LINKS = make_chain(range(400))
ALIKE = 60
"""Blocks that share what they begin with."""
N_BLOCKS = len(LINKS) + ALIKE


def block(n: int) -> Block:
    if n >= len(LINKS):
        return make_alike(n, n % 3 * 20, row=1500)
    return make_block(LINKS[n], 1000 + n * 7919 % (LARGEST - 1000))


def save_for_ever(folder: Path, seed: int) -> None:
    """Save, read and evict until killed."""
    rng = random.Random(seed)
    memory = bound(PrefixMemory(folder, bytes_limit=LIMIT))
    while True:
        saved = block(rng.randrange(N_BLOCKS))
        memory.save(saved)
        if rng.random() < 0.1:
            memory.flush()
            memory.load(memory.find([saved.link])[0])


def check(folder: Path) -> int:
    """How many blocks there are; each is what it says. What the dead was writing may be left, and is no block."""
    store = local_store(folder)
    assert store.verify() == []
    entries = list(store.entries())
    for entry in entries:
        link = store.header(entry).link
        found = store.read(link.parent, link.key)
        assert found is not None
        assert is_true(found)
    assert disk_bytes(folder) <= LIMIT + LARGEST + 5000
    left = list((folder / "tmp").glob("*"))
    assert len(left) <= 1
    with store.locked():  # the dead holds no lock
        assert not list((folder / "tmp").glob("*"))
    return len(entries)


def run(folder: Path, kills: int, seed: int) -> tuple[int, int]:
    """How many processes were killed in the middle of a write, and how many blocks are there in the end."""
    rng = random.Random(seed)
    halves = n_blocks = 0
    for n in range(kills):
        child = os.fork()
        if child == 0:
            try:
                save_for_ever(folder, seed + n)
            finally:
                os._exit(1)
        time.sleep(rng.uniform(0.005, 0.25))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, "it ended by itself"
        halves += len(list((folder / "tmp").glob("*")))
        n_blocks = check(folder) if (folder / "blocks").exists() else 0
    return halves, n_blocks


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        halves, n_blocks = run(Path(place) / "store", asked.kills, asked.seed)
    print(f"{asked.kills} processes killed, {halves} of them in the middle of a write: {n_blocks} blocks, all true")
