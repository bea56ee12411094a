"""`reuse="token"`: an edit costs less, what differs is small and is said, and it never gets into exact runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from native.ask import bits
from numpy.typing import NDArray

from ipyllama.ledger import Ledger
from ipyllama.llm import LLM
from ipyllama.options import GenerateOptions, Reuse
from ipyllama.reply import Reply

TEXT = "".join(f"{n}. The red fox met a dog near {n * 17} trees and told it of the river. " for n in range(40))
SHARED, LENGTH = 613, 700
"""The edit is in the middle of a piece, and of a block."""
TOLERANCE = 1.0
"""Of logits, as docs/prefix-memory.md says."""


def prompt(llm: LLM, edited: bool = False) -> Ledger:
    tokens = llm.tokenize(TEXT)[:LENGTH]
    return Ledger().append_prompt([*tokens[:SHARED], *reversed(tokens[SHARED:])] if edited else tokens)


def ask(llm: LLM, ledger: Ledger, reuse: Reuse, n: int = 1) -> tuple[Reply, NDArray[np.float32]]:
    """The reply, and the logits after its last but one token."""
    reply = llm.generate(ledger, GenerateOptions(temperature=0, max_tokens=n, reuse=reuse)).result()
    return reply, llm._engine._live.sequence.logits()


@pytest.fixture
def cold(load):
    """`cold(name, ledger)`: the logits of a context that has seen nothing before."""

    def logits(name: str, ledger: Ledger) -> NDArray[np.float32]:
        return ask(load(name, n_ctx=1536, cache=None), ledger, "exact")[1]

    return logits


@pytest.mark.parametrize("name", ["smollm2", "llama", "gemma3"])
def test_an_edit_costs_its_own_tokens_and_says_so(load, cold, name: str) -> None:
    llm = load(name)
    ask(llm, prompt(llm), "exact")
    reply, logits = ask(llm, prompt(llm, edited=True), "token")
    assert (reply.usage.reused, reply.usage.computed) == (SHARED, LENGTH - SHARED)
    assert not reply.exact
    assert any("to the token" in note for note in reply.notes)
    np.testing.assert_allclose(logits, cold(name, prompt(llm, edited=True)), atol=TOLERANCE)


@pytest.mark.parametrize("name", ["smollm2", "llama", "gemma3"])
def test_what_is_inexact_is_never_reused_as_exact(load, cold, tmp_path: Path, name: str) -> None:
    """Neither live, nor through RAM, nor through the disk."""
    llm, edited = load(name, cache=tmp_path), prompt(load(name, cache=tmp_path), edited=True)
    ask(llm, prompt(llm), "exact")
    ask(llm, edited, "token", n=20)
    reply, logits = ask(llm, edited, "exact")
    assert reply.exact
    assert reply.usage.reused == 512
    expected = bits(cold(name, edited))
    np.testing.assert_array_equal(bits(logits), expected)
    llm.memory.flush()
    llm.close()
    again = load(name, cache=tmp_path, n_ctx=2048)
    reply, logits = ask(again, edited, "exact")
    assert reply.usage.restored == LENGTH - 1
    np.testing.assert_array_equal(bits(logits), expected)


@pytest.mark.parametrize("name", ["smollm2", "llama"])
@pytest.mark.parametrize("ram_limit", [0, 1 << 30])
def test_a_new_process_restores_to_the_token(load, cold, tmp_path: Path, name: str, ram_limit: int) -> None:
    llm = load(name, cache=tmp_path)
    ask(llm, prompt(llm), "exact")
    llm.memory.flush()
    llm.close()
    again = load(name, cache=tmp_path, n_ctx=2048, ram_limit=ram_limit)
    edited = prompt(again, edited=True)
    reply, logits = ask(again, edited, "token")
    assert (reply.usage.restored, reply.usage.computed) == (SHARED, LENGTH - SHARED)
    np.testing.assert_allclose(logits, cold(name, edited), atol=TOLERANCE)
    again.memory.flush()
    again.close()
    third = load(name, cache=tmp_path, n_ctx=1280)
    reply, at_the_end = ask(third, edited, "token")
    assert reply.usage.restored == LENGTH - 1, "what token-level reuse has computed is kept, too"
    assert not reply.exact
    np.testing.assert_allclose(at_the_end, logits, atol=1e-4)


@pytest.mark.parametrize("name", ["mamba", "lfm2", "jamba"])
def test_what_cannot_be_cut_stays_exact(load, cold, name: str) -> None:
    llm = load(name)
    ask(llm, prompt(llm), "exact")
    reply, logits = ask(llm, prompt(llm, edited=True), "token")
    assert reply.exact
    np.testing.assert_array_equal(bits(logits), bits(cold(name, prompt(llm, edited=True))))


def test_state_of_another_number_of_threads_counts_as_token_level(load, tmp_path: Path) -> None:
    one = load("llama", cache=tmp_path)
    ask(one, prompt(one), "exact")
    one.memory.flush()
    one.close()
    two = load("llama", cache=tmp_path, n_threads=2)
    reply, _ = ask(two, prompt(two), "token")
    assert reply.usage.restored == LENGTH - 1
    assert not reply.exact
    reply, _ = ask(two, prompt(two), "exact")
    assert (reply.usage.reused, reply.usage.restored) == (0, 0)
    assert reply.exact
    two.memory.flush()
    two.close()
    again = load("llama", cache=tmp_path, n_threads=2, n_ctx=2048)
    reply, _ = ask(again, prompt(again), "exact")
    assert reply.usage.restored == LENGTH - 1, "its own state has taken the place of the other's"
