"""The stages of sampling: against llama.cpp's chain as an answer uses it, and the definitions in NumPy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from ipyllama.errors import BadOption, PromptTooLong, WrongModel
from ipyllama.lens import NextToken, Stage
from ipyllama.llm import LLM

Load = Callable[..., LLM]
TEXT = "The capital of France is"
LOOSE = {"temperature": 1.1, "top_k": 30, "top_p": 0.9, "min_p": 0.02, "repeat_penalty": 1.3}
ARCHS = ("llama", "llama-bytes", "gemma3", "mamba", "lfm2", "jamba", "smollm2")


def softmax(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    weights = np.exp(logits.astype(np.float64) - logits.max())
    return weights / weights.sum()


def by_hand(looked: NextToken) -> dict[str, NDArray[np.float64]]:
    """The logits after each stage of LOOSE, by id; minus infinity where a token is gone."""
    logits = looked.logits.astype(np.float64)
    found = {"model": logits.copy()}
    seen = list(set(looked.ledger.tokens[-64:]))
    logits[seen] = np.where(logits[seen] > 0, logits[seen] / 1.3, logits[seen] * 1.3)
    found["penalties"] = logits.copy()
    order = np.argsort(-logits, kind="stable")
    logits[order[30:]] = -np.inf
    found["top_k"] = logits.copy()
    share = softmax(logits)
    order = np.argsort(-share, kind="stable")
    n = int(np.searchsorted(np.cumsum(share[order]), 0.9)) + 1
    logits[order[n:]] = -np.inf
    found["top_p"] = logits.copy()
    logits[softmax(logits) < 0.02 * softmax(logits).max()] = -np.inf
    found["min_p"] = logits.copy()
    found["temperature"] = logits / 1.1
    return found


@pytest.mark.parametrize("arch", ARCHS)
def test_stages_are_what_their_definitions_say(load: Load, arch: str) -> None:
    looked = load(arch).next_token(TEXT, **LOOSE)
    expected = by_hand(looked)
    assert [stage.name for stage in looked.stages] == list(expected)
    before: Stage | None = None
    for stage, logits in zip(looked.stages, expected.values(), strict=True):
        assert set(stage.tokens.tolist()) == set(np.flatnonzero(logits > -np.inf).tolist())
        np.testing.assert_allclose(stage.probabilities, softmax(logits)[stage.tokens], rtol=1e-3, atol=1e-6)
        assert (np.diff(stage.probabilities) <= 0).all()
        if before is not None:
            gone = set(before.tokens.tolist()) - set(stage.tokens.tolist())
            assert stage.n_removed == len(gone)
            there = sum(before.probability(token) or 0 for token in gone)
            assert stage.removed == pytest.approx(there, abs=1e-5)
            assert all(stage.probability(token) is None for token in gone)
        before = stage


@pytest.mark.parametrize("arch", ["llama", "mamba", "smollm2"])
def test_the_model_s_own_are_the_raw_logits(load: Load, arch: str) -> None:
    llm = load(arch)
    looked = llm.next_token(TEXT)
    llm.complete(TEXT, max_tokens=1)
    assert np.array_equal(looked.logits, llm.logits(TEXT))
    assert not looked.logits.flags.writeable
    (first,) = llm.complete(TEXT, max_tokens=1, logprobs=1).logprobs
    assert looked.stages[0].entropy == pytest.approx(first.entropy, abs=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {},
        LOOSE,
        {"temperature": 0},
        {"temperature": 1.4, "seed": 5, "top_k": 0, "top_p": 1, "min_p": 0},
        {"temperature": 1.4, "xtc_probability": 0.9, "xtc_threshold": 0.02},
        {"mirostat": 1, "temperature": 1},
        {"mirostat": 2, "temperature": 1},
        {"temperature": 1, "adaptive_target": 0.2},
        {"temperature": 1, "grammar": "root ::= [a-z ]+"},
        {"temperature": 1.2, "dry_multiplier": 0.8, "typical_p": 0.7, "top_n_sigma": 1.0, "presence_penalty": 0.4},
    ],
    ids=str,
)
@pytest.mark.parametrize("arch", ["llama", "smollm2"])
def test_draws_are_those_of_an_answer(load: Load, arch: str, options: dict[str, object]) -> None:
    llm = load(arch)
    tokens = llm.complete(TEXT, max_tokens=6, **options).tokens
    assert llm.next_token(TEXT, **options).draw() == tokens[0]
    lab = llm.sampling_lab(TEXT, **options)
    assert lab.draw(6) == tokens == lab.drawn
    assert lab.text == llm.detokenize(list(tokens), special=True)
    assert lab.next.text.endswith(lab.text)


def test_other_options_evaluate_nothing(load: Load) -> None:
    llm = load("llama")
    looked = llm.next_token(TEXT, temperature=1)
    llm.complete("something else", max_tokens=1)
    live = llm._engine._live._tokens
    other = looked.with_options(top_k=2)
    assert len(other.candidates.tokens) == 2
    assert (other.options.temperature, looked.options.top_k) == (1, 40)
    assert llm._engine._live._tokens == live


def test_a_place_in_an_answer(load: Load) -> None:
    llm = load("smollm2")
    turn = llm.chat().ask("Say hello.", max_tokens=8, temperature=0, logprobs=3)
    for at in (0, 3, 8 if len(turn.tokens) == 8 else len(turn.tokens) - 1):
        looked = llm.next_token(turn, at=at, temperature=0)
        if at < len(turn.tokens):
            assert looked.draw() == turn.tokens[at]
            assert looked.stages[0].tokens[:3].tolist() == [each.id for each in turn.logprobs[at].top]
    with pytest.raises(BadOption, match="there is no place 99"):
        llm.next_token(turn, at=99)
    with pytest.raises(BadOption, match="at= tells the place in an answer"):
        llm.next_token("text", at=1)


def test_a_lab_goes_back_and_on(load: Load) -> None:
    llm = load("llama")
    lab = llm.sampling_lab(TEXT, temperature=1.3)
    first = lab.draw(4)
    assert lab.undo()
    assert lab.undo()
    assert lab.drawn == first[:2]
    assert lab.draw(2) == first[2:]  # the same again
    lab.set(top_k=1)
    (best,) = lab.draw()
    assert best == lab.drawn[-1]
    assert lab.undo()
    lab.set(temperature=0.5)
    assert lab.undo()
    assert (lab.options.temperature, lab.options.top_k, lab.drawn) == (0.5, 1, first[:3])
    lab.append(300)
    assert lab.drawn == (*first[:3], 300)
    while lab.undo():
        pass
    assert lab.drawn == ()
    lab.set(temperature=1.3, top_k=40)
    assert lab.draw(4) == first


def test_a_grammar_goes_on_after_a_change(load: Load) -> None:
    llm = load("smollm2")
    lab = llm.sampling_lab("One digit, then a letter: ", grammar='root ::= [0-9] [a-c] "."', temperature=1)
    lab.draw()
    assert lab.text.isdecimal()
    lab.set(top_k=5)
    lab.draw(2)
    assert lab.text[1] in "abc"
    assert lab.text[2:] == "."


def test_after_its_end_nothing_is_drawn(load: Load) -> None:
    llm = load("llama")
    lab = llm.sampling_lab(TEXT, logit_bias={llm.vocab.eos: 100.0})
    assert lab.draw(5) == (llm.vocab.eos,)
    assert lab.ended
    with pytest.raises(BadOption, match="undo takes its last token back"):
        lab.draw()
    lab.undo()
    assert not lab.ended


def test_what_cannot_be_is_said(load: Load) -> None:
    llm = load("llama", n_ctx=256)
    with pytest.raises(BadOption, match="top_p must be"):
        llm.next_token(TEXT, top_p=3)
    with pytest.raises(PromptTooLong):
        llm.next_token("word " * 300)
    lab = llm.sampling_lab(TEXT)
    with pytest.raises(BadOption, match="there is no token"):
        lab.append(10**6)
    assert lab.drawn == ()
    with pytest.raises(WrongModel):
        load("bert").next_token(TEXT)


def test_it_tells_the_same_in_text_and_html(load: Load) -> None:
    bundle = load("smollm2").next_token(TEXT, **LOOSE)._repr_mimebundle_()
    for part in (" Paris", "top-k 30", "min-p 0.02", "repeat 1.3", "temperature 1.1", " left", "gone"):
        assert part in bundle["text/plain"]
        assert part in bundle["text/html"]
