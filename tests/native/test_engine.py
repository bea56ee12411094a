"""Engine and Job: what a job tells, order and places, errors, and why generation ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from native.jobs import Gate, endless, options, places, prompt

from ipyllama.engine import Job
from ipyllama.errors import Aborted, BadArgument, BadOption, DecodeError, PromptTooLong
from ipyllama.ledger import Ledger
from ipyllama.llm import LLM
from ipyllama.reply import Delta, Finished, Prefill, Reply

ALPHABET = "abcdefghijklmnopqrstuvwxyz "
Load = Callable[..., LLM]


# -- what a job tells ---------------------------------------------------------------------------------------


def test_events_tell_the_whole_story(llm: LLM) -> None:
    text = "hello world " * 60
    job = llm.start(text, max_tokens=40, seed=3)
    events = list(job)
    reply = job.result()
    prefill = [event for event in events if isinstance(event, Prefill)]
    assert [event.done for event in prefill] == [0, 256, 512, 720, 721]
    assert {(event.total, event.start) for event in prefill} == {(721, 0)}
    assert "".join(event.text for event in events if isinstance(event, Delta)) == reply.text
    assert events[-1] == Finished(reply)
    assert (reply.usage.prompt, reply.usage.computed, reply.usage.generated) == (721, 721, 40)
    assert len(reply.tokens) == 40
    assert reply.text == llm.detokenize(reply.tokens)
    assert (reply.model, reply.seed) == (llm.name, 3)


def test_a_reply_can_be_asked_for_again(llm: LLM) -> None:
    job = llm.start("hello", max_tokens=5)
    events = list(job)
    assert list(job) == []  # the events are gone, the reply is not
    assert job.result() is job.result() is events[-1].reply
    assert job.done
    failing = llm.start("x" * 20_000)
    for _ in range(2):
        with pytest.raises(PromptTooLong):
            failing.result()


def test_the_same_from_many_threads_as_alone(llm: LLM) -> None:
    texts = [f"prompt number {n}" for n in range(6)]
    alone = [llm.complete(text, max_tokens=20).tokens for text in texts]
    found: dict[int, tuple[int, ...]] = {}

    def ask(number: int) -> None:
        found[number] = llm.complete(texts[number], max_tokens=20).tokens

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[number] for number in range(6)] == alone


# -- the queue ----------------------------------------------------------------------------------------------


def test_jobs_run_in_order_and_are_told_their_place(llm: LLM, gate: Gate) -> None:
    order: list[str] = []

    def submit(name: str) -> Job:
        def wrap(reply: Reply, ledger: Ledger) -> Reply:
            order.append(name)
            return reply

        return llm.generate(prompt(llm, name), options(max_tokens=2), wrap=wrap)

    jobs = [submit(name) for name in "abc"]
    assert llm.n_busy == 4
    gate.open.set()
    events = [list(job) for job in jobs]
    assert order == ["a", "b", "c"]
    assert [places(told) for told in events] == [[1], [2, 1], [3, 2, 1]]
    assert llm.n_busy == 0


def test_a_job_that_need_not_wait_is_told_no_place(llm: LLM) -> None:
    assert places(list(llm.start("hello", max_tokens=1))) == []


# -- errors -------------------------------------------------------------------------------------------------


def test_an_error_belongs_to_its_job_alone(llm: LLM) -> None:
    def wrap(reply: Reply, ledger: Ledger) -> Reply:
        raise RuntimeError("in wrap")

    jobs = [
        llm.generate(prompt(llm, "a"), options(max_tokens=1), wrap=wrap),
        llm.generate(Ledger(), options()),
        llm.generate(Ledger().append_prompt([1, 10**6]), options()),
        llm.start("fine", max_tokens=2),
    ]
    for job, error in zip(jobs, (RuntimeError, BadOption, BadArgument), strict=False):
        with pytest.raises(error):
            job.result()
    assert jobs[-1].result().usage.generated == 2


def test_an_abort_that_nobody_asked_for_is_an_error(llm: LLM) -> None:
    job = endless(llm)
    next(event for event in iter(job._events.get, None) if isinstance(event, Delta))
    llm._engine._context.abort()
    with pytest.raises(Aborted):
        job.result()
    assert llm.complete("hello", max_tokens=1).usage.generated == 1


def test_an_error_in_wrap_while_it_waits_is_not_lost(llm: LLM, gate: Gate) -> None:
    def wrap(reply: Reply, ledger: Ledger) -> Reply:
        raise RuntimeError("in wrap")

    job = llm.generate(prompt(llm, "a"), options(), wrap=wrap)
    job.cancel()
    with pytest.raises(RuntimeError, match="in wrap"):
        job.result()


def test_a_model_whose_logits_are_no_numbers(tiny, load: Load, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(tiny("llama").read_bytes())
    reader = gguf.GGUFReader(broken, "r+")
    next(tensor for tensor in reader.tensors if tensor.name == "output.weight").data[:] = np.nan
    reader.data.flush()
    del reader
    llm = load(broken)
    for _ in range(2):
        with pytest.raises(DecodeError, match="not numbers"):
            llm.complete("hello")


def test_a_prompt_that_is_too_long_says_by_how_much(load: Load) -> None:
    llm = load("llama", n_ctx=256)
    for n, over in ((256, 1), (260, 5)):
        with pytest.raises(PromptTooLong, match=f"{n} tokens, {over} too many for a context of 256") as caught:
            llm.generate(Ledger().append_prompt([300] * n), options()).result()
        assert (caught.value.n_prompt, caught.value.n_ctx, caught.value.n_over) == (n, 256, over)
    assert llm.generate(Ledger().append_prompt([300] * 255), options(max_tokens=1)).result().usage.prompt == 255


def test_the_repeat_penalty_sees_the_prompt(llm: LLM) -> None:
    """Penalties are no part of KV: they are rebuilt from the last 64 tokens of the ledger."""
    rng = np.random.default_rng(0)
    differing = 0
    for _ in range(40):
        tokens = [1, *map(int, rng.integers(262, 356, 100))]
        ledger = Ledger().append_prompt(tokens)
        greedy = llm.generate(ledger, options(max_tokens=1)).result().tokens[0]
        logits = llm._engine._live.sequence.logits()
        seen = sorted(set(tokens[-64:]))
        logits[seen] = np.where(logits[seen] > 0, logits[seen] / 5, logits[seen] * 5)
        penalised = llm.generate(ledger, options(max_tokens=1, repeat_penalty=5)).result().tokens[0]
        assert penalised == logits.argmax()
        differing += penalised != greedy
    assert differing > 0


# -- why it ends --------------------------------------------------------------------------------------------


def test_length(bigram: LLM) -> None:
    reply = bigram.complete("x", max_tokens=6, temperature=0)
    assert (reply.text, reply.finish_reason, reply.usage.generated) == ("yz abc", "length", 6)


@pytest.mark.parametrize(
    ("stop", "text"),
    [("fgh", "bcde"), (("zzz", "hi"), "bcdefg"), (("k", "e"), "bcd"), ("b", ""), ("z a", ALPHABET[1:25])],
)
def test_stop_texts_end_it_and_are_not_shown(bigram: LLM, stop: str | tuple[str, ...], text: str) -> None:
    reply = bigram.complete("a", stop=stop, max_tokens=60, temperature=0)
    assert (reply.finish_reason, reply.text) == ("stop", text)


def test_what_only_began_like_a_stop_text_is_shown_at_the_end(bigram: LLM) -> None:
    reply = bigram.complete("a", stop="efgX", max_tokens=5, temperature=0)
    assert (reply.text, reply.finish_reason) == ("bcdef", "length")


def test_the_end_of_the_models_turn(llm: LLM) -> None:
    reply = llm.complete("hello", temperature=2, top_k=0, top_p=1, min_p=0, max_tokens=10_000)
    assert reply.finish_reason == "stop"
    assert [llm.vocab.is_eog(token) for token in reply.tokens].index(True) == len(reply.tokens) - 1
    assert reply.usage.generated == len(reply.tokens)
    text = llm.detokenize(reply.tokens)  # a control token has none
    assert text in (reply.text, reply.text + "\ufffd")  # a character that was only begun is left out


def test_the_context_is_full(load: Load) -> None:
    llm = load("llama", n_ctx=256)
    reply = llm.generate(Ledger().append_prompt([300] * 246), options(max_tokens=500)).result()
    assert (reply.finish_reason, reply.usage.generated) == ("context", 11)  # the last is sampled, not evaluated
    assert llm.n_live == 256
    again = llm.generate(Ledger().append_prompt([300] * 246), options(max_tokens=500)).result()
    assert again.tokens == reply.tokens
    assert again.usage.reused == 245
