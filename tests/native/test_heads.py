"""Prompts that part inside a block: the disk holds what they have in common once, and a new process has all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pytest
from native.ask import bits
from numpy.typing import NDArray

from ipyllama.ledger import Ledger
from ipyllama.llm import LLM
from ipyllama.options import GenerateOptions
from ipyllama.prefix import PrefixMemory
from ipyllama.reply import Reply

TEXT = "".join(f"{n}. The red fox met a dog near {n * 17} trees and told it of the river. " for n in range(40))
SHARED = 480
ENDS = (30, 30, 7, 24, 31, 12, 1, 19)
"""Lengths: each is evaluated in a piece of another length."""
HEADER: Final = 2500
"""Bytes of a file before the state, at most, with 256 tokens in it."""


def prompts(llm: LLM) -> list[Ledger]:
    tokens = llm.tokenize(TEXT)
    return [
        Ledger().append_prompt([*tokens[:SHARED], *tokens[SHARED + 40 * n : SHARED + 40 * n + length]])
        for n, length in enumerate(ENDS, start=1)
    ]


def ask(llm: LLM, ledger: Ledger) -> tuple[Reply, NDArray[np.float32]]:
    """The reply, and the logits after its last but one token."""
    reply = llm.generate(ledger, GenerateOptions(temperature=0, max_tokens=3)).result()
    return reply, llm._engine._live.sequence.logits()


def anew(load, name: str, ledger: Ledger, cache: Path | None) -> tuple[Reply, NDArray[np.float32]]:
    """What a model says that was loaded only now, with nothing but what is on the disk."""
    llm = load(name, cache=None if cache is None else PrefixMemory(cache, ram_limit=0))
    try:
        return ask(llm, ledger)
    finally:
        llm.close()


@pytest.mark.parametrize("name", ["smollm2", "llama"])
def test_ends_of_one_text_cost_little_and_come_back(load, tmp_path: Path, name: str) -> None:
    llm = load(name, cache=PrefixMemory(tmp_path, ram_limit=0))
    ledgers = prompts(llm)
    for ledger in ledgers:
        ask(llm, ledger)
    llm.memory.flush()
    per_token, sizes = llm.memory.rates.bytes_per_token, [path.stat().st_size for path in tmp_path.rglob("*.kv")]
    llm.close()
    n_tokens = SHARED + sum(ENDS) + 3 * len(ENDS)
    assert sum(sizes) < 1.15 * per_token * n_tokens + HEADER * len(sizes)
    for ledger in ledgers:
        cold, expected = anew(load, name, ledger, None)
        again, found = anew(load, name, ledger, tmp_path)
        assert again.usage.restored == len(ledger) - 1, "nothing but the last token is evaluated"
        assert (again.exact, again.tokens) == (True, cold.tokens)
        assert np.array_equal(bits(found), bits(expected))


@pytest.mark.parametrize("name", ["gemma3", "mamba", "jamba"])
def test_other_memories_come_back_as_well(load, tmp_path: Path, name: str) -> None:
    llm = load(name, cache=PrefixMemory(tmp_path, ram_limit=0))
    ledgers = prompts(llm)[:3]
    for ledger in ledgers:
        ask(llm, ledger)
    llm.close()
    assert any(tmp_path.glob("heads/*")) is (name == "gemma3"), "its blocks are no longer than its window"
    for ledger in ledgers:
        cold, expected = anew(load, name, ledger, None)
        again, found = anew(load, name, ledger, tmp_path)
        assert again.usage.restored == len(ledger) - 1
        assert again.tokens == cold.tokens
        assert np.array_equal(bits(found), bits(expected))
