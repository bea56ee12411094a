"""Stop: the prompt comes back, what was written is kept, and the next cell builds on what was computed.

How long the kernel took is printed (`pytest -s`) and not asserted; the harness only protects from a hang.
"""

from __future__ import annotations

import time
from pathlib import Path
from random import Random

import pytest
from kernel.session import Kernel, Result

LONG = "In the town where I was born there lived a man who sailed to sea. " * 270
"""About 4,000 tokens of SmolLM2: many seconds of prefill."""
ENDLESS = "%%llama -t 0 -n 4000 --out answer\nWrite down all the numbers that you know, one after the other."


def interrupt(kernel: Kernel, running: str, shown: Result) -> Result:
    began = time.monotonic()
    kernel.interrupt()
    result = kernel.finish(running, shown)
    print(f"{(time.monotonic() - began) * 1000:.0f} ms from Stop to the prompt", end=" ")  # noqa: T201
    assert not result.ok
    assert result.content["ename"] == "Interrupted"
    assert len(result.content["traceback"]) == 1
    assert "Interrupted" in result.error
    assert "[interrupted]" in result.bundles[-1]["text/plain"]
    assert "[interrupted]" in result.bundles[-1]["text/html"]
    return result


def test_in_prefill(smol: Kernel) -> None:
    running = smol.start(f"%%llama --out answer -n 20\n{LONG}", "prefill")
    shown = smol.wait_for_reading(running)
    assert "kept" not in interrupt(smol, running, shown).error
    assert smol.value("answer.finish_reason, answer.text, answer.tokens") == ("interrupted", "", ())
    done = smol.usage("answer")["computed"]
    assert 256 <= done < 4000
    # the very next cell works and starts from what was computed
    smol.run(f"%%llama --out after -n 1\n{LONG[: len(LONG) // 10]}")
    assert smol.usage("after")["reused"] >= 256
    assert smol.value("after.parent") is None  # an answer that says nothing is no turn


def test_in_generation(smol: Kernel) -> None:
    smol.run("%%llama --out before -n 10\nHello!")
    running = smol.start(ENDLESS)
    result = interrupt(smol, running, smol.wait_for_words(running))
    text = smol.value("answer.text").strip()
    assert text
    assert "what was written so far is kept" in result.error
    assert text in result.text
    assert smol.value("answer.finish_reason, answer.parent is before") == ("interrupted", True)
    assert smol.value("answer.kept")
    # the very next cell goes on from the partial answer and computes only its own words
    smol.run("%%llama --out after -n 5\nGo on.")
    assert smol.value("after.parent is answer")
    assert smol.usage("after")["reused"] == smol.value("len(answer.ledger)") - 1


def test_an_answer_that_no_conversation_has_is_where_it_says(smol: Kernel) -> None:
    smol.run("import ipyllama, sys; llm = ipyllama.load('smollm2')")
    bias = "logit_bias={2: float('-inf'), 0: float('-inf')}"
    running = smol.start(f"for piece in llm.stream('Once upon', max_tokens=4000, {bias}): display(piece)")
    shown = smol.wait_for(running, "'")
    smol.interrupt()
    result = smol.finish(running, shown)
    assert "what was written so far is in sys.last_value.reply" in result.error
    assert smol.value("sys.last_value.reply.text")


def test_of_several_answers_the_variable_holds_what_was_written(smol: Kernel) -> None:
    smol.run("answers = 'from before'")
    endless = "--samples 2 --out answers --logit-bias 2=-inf --logit-bias 0=-inf"
    running = smol.start(ENDLESS.replace("--out answer", endless))
    shown = smol.wait_for(running, "[seed 43]")
    smol.interrupt()
    result = smol.finish(running, shown)
    assert result.content["ename"] == "Interrupted"
    texts = smol.value("[turn.text.strip() for turn in answers]")
    assert len(texts) == 2
    assert any(texts)
    assert all(text in result.text for text in texts)


def test_in_the_queue(smol: Kernel) -> None:
    """A cell that waits behind another answer comes back at once, and the other answer goes on."""
    smol.run("import ipyllama\nllm = ipyllama.load('smollm2', n_threads=1)")
    smol.run("other = llm.start('1 2 3', max_tokens=4000, temperature=0)")
    running = smol.start("%%llama --out waiting\nHello")
    interrupt(smol, running, smol.wait_for(running, "waiting: 1 answer ahead"))
    assert smol.value("waiting.finish_reason, waiting.usage.prompt, other.done") == ("interrupted", 0, False)
    assert smol.value("next(event.text for event in other if hasattr(event, 'text'))")
    smol.run("%%llama --out after -n 3\nHello")
    assert smol.value("after.finish_reason != 'interrupted', after.parent") == (True, None)


def test_while_a_model_loads(smol: Kernel, smollm2: Path) -> None:
    load = f"ipyllama.load({str(smollm2)!r}, use_mmap=False, progress={{}})"
    smol.run("import os, signal, ipyllama\nbefore = ipyllama.loaded()")
    result = smol.fail(load.format("lambda done, total, label: os.kill(os.getpid(), signal.SIGINT)"))
    assert result.content["ename"] == "KeyboardInterrupt"
    assert smol.value("ipyllama.loaded() == before")
    smol.run(f"with {load.format('None')} as llm: print(llm.complete('One, two,', max_tokens=3))")
    smol.run("%%llama -n 3\nHello")


@pytest.mark.parametrize("seed", range(6))
def test_by_an_impatient_user(smol: Kernel, seed: int) -> None:
    """Stop pressed several times in a row ends the cell once, in an orderly way, and does not reach into the next."""
    random = Random(seed)
    running = smol.start(ENDLESS)
    shown = smol.wait_for_words(running)
    for _ in range(random.randint(2, 8)):
        smol.interrupt()
        time.sleep(random.choice((0.0, 0.0, 0.001, 0.01)) * random.random())
    result = smol.finish(running, shown)
    assert result.content["ename"] == "Interrupted"
    assert "[interrupted]" in result.text
    smol.run("%%llama -n 3 --out after\nHello")
    assert smol.value("after.finish_reason") in ("stop", "length")
