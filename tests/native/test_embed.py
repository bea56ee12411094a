"""LLM.embed and LLM.rerank: against a forward pass in NumPy; limits, order, progress, interrupts."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from native.bert import Bert, cosine
from native.core import make_context
from native.jobs import Gate, endless
from numpy.typing import NDArray
from tiny import build

import ipyllama
from ipyllama.errors import (
    BadArgument,
    BadOption,
    ClosedError,
    Interrupted,
    TextTooLong,
    TooLongWarning,
    WrongModel,
)
from ipyllama.llm import LLM

Load = Callable[..., LLM]
WORDS = ("the", "cat", "dog", "paris", "capital", "france", "of", "is", "a", "x1")
CLS, SEP = 2, 3


def random_texts(n: int, longest: int, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(1, longest))) for _ in range(n)]


def unit(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    return vector / np.linalg.norm(vector)


@pytest.fixture
def bert(load: Load) -> LLM:
    return load("bert")


@pytest.fixture
def oracle(tiny) -> Bert:
    return Bert(tiny("bert"))


# -- vectors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pooling", [None, "mean", "cls", "last"])
def test_many_texts_in_order(bert: LLM, oracle: Bert, pooling: str | None) -> None:
    texts = random_texts(150, 40)
    vectors = bert.embed(texts, pooling=pooling)
    assert (vectors.shape, vectors.dtype) == ((150, 64), np.float32)
    for text, vector in zip(texts, vectors, strict=True):
        hidden = oracle([CLS, *bert.tokenize(text, add_special=False), SEP])
        wanted = {"cls": hidden[0], "last": hidden[-1]}.get(pooling, hidden.mean(axis=0))
        assert cosine(vector, wanted) > 0.9999
        assert abs(np.linalg.norm(vector) - 1) < 1e-5
    assert np.abs(vectors - bert.embed(texts[::-1], pooling=pooling)[::-1]).max() < 1e-3


def test_vectors_as_they_are(bert: LLM, oracle: Bert) -> None:
    (vector,) = bert.embed(["the cat"], normalize=False)
    assert np.abs(vector - oracle([CLS, *bert.tokenize("the cat", add_special=False), SEP]).mean(axis=0)).max() < 5e-3


def test_no_text_and_nothing_in_a_text(bert: LLM, oracle: Bert, load: Load) -> None:
    assert bert.embed([]).shape == (0, 64)
    assert bert.embed(iter(())).dtype == np.float32
    for vector in bert.embed(["", "  \n"]):
        assert cosine(vector, oracle([CLS, SEP]).mean(axis=0)) > 0.9999
    vectors = load("smollm2").embed(["", "word", ""])  # adds no token of its own
    assert [float(round(np.linalg.norm(vector), 5)) for vector in vectors] == [0, 1, 0]


def test_a_generative_model_takes_the_mean(load: Load) -> None:
    llm = load("llama")
    text = "a cat and a dog"
    tokens = llm._model.tokenize(text)
    rows = make_context(llm._model, embeddings=True, pooling="none").embed([tokens])[0]
    assert cosine(llm.embed([text])[0], rows.mean(axis=0)) > 0.9999
    assert cosine(llm.embed([text], pooling="last")[0], rows[-1]) > 0.9999
    assert llm.text_limit == 512


def test_answers_before_and_after_are_the_same(load: Load) -> None:
    llm = load("smollm2")
    before = llm.complete("The capital of France is", max_tokens=8)
    vectors = llm.embed(["A cat sits on the mat.", "A kitten sits on the rug.", "Interest rates rose in March."])
    after = llm.complete("The capital of France is", max_tokens=8)
    assert after.tokens == before.tokens
    assert after.usage.reused > 0
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2]


# -- texts over the limit -----------------------------------------------------------------------------------


def test_a_long_text_is_split_and_a_warning_says_so(load: Load, oracle: Bert) -> None:
    llm = load("bert", n_ctx=16)
    texts = ["the cat", "a dog of paris is in france " * 2 + "cat", "dog", "the capital of france is paris " * 9]
    with pytest.warns(TooLongWarning) as caught:
        vectors = llm.embed(texts, normalize=False)
    contents = [llm.tokenize(text, add_special=False) for text in texts]
    n_long, n_longer = len(contents[1]) + 2, len(contents[3]) + 2
    assert str(caught[0].message).startswith(
        f"2 of 4 texts are over the limit of 16 tokens (texts[1] with {n_long}, texts[3] with {n_longer}): split"
    )
    assert caught[0].filename == __file__
    for content, vector in zip(contents, vectors, strict=True):
        pieces = [[CLS, *content[start : start + 14], SEP] for start in range(0, len(content), 14)]
        hidden = np.concatenate([oracle(piece) for piece in pieces])
        # the mean over all tokens: pieces weigh as much as they are long
        assert np.abs(vector - hidden.mean(axis=0)).max() < 5e-3
    with pytest.warns(TooLongWarning):
        assert np.allclose(np.linalg.norm(llm.embed(texts), axis=1), 1)


def test_a_long_text_is_truncated(load: Load, oracle: Bert) -> None:
    llm = load("bert", n_ctx=16)
    long = "a dog of paris is in france " * 3
    with pytest.warns(TooLongWarning, match=r"1 of 1 texts is over .* \(texts\[0\] with \d+\): the rest is left out"):
        (vector,) = llm.embed([long], normalize=False, too_long="truncate")
    wanted = oracle([CLS, *llm.tokenize(long, add_special=False)[:14], SEP])
    assert np.abs(vector - wanted.mean(axis=0)).max() < 5e-3


def test_a_long_text_is_refused_before_anything_is_evaluated(bert: LLM) -> None:
    long = " ".join(WORDS * 60)
    told: list[int] = []
    with pytest.raises(TextTooLong, match=r"7 of 8 texts are over .* and 2 more\): shorten them"):
        bert.embed([*[long] * 7, "a"], too_long="error", progress=lambda done, total, label: told.append(done))
    assert told == []


def test_the_limit_is_that_of_context_and_training(load: Load) -> None:
    """One token over it is split, none over it is not."""
    assert [load("bert", n_ctx=n).text_limit for n in (100, 512, 5000)] == [100, 512, 512]
    assert load("bert", n_ctx=5000).n_ctx == 512
    assert load("llama", n_ctx=256).text_limit == 256
    llm = load("bert", n_ctx=100)
    fitting = " ".join(["cat"] * 98)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        llm.embed([fitting])
    with pytest.warns(TooLongWarning, match="limit of 100 tokens .*with 101"):
        llm.embed([f"{fitting} cat"])


# -- ranking ------------------------------------------------------------------------------------------------


def test_scores_of_pairs(load: Load, tiny) -> None:
    llm, oracle = load("bert-rank"), Bert(tiny("bert-rank"))
    texts = random_texts(40, 30)
    scores = llm.rerank("the capital of france", texts)
    query = llm.tokenize("the capital of france", add_special=False)
    assert (scores.shape, scores.dtype) == ((40,), np.float32)
    for text, score in zip(texts, scores, strict=True):
        wanted = oracle.score([CLS, *query, SEP, *llm.tokenize(text, add_special=False), SEP])
        assert abs(score - wanted[0]) < 5e-3
    assert scores.std() > 0.01
    assert llm.rerank("x", []).shape == (0,)


def test_a_text_that_does_not_fit_beside_the_query(load: Load, tiny) -> None:
    llm, oracle = load("bert-rank"), Bert(tiny("bert-rank"))
    long = " ".join(WORDS * 60)
    with pytest.warns(TooLongWarning, match="1 of 2 texts is over .*left out"):
        scores = llm.rerank("cat", ["dog", long])
    query, content = (llm.tokenize(text, add_special=False) for text in ("cat", long))
    wanted = oracle.score([*[CLS, *query, SEP, *content][:511], SEP])
    assert abs(scores[1] - wanted[0]) < 5e-3
    with pytest.raises(TextTooLong, match="1 of 2 texts is over"):
        llm.rerank("cat", ["dog", long], too_long="error")
    with pytest.raises(TextTooLong, match="leaves no room"):
        llm.rerank(long, ["dog"])


@pytest.mark.parametrize(
    ("more", "pair"),
    [
        (lambda w: w.add_add_eos_token(True), lambda q, d: [CLS, *q, SEP, SEP, *d, SEP]),
        (
            lambda w: w.add_chat_template([{"name": "rerank", "template": "{query} is {document} {query}"}]),
            lambda q, d: [*q, 0, *d, *q],
        ),
    ],
    ids=["eos", "template"],
)
def test_pairs_as_other_models_want_them(load: Load, tmp_path: Path, more, pair) -> None:
    """EOS and SEP between the texts (RoBERTa and its kin), or the template that the file brings."""
    path = tmp_path / "rank.gguf"
    build("bert-rank", path, more=more)
    llm, oracle = load(path), Bert(path)
    query, text, between = (llm._model.tokenize(text, add_special=False) for text in ("cat {document}", "dog", "is"))
    tokens = [token for part in pair(query, text) for token in (between if part == 0 else [part])]
    assert abs(llm.rerank("cat {document}", ["dog"])[0] - oracle.score(tokens)[0]) < 5e-3


def test_each_model_does_what_it_can(load: Load, bert: LLM) -> None:
    for call in (
        lambda: bert.complete("a"),
        bert.chat,
        lambda: next(iter(bert.stream("a"))),
        lambda: bert.start("a"),
    ):
        with pytest.raises(WrongModel, match=r"bert encodes text and cannot generate: embed\(texts\)"):
            call()
    for llm in (bert, load("llama")):
        with pytest.raises(WrongModel, match="no ranking model"):
            llm.rerank("a", ["b"])
    rank = load("bert-rank")
    with pytest.raises(WrongModel, match=r"rerank\(query, texts\) gives"):
        rank.complete("a")
    with pytest.raises(WrongModel, match=r"ranks texts: use rerank\(query, texts\)"):
        rank.embed(["a"])
    assert rank.embed(["a"], pooling="mean").shape == (1, 64)
    assert (bert.can_generate, bert.n_live, bert.memory.ram.nbytes, bert.n_ctx) == (False, 0, 0, 512)
    assert "texts of up to 512 tokens" in repr(bert)


@pytest.mark.parametrize(
    ("texts", "options", "words"),
    [
        ("the cat", {}, "several texts"),
        (b"the cat", {}, "several texts"),
        (7, {}, "several texts"),
        (["a", 7], {}, r"texts\[1\] must be a text: got int"),
        ([None], {}, "got NoneType"),
        (["a"], {"pooling": "none"}, "pooling must be one of mean, cls, last"),
        (["a"], {"pooling": 1}, "pooling must be"),
        (["a"], {"too_long": "drop"}, "too_long must be one of split, truncate, error"),
    ],
)
def test_wrong_arguments_are_named(bert: LLM, texts: object, options: dict[str, object], words: str) -> None:
    with pytest.raises(BadOption, match=words):
        bert.embed(texts, **options)
    with pytest.raises(BadArgument, match="half of a pair"):
        bert.embed(["half \ud83d"])


# -- the worker ---------------------------------------------------------------------------------------------


def test_progress_is_told_and_ends_at_the_total(bert: LLM) -> None:
    told: list[tuple[int, int | None, str]] = []
    bert.embed(random_texts(100, 60), progress=lambda *event: told.append(event))
    assert len(told) > 3
    assert [done for done, *_ in told] == sorted(done for done, *_ in told)
    assert told[-1][0] == told[-1][1]
    assert {label for *_, label in told} == {"embedding"}


def test_a_bar_shows_after_a_second(bert: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    bert.embed(["the cat"])
    assert capsys.readouterr().err == ""
    began = time.monotonic()
    texts = random_texts(400, 100)
    while time.monotonic() - began < 1.2:
        texts += texts
        began = time.monotonic()
        bert.embed(texts)
    assert "embedding" in capsys.readouterr().err


def test_ctrl_c_ends_it_at_once(llm: LLM) -> None:
    llm.embed(["warm up"])
    texts = ["the cat and the dog " * 10] * 50_000
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(Interrupted) as caught:
        llm.embed(texts)
    timer.join()
    assert caught.value.reply is None
    assert llm.n_busy == 0
    assert llm.embed(["and it works again"]).shape == (1, 64)
    assert llm.complete("hello", max_tokens=3).usage.generated == 3


def test_ctrl_c_within_a_step(load: Load) -> None:
    llm = load("smollm2")
    text = ["word " * 500]
    began = time.monotonic()
    llm.embed(text)
    whole = time.monotonic() - began
    timer = threading.Timer(whole / 10, os.kill, (os.getpid(), signal.SIGINT))
    began = time.monotonic()
    timer.start()
    with pytest.raises(Interrupted):
        llm.embed(text)
    assert time.monotonic() - began < whole * 0.7


def test_an_error_in_the_callback_ends_it(bert: LLM) -> None:
    def fail(done: int, total: int | None, label: str) -> None:
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        bert.embed(random_texts(2000, 60), progress=fail)
    while bert.n_busy:  # until the step that was running has ended
        time.sleep(0.001)
    assert bert.embed(["a"]).shape == (1, 64)


def test_it_waits_for_its_turn_and_can_be_stopped_there(llm: LLM, gate: Gate) -> None:
    found: list[NDArray[np.float32]] = []
    other = threading.Thread(target=lambda: found.append(llm.embed(["a"])))
    other.start()
    while llm.n_busy < 2:
        time.sleep(0.001)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(Interrupted):
        llm.embed(["b"])
    assert llm.n_busy == 2
    assert not found
    gate.open.set()
    other.join(60)
    assert found[0].shape == (1, 64)


def test_closing_the_model_ends_it(load: Load) -> None:
    for name in ("bert", "llama"):
        llm = load(name)
        llm.embed(["warm up"])
        threading.Timer(0.2, llm.close).start()
        with pytest.raises(ClosedError, match="load it again"):
            llm.embed(["the cat and the dog " * 10] * 50_000)
        with pytest.raises(ClosedError, match="load it again"):
            llm.embed(["a"])


def test_several_threads_and_an_answer_at_once(llm: LLM) -> None:
    texts = random_texts(30, 20)
    expected = llm.embed(texts)
    job = endless(llm)
    found: list[NDArray[np.float32]] = []
    threads = [threading.Thread(target=lambda: found.append(llm.embed(texts))) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    job.cancel()
    for thread in threads:
        thread.join(60)
    assert len(found) == 4
    for vectors in found:
        assert np.abs(vectors - expected).max() < 1e-6


def test_loading_an_encoder_twice_is_the_same_model(load: Load, tiny) -> None:
    assert load("bert") is load("bert")
    assert ipyllama.load(tiny("bert")) is load("bert")
