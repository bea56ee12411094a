"""A model whose prefix states come from elsewhere answers as one that computed them."""

from __future__ import annotations

import time
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from reliability.ask import PROMPTS, Slow, answer
from slow_fs import StormyFileSystem, weather

import ipyllama
from ipyllama.ledger import Ledger
from ipyllama.llm import LLM
from ipyllama.options import GenerateOptions
from ipyllama.prefix import PrefixMemory
from ipyllama.prefix.store.backend import make_backend
from ipyllama.prefix.store.blocks import BlockStore

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


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_state_that_is_not_the_prompts_is_asked_for_once(tiny, tmp_path: Path, on_disk: bool) -> None:
    """Its checksums are right; the logits that follow give it away."""
    right, wrong = (Ledger().append_prompt([1, *(262 + n * step % 94 for n in range(599))]) for step in (1, 3))
    options = GenerateOptions(max_tokens=8, temperature=0.0)
    with load(tiny, "llama", PrefixMemory("stormy://team/prefix")) as llm:
        alone = llm.generate(right, options).result().tokens
        llm.generate(wrong, options).result()
        llm.memory.flush(60)
        there = BlockStore(make_backend("fsspec", "stormy://team/prefix"))
        for link, other in zip(llm.memory.links(right), llm.memory.links(wrong), strict=True):
            block, others = (there.read(which.parent, which.key) for which in (link, other))
            assert block is not None
            assert others is not None
            there.write(replace(block, state=others.state))
    with load(tiny, "llama", PrefixMemory(tmp_path if on_disk else None, remote="stormy://team/prefix")) as llm:
        for n in range(2):
            reply = llm.generate(right, options, fresh=True).result()
            assert (reply.tokens, reply.usage.computed) == (alone, 1 if n else len(right))
        assert llm.memory.counts.damaged


class Odd:
    """A store that somebody has written, and that fails in its own way."""

    def __getattr__(self, name: str) -> object:
        raise KeyError(name)


def test_a_remote_that_fails_in_its_own_way_costs_no_answer(tiny) -> None:
    memory = PrefixMemory(remote=Odd(), write_through=True)  # type: ignore[arg-type]
    with load(tiny, "llama", memory) as llm:  # the tests turn warnings into errors: that costs none either
        _, usage = answer(llm, N)
        assert (usage.computed, llm.memory.flush(60)) == (len(PROMPTS[N]), True)
        assert "cannot be read: 'exists'" in llm.memory.stats().problem
