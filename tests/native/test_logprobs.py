"""How likely tokens were: against the raw logits of a context of its own, and NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from ipyllama import _core
from ipyllama.errors import BadOption, PromptTooLong
from ipyllama.llm import LLM
from ipyllama.loading import context_options
from ipyllama.logprobs import TokenLogprob
from ipyllama.reply import Delta

Load = Callable[..., LLM]
ARCHS = ("llama", "llama-bigram", "llama-bytes", "gemma3", "qwen2vl", "mamba", "lfm2", "jamba", "gpt2")
TEXT = "the red fox"
CLOSE = {"rtol": 0, "atol": 2e-4}


def raw_logits(llm: LLM, prompt: Sequence[int], tokens: Sequence[int]) -> list[NDArray[np.float64]]:
    """The logits that each token was chosen from, from a context that does nothing else."""
    options = replace(llm.options, n_threads=1)
    with _core.Context(llm._model, context_options(options)) as context, _core.Sequence(context) as sequence:
        if len(prompt) > 1:
            sequence.decode(list(prompt[:-1]))
        sequence.decode([prompt[-1]])
        found = [sequence.logits().astype(np.float64)]
        for token in tokens[:-1]:
            sequence.decode([token])
            found.append(sequence.logits().astype(np.float64))
    return found


def softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def check(llm: LLM, prompt: Sequence[int], tokens: Sequence[int], found: Sequence[TokenLogprob], n: int) -> None:
    assert [each.id for each in found] == list(tokens)
    for each, logits in zip(found, raw_logits(llm, prompt, tokens), strict=True):
        share = softmax(logits)
        np.testing.assert_allclose(each.logprob, np.log(share[each.id]), **CLOSE)
        some = share[share > 0]
        np.testing.assert_allclose(each.entropy, -(some * np.log2(some)).sum(), **CLOSE)
        order = sorted(range(len(share)), key=lambda token: (-logits[token], token))[:n]
        assert [other.id for other in each.top] == order
        np.testing.assert_allclose([other.logprob for other in each.top], np.log(share[order]), **CLOSE)
        assert each.bytes == llm.vocab.piece(each.id, special=True)
        assert [other.bytes for other in each.top] == [llm.vocab.piece(other, special=True) for other in order]


@pytest.mark.parametrize("arch", [*ARCHS, "smollm2"])
def test_they_are_the_softmax_of_the_raw_logits(load: Load, arch: str) -> None:
    llm = load(arch, n_ctx=64 if arch == "gpt2" else 512)
    reply = llm.complete(TEXT, max_tokens=12, temperature=1.5, repeat_penalty=1.3, top_k=5, logprobs=4)
    assert reply.logprobs is not None
    check(llm, llm.tokenize(TEXT), reply.tokens, reply.logprobs, 4)


@pytest.mark.parametrize("arch", ["llama", "gemma3", "mamba", "lfm2", "jamba", "smollm2"])
def test_asking_for_them_changes_nothing_of_the_answer(load: Load, arch: str) -> None:
    llm = load(arch)
    options = {"max_tokens": 20, "temperature": 1.2, "seed": 3}
    plain = llm.complete(TEXT, **options)
    last = llm._engine._live.sequence.logits()
    told = llm.complete(TEXT, logprobs=20, **options)
    assert (told.tokens, told.text, told.finish_reason) == (plain.tokens, plain.text, plain.finish_reason)
    assert np.array_equal(last, llm._engine._live.sequence.logits())
    assert plain.logprobs is None


def test_with_0_there_are_no_alternatives(load: Load) -> None:
    reply = load("llama").complete(TEXT, max_tokens=3, logprobs=0)
    assert reply.logprobs is not None
    assert [each.top for each in reply.logprobs] == [(), (), ()]


@pytest.mark.parametrize("wrong", [-1, 21, 1.5, True, "5"])
def test_others_than_0_to_20_are_refused(load: Load, wrong: object) -> None:
    with pytest.raises(BadOption, match="logprobs must be"):
        load("llama").complete(TEXT, logprobs=wrong)


def test_several_answers_at_once_tell_as_well(load: Load) -> None:
    llm = load("llama", n_parallel=3)
    for turn in llm.chat().samples("Who?", 3, max_tokens=6, temperature=1.5, logprobs=2):
        assert turn.logprobs is not None
        assert [each.id for each in turn.logprobs] == list(turn.tokens)


def test_an_interrupted_answer_tells_of_what_there_is(load: Load) -> None:
    llm = load("llama", n_ctx=4096)
    job = llm.start(TEXT, max_tokens=4000, logprobs=2, logit_bias={llm.vocab.eos: float("-inf")})
    for event in job:
        if isinstance(event, Delta):
            break
    job.cancel()
    job.wait()
    assert job.reply is not None
    assert job.reply.logprobs is not None
    assert job.reply.finish_reason == "interrupted"
    assert [each.id for each in job.reply.logprobs] == list(job.reply.tokens) != []


def test_a_replayed_reply_tells_as_much_as_was_kept(load: Load, tmp_path) -> None:
    def ask(llm: LLM, n: int | None):
        return llm.complete(TEXT, max_tokens=5, logprobs=n)

    llm = load("llama", cache=tmp_path)
    llm.memory.replies.enabled = True
    plain = ask(llm, None)
    three = ask(llm, 3)
    assert (three.replayed, three.tokens) == (False, plain.tokens)  # nothing was kept that tells
    again = ask(llm, 3)
    assert (again.replayed, again.logprobs) == (True, three.logprobs)
    fewer = ask(llm, 1)
    assert fewer.replayed
    assert fewer.logprobs is not None
    assert three.logprobs is not None
    assert [each.top for each in fewer.logprobs] == [each.top[:1] for each in three.logprobs]
    more = ask(llm, 4)
    assert (more.replayed, [len(each.top) for each in more.logprobs or ()]) == (False, [4] * 5)
    assert ask(llm, None).replayed
    assert ask(llm, None).logprobs is None
    llm.memory.replies.flush()
    llm.close()

    later = load("llama", cache=tmp_path)
    later.memory.replies.enabled = True
    assert ask(later, 4).replayed
    assert ask(later, 4).logprobs == more.logprobs


@pytest.mark.parametrize(
    "damage",
    [
        lambda rows: rows.pop(),
        lambda rows: rows[0].__setitem__(0, "x"),
        lambda rows: rows[0].__setitem__(1, float("nan")),
        lambda rows: rows[0][2].__setitem__(0, 10**6),
        lambda rows: rows[0][2].__setitem__(0, -1),
        lambda rows: rows[0][2].__setitem__(0, "1"),
        lambda rows: rows[0][3].pop(),
        lambda rows: rows.__setitem__(0, None),
    ],
)
def test_what_a_file_tells_is_not_believed(load: Load, damage: Callable[[list], object]) -> None:
    llm = load("llama")
    llm.memory.replies.enabled = True
    first = llm.complete(TEXT, max_tokens=3, logprobs=2)
    ((key, _),) = llm.memory.replies._recent.items()
    record = llm.memory.replies.get(key)
    assert record is not None
    damage(record["logprobs"])
    llm.memory.replies.put(key, record)
    again = llm.complete(TEXT, max_tokens=3, logprobs=2)
    assert (again.replayed, again.logprobs) == (False, first.logprobs)


@pytest.mark.parametrize("arch", ["llama", "mamba", "gemma3"])
def test_score_tells_of_any_tokens(load: Load, arch: str) -> None:
    llm = load(arch)
    tokens = [*llm.tokenize("dogs and cats", add_special=False), llm.vocab.eos, 300]
    check(llm, llm.tokenize(TEXT), tokens, llm.score(TEXT, tokens, 3), 3)
    assert llm.score(TEXT, "") == ()


def test_score_equals_what_the_answer_told(load: Load) -> None:
    llm = load("smollm2")
    reply = llm.complete("Once upon a time", max_tokens=12, temperature=1, logprobs=5)
    assert llm.score("Once upon a time", reply.tokens) == reply.logprobs


def test_score_refuses_what_it_cannot_do(load: Load) -> None:
    llm = load("llama", n_ctx=256)
    with pytest.raises(BadOption, match="token ids are 0 to"):
        llm.score(TEXT, [10**6])
    with pytest.raises(PromptTooLong):
        llm.score(TEXT, [300] * 256)


def test_a_turn_that_was_not_asked_finds_it_out(load: Load, tmp_path) -> None:
    llm = load("smollm2")
    chat = llm.chat()
    chat.keep(tmp_path)
    told = chat.ask("Say hello.", max_tokens=12, logprobs=5)
    plain = chat.ask("Say hello.", max_tokens=12, after=None)
    assert plain.with_logprobs().logprobs == told.logprobs
    assert told.with_logprobs(2).logprobs == plain.with_logprobs(2).logprobs
    saved = llm.chat()
    saved.keep(tmp_path)
    saved.resume()
    assert saved.all_turns[0].logprobs is None  # they are not saved
    assert saved.all_turns[0].with_logprobs().logprobs == told.logprobs


def test_without_a_conversation_it_says_what_to_do(load: Load) -> None:
    llm = load("llama")
    with pytest.raises(BadOption, match="ask with logprobs=5"):
        llm.complete(TEXT, max_tokens=2).token_view()
    assert "2 tokens" in str(llm.complete(TEXT, max_tokens=2, logprobs=1).token_view())
