"""The limits of disk and RAM hold while states are written: what is there exceeds them by one entry at most."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from ipyllama.ledger import Ledger
from ipyllama.llm import LLM
from ipyllama.options import GenerateOptions
from ipyllama.prefix import PrefixMemory
from ipyllama.prefix.ram import RamTier
from ipyllama.prefix.store.writer import close_all

PROMPTS = 24


def sizes(folder: Path) -> list[int]:
    """Of every file, the half-written ones, too."""
    found = []
    for file in folder.glob("blocks/*/*"):
        with suppress(FileNotFoundError):
            found.append(file.lstat().st_size)
    return found


@contextmanager
def watched(look: Callable[[], int]) -> Iterator[list[int]]:
    """What `look` says, again and again until the end."""
    seen: list[int] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.is_set():
            seen.append(look())
            time.sleep(0.0005)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize("arch", ["llama", "gemma3", "jamba"])
@pytest.mark.parametrize("limit", [60_000, 400_000])
def test_the_limit_of_the_disk_holds_while_writing(load, tmp_path: Path, arch: str, limit: int) -> None:
    memory = PrefixMemory(tmp_path, bytes_limit=limit)
    llm: LLM = load(arch, cache=memory)
    largest = 0
    with watched(lambda: sum(sizes(tmp_path))) as seen:
        for number in range(PROMPTS):
            tokens = [1, *(262 + (n * n + number * n) % 94 for n in range(299 + number))]
            llm.generate(Ledger().append_prompt(tokens), GenerateOptions(max_tokens=8)).result()
            if number % 4 == 0:
                llm.memory.flush()
            largest = max(largest, *sizes(tmp_path), 0)
        llm.memory.flush()
    close_all()
    assert llm.memory.counts.saved > PROMPTS
    assert len(seen) > 20
    assert max(seen) <= limit + largest
    assert sum(sizes(tmp_path)) <= limit
    assert sum(sizes(tmp_path)) > limit // 2  # it is used


def test_the_limit_of_the_ram_holds_while_saving(load, monkeypatch: pytest.MonkeyPatch) -> None:
    limit, most, entry = 100_000, 0, 0
    llm: LLM = load("llama", cache=None, ram_limit=limit)
    put = RamTier.put

    def counted(self: RamTier, block) -> None:
        nonlocal most, entry
        put(self, block)
        most, entry = max(most, sum(each.nbytes for each in self._blocks.values())), max(entry, block.nbytes)

    monkeypatch.setattr(RamTier, "put", counted)
    for number in range(PROMPTS):
        tokens = [1, *(262 + (n * n + number * n) % 94 for n in range(299 + number))]
        llm.generate(Ledger().append_prompt(tokens), GenerateOptions(max_tokens=2)).result()
    assert limit // 2 < most <= limit
    assert llm.memory.ram.nbytes <= limit
    assert entry > 0
