"""A model whose prefix states come from elsewhere answers as one that computed them."""

from __future__ import annotations

import time
import warnings
from pathlib import Path

import pytest
from reliability.ask import PROMPTS, Slow, answer
from slow_fs import StormyFileSystem, weather

import ipyllama
from ipyllama.llm import LLM
from ipyllama.prefix import PrefixMemory

N = 5


@pytest.fixture(autouse=True)
def _calm():
    StormyFileSystem.store.clear()
    weather.reset()
    yield
    weather.reset()


def load(tiny, arch: str, memory: PrefixMemory) -> LLM:
    llm = ipyllama.load(tiny(arch), n_ctx=2048, n_threads=1, cache=memory)
    llm.memory.rates.prefill = Slow(100.0)
    return llm


@pytest.mark.parametrize("arch", ["llama", "gemma3", "mamba", "lfm2"])
def test_what_one_machine_computed_another_restores(tiny, tmp_path: Path, arch: str) -> None:
    with load(tiny, arch, PrefixMemory("stormy://team/prefix")) as llm:
        first, usage = answer(llm, N)
        assert (usage.restored, llm.memory.flush(60)) == (0, True)
    memory = PrefixMemory(tmp_path, remote="stormy://team/prefix")
    with load(tiny, arch, memory) as llm:
        second, usage = answer(llm, N)
        llm.memory.flush(60)
        assert (second, usage.computed, usage.restored) == (first, 1, len(PROMPTS[N]) - 1)
    StormyFileSystem.store.clear()
    with load(tiny, arch, PrefixMemory(tmp_path)) as llm:
        assert answer(llm, N)[1].computed == 1


@pytest.mark.parametrize("storm", ["hangs", "is dead", "lies"])
def test_whatever_the_remote_does_the_answer_is_the_same(tiny, tmp_path: Path, storm: str) -> None:
    with load(tiny, "llama", PrefixMemory("stormy://team/prefix")) as llm:
        alone, _ = answer(llm, N)
        llm.memory.flush(60)
    weather.error, weather.flip = storm == "is dead", storm == "lies"
    if storm == "hangs":
        weather.hang.clear()
    with load(tiny, "llama", PrefixMemory(tmp_path, remote="stormy://team/prefix", remote_timeout=0.5)) as llm:
        began = time.perf_counter()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            tokens, usage = answer(llm, N)
        assert (tokens, usage.computed) == (alone, len(PROMPTS[N]))
        assert time.perf_counter() - began < 5
        assert len(told) == 1
        assert "work goes on without it" in str(told[0].message)
        assert llm.memory.stats().problem
    weather.hang.set()
