"""A request that was answered before: the same reply, at once, and only where it is the very same request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from native.jobs import Gate, options, prompt

from ipyllama.engine import Request
from ipyllama.errors import BadOption, ClosedError
from ipyllama.ledger import Ledger
from ipyllama.llm import LLM
from ipyllama.options import GenerateOptions
from ipyllama.prefix import PrefixMemory
from ipyllama.reply import Delta, Finished, Reply, Usage

Load = Callable[..., LLM]
ARCHS = ("llama", "gemma3", "mamba")


@pytest.fixture
def new(load: Load) -> Load:
    """`new(name, **options)`: a model that replays; with `folder`, as in a new process that keeps things there."""

    def open_model(name: str, folder: Path | None = None, **options: Any) -> LLM:
        llm = load(name, cache=PrefixMemory(folder), **options)
        llm.memory.replies.enabled = True
        return llm

    return open_model


@pytest.fixture
def llm(new: Load) -> LLM:
    """Random text, in a context that takes seconds to fill."""
    return new("llama", n_ctx=16384)


def words(reply: Reply) -> tuple[object, ...]:
    """What a reply says."""
    return reply.text, reply.tokens, reply.finish_reason, reply.seed, reply.model


REQUESTS = st.fixed_dictionaries(
    {"max_tokens": st.integers(1, 12)},
    optional={
        "temperature": st.sampled_from([0, 0.2, 1.5]),
        "seed": st.integers(0, 99),
        "top_k": st.integers(0, 5),
        "repeat_penalty": st.sampled_from([1.0, 1.3]),
        "stop": st.lists(st.sampled_from("aeiou "), max_size=2),
        "logit_bias": st.sampled_from([(), ((300, 5.0), (301, float("-inf")))]),
        "grammar": st.sampled_from([None, "root ::= [a-z]+"]),
    },
)


@pytest.mark.parametrize("arch", ARCHS)
def test_a_replay_says_what_two_computations_say(new: Load, tmp_path: Path, arch: str) -> None:
    llm, folder = new(arch, tmp_path), tmp_path
    asked = []

    @settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
    @given(st.text("abc xyz é", min_size=1, max_size=40), REQUESTS)
    def ask(text: str, request: dict[str, Any]) -> None:
        computed = [llm.complete(text, fresh=True, **request) for _ in range(2)]
        replayed = llm.complete(text, **request)
        assert words(computed[0]) == words(computed[1]) == words(replayed)
        assert [reply.replayed for reply in (*computed, replayed)] == [False, False, True]
        asked.append((text, request, replayed))

    ask()
    llm.memory.flush()
    llm.close()
    again = new(arch, folder)
    for text, request, before in asked:
        reply = again.complete(text, **request)
        assert (words(reply), reply.replayed) == (words(before), True)


def test_a_replay_computes_nothing_and_keeps_its_timings(llm: LLM) -> None:
    first = llm.complete("some words", max_tokens=5)
    llm.complete("others", max_tokens=1)
    live = llm.n_live
    second = llm.complete("some words", max_tokens=5)
    assert second == replace(first, usage=Usage(restored=first.usage.prompt, generated=5), replayed=True)
    assert llm.n_live == live


def test_it_does_not_wait_for_the_engine(llm: LLM) -> None:
    first = llm.complete("some words", max_tokens=3)
    held = Gate()
    waiting = llm.generate(prompt(llm, "another"), options(max_tokens=1), wrap=held)
    assert held.reached.wait(60)
    job = llm.start("some words", max_tokens=3)
    assert job.done
    assert [type(event) for event in job] == [Delta, Finished]
    assert job.result().tokens == first.tokens
    job.cancel()
    assert not waiting.done
    held.open.set()
    waiting.result()


def test_the_text_streams(llm: LLM) -> None:
    computed = "".join(llm.stream("some words", max_tokens=5))
    assert list(llm.stream("some words", max_tokens=5)) == [computed]


CHANGED: dict[str, object] = {
    "max_tokens": 6,
    "stop": ("zz",),
    "seed": 7,
    "temperature": 0.3,
    "logit_bias": ((300, 0.5),),
    "grammar": "root ::= [a-z]+",
}


def test_every_option_counts(llm: LLM) -> None:
    default = GenerateOptions(max_tokens=5)
    llm.complete("some words", max_tokens=5)
    for field in fields(GenerateOptions):
        value = getattr(default, field.name)
        if field.name in ("reuse", "recompute"):
            continue  # below
        if field.name in CHANGED:
            value = CHANGED[field.name]
        elif isinstance(value, bool):
            value = not value
        elif isinstance(value, int | float):
            value = 0.5 if isinstance(value, float) and value != 0.5 else value + 1
        else:
            continue
        try:
            changed = default.replace_from({field.name: value})
        except BadOption:  # 0.5 or one more is not in its range
            changed = default.replace_from({field.name: 1})
        assert changed != default, field.name
        key = llm._replies._key
        assert key(_request(llm, changed)) != key(_request(llm, default)), field.name
        if field.name in CHANGED:
            assert not llm.complete("some words", **{"max_tokens": 5, field.name: value}).replayed


def _request(llm: LLM, options: GenerateOptions) -> Any:
    return Request(prompt(llm, "some words"), options)


def test_what_was_computed_to_the_token_is_not_kept(new: Load) -> None:
    """An exact reply is good for whoever would take less, not the other way round."""
    llm, text = new("llama"), "once upon a time " * 8
    llm.complete(text + "there was", max_tokens=1)
    inexact = llm.complete(text + "there is", max_tokens=3, reuse="token")
    assert not inexact.exact
    computed = llm.complete(text + "there is", max_tokens=3)
    assert (computed.exact, computed.replayed) == (True, False)
    assert llm.complete(text + "there is", max_tokens=3, reuse="token") == replace(
        computed, usage=Usage(restored=computed.usage.prompt, generated=3), replayed=True
    )


def test_switched_off_nothing_is_replayed(llm: LLM) -> None:
    llm.complete("some words", max_tokens=3)
    llm.memory.paused = True
    assert not llm.complete("some words", max_tokens=3).replayed
    llm.complete("others", max_tokens=3)
    llm.memory.paused = False
    assert llm.complete("some words", max_tokens=3).replayed
    assert not llm.complete("others", max_tokens=3).replayed


def test_the_same_words_in_other_pieces_are_another_request(llm: LLM) -> None:
    """Pieces are evaluated one after the other, and logits depend on where they end."""
    tokens = llm.tokenize("some words and more of them")
    whole = Ledger().append_prompt(tokens)
    parts = Ledger().append_prompt(tokens[:5]).append_prompt(tokens[5:])
    sampled = Ledger().append_prompt(tokens[:5]).append_sampled(tokens[5:9]).append_prompt(tokens[9:])
    for ledger in (whole, parts, sampled):
        assert not llm.generate(ledger, options(max_tokens=3)).result().replayed
        assert llm.generate(ledger, options(max_tokens=3)).result().replayed


@pytest.mark.parametrize("other", [{"n_threads": 2}, {"kv_type": "f32"}, {"flash_attention": True}])
def test_other_settings_answer_themselves(new: Load, tmp_path: Path, other: dict[str, Any]) -> None:
    usual = new("llama", tmp_path)
    usual.complete("some words", max_tokens=3)
    usual.memory.flush()
    assert not new("llama", tmp_path, **other).complete("some words", max_tokens=3).replayed
    assert new("llama", tmp_path, n_ctx=2048).complete("some words", max_tokens=3).replayed


def test_another_model_answers_itself(new: Load, tmp_path: Path) -> None:
    new("llama", tmp_path).complete("some words", max_tokens=3)
    new("llama", tmp_path).memory.flush()
    assert not new("llama-bigram", tmp_path).complete("some words", max_tokens=3).replayed


def test_what_would_not_fit_is_not_replayed(new: Load, tmp_path: Path) -> None:
    """The reply of a long context in a short one: it ends where a computed one would."""
    text = "x" * 40
    long = new("llama", tmp_path, n_ctx=1024)
    n_prompt = long.complete(text, max_tokens=230, temperature=0, logit_bias=((2, float("-inf")),)).usage.prompt
    long.memory.flush()
    request: dict[str, Any] = {"max_tokens": 230, "temperature": 0, "logit_bias": ((2, float("-inf")),)}
    for n_ctx in (256, 512):
        short = new("llama", tmp_path, n_ctx=n_ctx)
        found = short.complete(text, **request)
        fits = n_prompt + 230 - 1 <= short.n_ctx
        assert found.replayed is fits
        assert found.finish_reason == ("length" if fits else "context")


def test_cut_short_is_not_kept(new: Load) -> None:
    llm = new("llama", n_ctx=256)
    request: dict[str, Any] = {"max_tokens": 10_000, "temperature": 0, "logit_bias": ((2, float("-inf")),)}
    assert [llm.complete("go", **request).finish_reason for _ in range(2)] == ["context"] * 2
    assert not llm.complete("go", **request).replayed


def test_interrupted_is_not_kept(llm: LLM) -> None:
    for _ in range(2):
        job = llm.start("go", max_tokens=10_000, temperature=0)
        next(event for event in iter(job._next, None) if isinstance(event, Delta))
        job.cancel()
        reply = job.result()
        assert (reply.finish_reason, reply.replayed) == ("interrupted", False)


def test_random_is_computed_each_time(llm: LLM) -> None:
    replies = [llm.complete("some words", max_tokens=3, seed="random") for _ in range(3)]
    assert not any(reply.replayed for reply in replies)
    assert not llm.complete("some words", max_tokens=3, seed=replies[0].seed).replayed  # it was not kept either


def test_fresh_computes_and_keeps(llm: LLM) -> None:
    assert not llm.complete("some words", max_tokens=3, fresh=True).replayed
    assert not llm.complete("some words", max_tokens=3, fresh=True).replayed
    assert llm.complete("some words", max_tokens=3).replayed


def test_notes_are_those_of_the_request(llm: LLM) -> None:
    llm.start("some words", max_tokens=3, notes=("of then",)).result()
    reply = llm.start("some words", max_tokens=3, notes=("of now",)).result()
    assert (reply.notes, reply.replayed) == (("of now",), True)


def test_what_fails_after_it_reaches_the_caller(llm: LLM) -> None:
    def wrap(reply: Reply, ledger: Ledger) -> Reply:
        raise BadOption("no")

    request = prompt(llm, "some words"), options(max_tokens=3)
    llm.generate(*request).result()
    with pytest.raises(BadOption, match="no"):
        llm.generate(*request, wrap=wrap).result()


def test_a_closed_model_does_not_answer(llm: LLM) -> None:
    request = prompt(llm, "some words"), options(max_tokens=3)
    llm.generate(*request).result()
    llm.close()
    with pytest.raises(ClosedError):
        llm.generate(*request)


def test_clearing_the_memory_forgets_them(new: Load, tmp_path: Path) -> None:
    llm = new("llama", tmp_path)
    llm.complete("some words", max_tokens=3)
    llm.memory.clear()
    assert not llm.complete("some words", max_tokens=3).replayed


# -- conversations ----------------------------------------------------------------------------------------


def test_a_conversation_is_replayed_turn_by_turn(new: Load, tmp_path: Path) -> None:
    """In a new process; then it goes on, computing only what is new."""

    def talk(llm: LLM, n: int) -> list[Any]:
        chat = llm.chat(system="You are brief. " * 20)
        return [chat.ask(f"Question {number}?", cell=str(number), max_tokens=20, temperature=0) for number in range(n)]

    llm = new("llama", tmp_path)
    before = talk(llm, 3)
    assert not any(turn.replayed for turn in before)
    llm.memory.flush()
    llm.close()
    llm = new("llama", tmp_path)
    after = talk(llm, 4)
    assert [turn.replayed for turn in after] == [True, True, True, False]
    assert [turn.ledger for turn in after[:3]] == [turn.ledger for turn in before]
    assert after[3].parent is after[2]
    assert after[3].usage.reused == 0
    cold = talk(new("llama", None, n_ctx=2048), 4)
    assert cold[3].ledger == after[3].ledger


def test_a_cell_that_runs_again_keeps_its_place(llm: LLM) -> None:
    chat = llm.chat()
    ask: dict[str, Any] = {"max_tokens": 5, "temperature": 0}
    first, second = chat.ask("One?", cell="1", **ask), chat.ask("Two?", cell="2", **ask)
    again = chat.ask("One?", cell="1", **ask)
    assert (again.replayed, again.ledger, again.notes) == (True, first.ledger, ())
    assert chat.turns == (again,)
    assert chat.all_turns == (again, second)
    assert chat.stale == ()
    anew = chat.ask("One?", cell="1", fresh=True, **ask)
    assert (anew.replayed, anew.ledger) == (False, first.ledger)
