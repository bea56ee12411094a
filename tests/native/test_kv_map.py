"""The KV map against llama.cpp's own account of its cells."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ipyllama

PROMPT = "one two three four five six seven eight nine ten " * 12


def native(llm: ipyllama.LLM) -> tuple[int, dict[int, list[int]]]:
    """Cells in use, and the tokens of the active sequence, asked of the context on the engine's thread."""
    engine: Any = llm._engine
    return engine.call(lambda task: (engine.context.memory.used, engine._live.sequence.tokens)).result()


@pytest.mark.parametrize("arch", ["llama", "gemma3", "mamba", "lfm2", "jamba"])
def test_after_an_answer_it_is_what_the_context_holds(tiny: Callable[[str], Path], arch: str) -> None:
    with ipyllama.load(tiny(arch), cache=None, n_threads=1) as llm:
        for prompt in (PROMPT, PROMPT + "eleven", "another", PROMPT):
            reply = llm.complete(prompt, max_tokens=6, seed=1, fresh=True)
            kv, (used, tokens) = llm.kv(), native(llm)
            assert [cell.token for cell in kv.cells()] == tokens
            assert [cell.position for cell in kv.cells()] == list(range(len(tokens)))
            counts = reply.usage
            assert (kv.count("reused"), kv.count("restored")) == (counts.reused, counts.restored)
            assert kv.count("computed") == counts.computed
            assert kv.count("generated") == counts.generated - 1  # the last one has not been evaluated
            if arch != "mamba":
                assert kv.used == used
            assert bool(kv.note) == (arch == "mamba")


def test_several_answers_share_what_they_have_in_common(tiny: Callable[[str], Path]) -> None:
    with ipyllama.load(tiny("llama"), cache=None, n_threads=1) as llm:
        seen: list[tuple[int, int, dict[int, int]]] = []
        engine: Any = llm._engine
        board = engine.board

        def look() -> None:
            if len(llm.kv().sequences) > 1:
                kv = llm.kv()
                seen.append((kv.used, engine.context.memory.used, kv.sequences))

        board.listen(look)
        llm.map([PROMPT + "a", PROMPT + "b b"], raw=True, max_tokens=8, seed=1)
        board.forget(look)
        assert seen
        assert all(ours == theirs for ours, theirs, _ in seen)
        assert any(len(sequences) == 3 for *_, sequences in seen)
        assert list(llm.kv().sequences) == [0]


def test_it_is_read_while_an_answer_is_written(tiny: Callable[[str], Path]) -> None:
    with ipyllama.load(tiny("llama-bigram"), cache=None, n_threads=1) as llm:
        job = llm.start("abc", max_tokens=3000, seed=1)
        used = [llm.kv().used]
        while used[-1] <= used[0] + 10 and not job.done:
            used.append(llm.kv().used)
        job.cancel()
        job.wait()
        assert used == sorted(used)
        assert used[-1] > used[0]


def test_a_model_that_encodes_has_none(tiny: Callable[[str], Path]) -> None:
    with ipyllama.load(tiny("bert"), cache=None) as llm, pytest.raises(ipyllama.errors.WrongModel):
        llm.kv()
