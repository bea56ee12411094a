"""Several answers at once against single runs: the first token equals, what follows is close, every one can be
continued, and nothing is computed twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from native.jobs import Gate, options, places, prompt

from ipyllama.errors import BadOption, PromptTooLong
from ipyllama.ledger import Ledger
from ipyllama.llm import LLM
from ipyllama.options import GenerateOptions
from ipyllama.reply import Reply

TEXT = "The red fox met a dog near the trees and told it of the river. " * 6
ARCHS = ("llama", "gemma3", "mamba", "lfm2", "jamba", "smollm2")


def together(llm: LLM, ledgers: Sequence[Ledger], variants: Sequence[GenerateOptions]) -> list[Reply]:
    return [job.result() for job in llm.generate_together(ledgers, variants)]


@pytest.mark.parametrize("arch", ARCHS)
def test_samples_are_those_of_single_runs(load, arch: str) -> None:
    """The first token is sampled from the very same logits; greedy ones agree for a long way, which only logits that
    are nearly equal give."""
    llm = load(arch)
    ledger = prompt(llm, TEXT)
    variants = [
        options(max_tokens=12, temperature=temperature, seed=seed) for temperature, seed in ((0, 1), (0.8, 2), (0.8, 3))
    ]
    single = [llm.generate(ledger, each, fresh=True).result() for each in variants]
    many = together(llm, [ledger] * 3, variants)
    for one, other in zip(single, many, strict=True):
        assert one.tokens[0] == other.tokens[0]
        assert not other.exact
    assert single[0].tokens[:6] == many[0].tokens[:6]


@pytest.mark.parametrize("arch", ARCHS)
def test_the_prompt_is_read_once(load, arch: str) -> None:
    llm = load(arch)
    ledger = prompt(llm, TEXT)
    first, *others = together(llm, [ledger] * 4, [options(max_tokens=3, seed=seed) for seed in range(4)])
    assert first.usage.computed == len(ledger)
    assert all((other.usage.reused, other.usage.computed) == (len(ledger), 0) for other in others)
    assert [each.why.kept for each in (first, *others)] == [0, *[len(ledger)] * 3]
    again = llm.generate(ledger, options(max_tokens=1), fresh=True).result()
    assert again.usage.computed == 1, "the prompt is still there, and nothing else"


@pytest.mark.parametrize("arch", ARCHS)
def test_each_can_be_continued_exactly(load, arch: str) -> None:
    """What was sampled together is read like a prompt; the answer after it equals one computed from nothing."""
    llm = load(arch)
    ledger = prompt(llm, TEXT)
    replies = together(llm, [ledger] * 2, [options(max_tokens=9, temperature=0.9, seed=seed) for seed in (1, 2)])
    for reply in replies:
        longer = ledger.append_sampled(reply.tokens, together=True).append_prompt(llm.tokenize("And then?"))
        next_reply = llm.generate(longer, options(max_tokens=8)).result()
        assert next_reply.usage.reused + next_reply.usage.restored >= len(ledger) - 1
        logits = llm._engine._live.sequence.logits()
        cold = load(arch, n_ctx=1280, cache=None)
        assert cold.generate(longer, options(max_tokens=8)).result().tokens == next_reply.tokens
        assert np.array_equal(cold._engine._live.sequence.logits(), logits)


def test_more_than_fit_at_once_wait_their_turn(load) -> None:
    llm = load("llama", n_ctx=512, n_parallel=3)
    ledgers = [prompt(llm, f"{number}. {TEXT}") for number in range(8)]
    replies = together(llm, ledgers, [options(max_tokens=20)] * 8)
    assert all(reply.usage.prompt == len(ledger) for reply, ledger in zip(replies, ledgers, strict=True))
    singles = [llm.generate(ledger, options(max_tokens=20), fresh=True).result() for ledger in ledgers]
    assert [reply.tokens[0] for reply in replies] == [reply.tokens[0] for reply in singles]


def test_a_full_context_ends_answers_and_says_so(load) -> None:
    llm = load("llama", n_ctx=512)
    ledger = prompt(llm, TEXT)
    replies = together(llm, [ledger] * 4, [options(max_tokens=10_000, seed=seed) for seed in range(4)])
    assert {reply.finish_reason for reply in replies} == {"context"}
    assert all(reply.usage.generated > 10 for reply in replies)


def test_map_shares_what_all_begin_with(load) -> None:
    llm = load("llama")
    replies = llm.map([TEXT + end for end in ("one", "two", "three")], raw=True, max_tokens=4, temperature=0)
    shared = replies[1].usage.reused
    assert shared == 256
    assert [reply.usage.computed for reply in replies[1:]] == [reply.usage.prompt - shared for reply in replies[1:]]


def test_map_keeps_the_order_and_takes_any_iterable(load) -> None:
    llm = load("llama-bigram")
    counted: list[int] = []
    replies = llm.map(
        (text for text in "abc"), raw=True, max_tokens=3, temperature=0, progress=lambda done, *_: counted.append(done)
    )
    assert [reply.text for reply in replies] == ["bcd", "cde", "def"]
    assert (counted[0], counted[-1]) == (0, 3)  # told from the first word on
    assert counted == sorted(counted)
    assert llm.map([]) == []
    with pytest.raises(BadOption, match="a list of prompts"):
        llm.map("one prompt")


@pytest.mark.parametrize("arch", ["llama", "mamba"])
def test_one_that_is_cancelled_ends_alone(load, arch: str) -> None:
    llm = load(arch, n_ctx=4096)
    ledger = prompt(llm, TEXT)
    jobs = llm.generate_together([ledger] * 3, [options(max_tokens=400, seed=seed) for seed in range(3)])
    jobs[1].cancel()
    ends = [job.result().finish_reason for job in jobs]
    assert ends == ["length", "interrupted", "length"]


def test_all_cancelled_end_at_once_and_keep_what_was_written(load, gate: Gate, llm: LLM) -> None:
    ledger = prompt(llm, TEXT)
    jobs = llm.generate_together([ledger] * 2, [options(max_tokens=100_000)] * 2)
    jobs[0].cancel()
    assert not jobs[0].done, "its group waits for the other"
    jobs[1].cancel()
    assert [job.result().finish_reason for job in jobs] == ["interrupted"] * 2


def test_what_is_wrong_is_told_to_each(load) -> None:
    llm = load("llama")
    for job in llm.generate_together([Ledger()] * 2, [options()] * 2):
        with pytest.raises(BadOption, match="empty"):
            job.result()
    too_long = Ledger().append_prompt([5] * 2000)
    for job in llm.generate_together([too_long] * 2, [options()] * 2):
        with pytest.raises(PromptTooLong):
            job.result()
    assert llm.generate(prompt(llm, "fine"), options(max_tokens=1)).result().text is not None


def test_a_long_group_gives_way_between_its_answers(load) -> None:
    """Two at a time: a chat that comes in the meantime waits for these two, and the rest goes on after it."""
    llm, gate, order = load("llama", n_parallel=2), Gate(), list[str]()

    def noting(name: str, first: Gate | None = None) -> Callable[[Reply, Ledger], Reply]:
        def wrap(reply: Reply, ledger: Ledger) -> Reply:
            order.append(name)
            return first(reply, ledger) if first else reply

        return wrap

    ledgers = [prompt(llm, f"{TEXT} {number}") for number in range(6)]
    variants = [options(max_tokens=3 + number % 2) for number in range(6)]
    wraps = [noting(str(number), gate if number == 0 else None) for number in range(6)]
    jobs = llm.generate_together(ledgers, variants, (), wraps)
    assert gate.reached.wait(60)
    other = llm.generate(prompt(llm, "me too"), options(max_tokens=1), wrap=noting("other"), caller=gate)
    assert places(other.events()) == [1]
    gate.open.set()
    replies = [job.result() for job in jobs]
    assert order == ["0", "1", "other", "2", "3", "4", "5"]
    assert [reply.usage.generated for reply in replies] == [3, 4] * 3
    assert all(reply.usage.prompt == len(ledger) for reply, ledger in zip(replies, ledgers, strict=True))
    assert replies[2].usage.computed < len(ledgers[2]) - 200, "what all begin with was not read again"


def test_what_gave_way_waits_as_others_do(load) -> None:
    llm, gate = load("llama", n_parallel=1), Gate()
    held = Gate()
    ledgers = [prompt(llm, f"{TEXT} {number}") for number in range(4)]
    wraps = [gate, *[lambda reply, ledger: reply] * 3]
    jobs = llm.generate_together(ledgers, [options(max_tokens=2)] * 4, (), wraps)
    assert gate.reached.wait(60)
    llm.generate(prompt(llm, "me too"), options(max_tokens=1), wrap=held, caller=held)
    gate.open.set()
    assert held.reached.wait(60)
    assert [places(job.events()) for job in jobs] == [[], [2, 1], [2, 1], [2, 1]], "its own group ran, then the other"
    for job in jobs[1:]:
        assert not job.done
        job.cancel()
    assert [job.result().finish_reason for job in jobs] == ["length", *["interrupted"] * 3], "though the other is held"
    held.open.set()
    assert llm.generate(ledgers[0], options(max_tokens=1)).result().usage.restored == 256


def test_what_was_cancelled_before_it_gave_way_is_not_begun(load) -> None:
    llm, gate = load("llama", n_parallel=1), Gate()
    ledgers = [prompt(llm, f"{number} {TEXT}") for number in range(3)]
    jobs = llm.generate_together(ledgers, [options(max_tokens=2)] * 3, (), [gate, *[lambda reply, ledger: reply] * 2])
    assert gate.reached.wait(60)
    llm.generate(prompt(llm, "me too"), options(max_tokens=1), caller=gate)
    for job in jobs[1:]:
        job.cancel()
    gate.open.set()
    assert [(job.result().finish_reason, job.result().usage.prompt) for job in jobs[1:]] == [("interrupted", 0)] * 2
