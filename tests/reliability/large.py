"""How long a store of 100,000 blocks takes to open, to look a prompt up in, and to write to.

python -m reliability.large [--blocks 100000]     from tests/; make faults runs it
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from blocks import BINDING, bound, make_block, make_chain

from ipyllama.ledger import Ledger
from ipyllama.prefix import Cut, PrefixMemory
from ipyllama.prefix.keys import link_after
from ipyllama.prefix.store.block import encode
from ipyllama.prefix.store.blocks import block_name

N_TOKENS = 4000


def fill(folder: Path, n_blocks: int) -> None:
    """Small blocks of many first ones, and the chain of one prompt."""
    for n in range(n_blocks):
        link = link_after(n.to_bytes(4, "little") * 8, (n,), 0, (1,))
        path = folder / block_name(link.parent, link.key)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.write_bytes(b"".join(encode(make_block(link, 16))))


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    began = time.perf_counter()
    result = call()
    return result, time.perf_counter() - began


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--blocks", type=int, default=100_000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        fill(folder, asked.blocks)
        ledger = Ledger().append_prompt(range(N_TOKENS))
        binding = replace(BINDING, cut=Cut(256))
        memory = bound(PrefixMemory(folder), binding)
        for link in memory.links(ledger):
            memory.save(make_block(link, 64))
        _, first = timed(memory.flush)
        _, opened = timed(lambda: bound(PrefixMemory(folder), binding))
        fresh = bound(PrefixMemory(folder, ram_limit=0), binding)
        links = fresh.links(ledger)
        found, looked = timed(lambda: fresh.find(links))
        assert len(found) == len(links)
        fresh.save(make_block(make_chain(range(9000, 9004))[0], 64))
        _, wrote = timed(fresh.flush)
        _, child = timed(lambda: fresh.child(binding.root, 0, tuple(range(N_TOKENS)), N_TOKENS))
        listed, walked = timed(fresh.stats)
        for what, seconds in {
            "open": opened,
            f"look up a prompt of {N_TOKENS:,} tokens": looked,
            "look for the block most like it": child,
            "write the first blocks, all of them counted (once a day, on the writer's thread)": first,
            "write a block in another process": wrote,
            "list everything": walked,
        }.items():
            print(f"{1000 * seconds:10.2f} ms  {what}")
        print(f"{listed.disk_blocks:,} blocks; {os.cpu_count()} cores")
        assert opened < 0.005
        assert looked < 0.010
