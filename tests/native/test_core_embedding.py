"""Context.embed: pooled embeddings against a forward pass in NumPy, many inputs in a step, and what is refused."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from native.bert import Bert, cosine
from native.core import make_context, run_apart

from ipyllama import _core
from ipyllama.errors import Aborted, BadArgument, ClosedError, DecodeError

DECODERS = ("llama", "gemma3", "mamba", "lfm2", "jamba")
INPUTS = [[2, 141, 142, 3], [2, *(5 + n * n % 130 for n in range(90)), 3], [2, 127, 3], [2, 3]]
LONG = [2, *(5 + n * n % 130 for n in range(510)), 3]


def embedder(model: _core.Model, **options: object) -> _core.Context:
    return make_context(model, **{"embeddings": True, "n_seq_max": 4, **options})


def embed_for_ever(context: _core.Context, inputs: list[list[int]]) -> None:
    while True:
        context.embed(inputs)


@pytest.fixture(scope="module")
def bert(tiny) -> _core.Model:
    return _core.Model.load(str(tiny("bert")))


@pytest.mark.parametrize("pooling", ["mean", "cls", "last", "none", "unspecified"])
def test_a_forward_pass_in_numpy_gives_the_same(tiny, bert: _core.Model, pooling: str) -> None:
    """llama.cpp multiplies in f16 and looks GELU up in an f16 table: 2e-3 was measured, on values around 1."""
    oracle = Bert(tiny("bert"))
    for tokens, found in zip(INPUTS, embedder(bert, pooling=pooling).embed(INPUTS), strict=True):
        hidden = oracle(tokens)
        pooled = {"cls": hidden[0], "last": hidden[-1], "none": hidden}.get(pooling, hidden.mean(axis=0))
        assert (found.dtype, found.shape) == (np.float32, pooled.shape)
        assert np.abs(found - pooled).max() < 5e-3
        assert cosine(found.ravel(), pooled.ravel()) > 0.99999
        assert hidden.std() > 0.5


def test_the_longest_input_there_is(tiny, bert: _core.Model) -> None:
    context = embedder(bert, n_batch=512)
    assert np.abs(context.embed([LONG])[0] - Bert(tiny("bert"))(LONG).mean(axis=0)).max() < 5e-3


def test_scores_are_those_of_the_classifier(tiny) -> None:
    path = tiny("bert-rank")
    model, oracle = _core.Model.load(str(path)), Bert(path)
    assert (model.pooling, model.n_cls_out, model.cls_label(0)) == ("rank", 1, "relevance")
    with pytest.raises(BadArgument, match="outputs 0 to 0"):
        model.cls_label(1)
    for tokens, score in zip(INPUTS, embedder(model).embed(INPUTS), strict=True):
        assert score.shape == (1,)
        assert np.abs(score - oracle.score(tokens)).max() < 5e-3
    assert embedder(model, pooling="mean").embed(INPUTS)[0].shape == (64,)


def test_what_a_model_says_of_its_embeddings(tiny, bert: _core.Model) -> None:
    assert (bert.pooling, bert.n_embd_out, bert.n_cls_out) == ("mean", 64, 0)
    assert (bert.sep, bert.add_sep) == (3, True)
    with pytest.raises(BadArgument, match="no classifier"):
        bert.cls_label(0)
    llama = _core.Model.load(str(tiny("llama")))
    assert (llama.pooling, llama.n_cls_out, llama.add_sep) == ("unspecified", 0, False)


@pytest.mark.parametrize("arch", ["bert", *DECODERS])
@pytest.mark.parametrize("pooling", ["mean", "last", "none"])
def test_company_changes_nothing(tiny, arch: str, pooling: str) -> None:
    """Nearly: flash attention takes another kernel for larger batches (3e-3 was measured, on values around 1)."""
    context = embedder(_core.Model.load(str(tiny(arch))), pooling=pooling)
    together = context.embed(INPUTS)
    backwards = context.embed(INPUTS[::-1])[::-1]
    for tokens, found, other in zip(INPUTS, together, backwards, strict=True):
        alone = context.embed([tokens])[0]
        assert np.abs(found - alone).max() < 0.01
        assert np.abs(found - other).max() < 0.01
        assert np.isfinite(alone).all()
    assert np.abs(together[0] - together[1][: len(together[0])]).max() > 0.05


@pytest.mark.parametrize("arch", DECODERS)
def test_pooling_of_a_generative_model(tiny, arch: str) -> None:
    model = _core.Model.load(str(tiny(arch)))
    rows = embedder(model, pooling="none").embed(INPUTS)
    expected = {"mean": [r.mean(axis=0) for r in rows], "last": [r[-1] for r in rows], "cls": [r[0] for r in rows]}
    for pooling, wanted in expected.items():
        for found, vector in zip(embedder(model, pooling=pooling).embed(INPUTS), wanted, strict=True):
            assert np.abs(found - vector).max() < 1e-5


@pytest.mark.parametrize("arch", DECODERS)
def test_nothing_stays_and_other_sequences_go_on(tiny, arch: str) -> None:
    model = _core.Model.load(str(tiny(arch)))
    logits = []
    for between in (False, True):
        context = embedder(model, pooling="mean")
        sequence = _core.Sequence(context)
        sequence.decode([1, *range(262, 300)])
        if between:
            context.embed(INPUTS[:3])
            assert not sequence.has_logits
            assert context.memory.counts == {0: 39}
        sequence.decode([300])
        logits.append(sequence.logits())
    assert np.abs(logits[0] - logits[1]).max() < 1e-3  # cells differ, so may the last bits
    sequence.close()
    assert context.memory.used == 0


def test_numbers_that_are_taken_are_left_alone(tiny) -> None:
    context = embedder(_core.Model.load(str(tiny("llama"))))
    held = [_core.Sequence(context, number) for number in (0, 2, 3)]
    assert len(context.embed([[1, 300]])) == 1
    with pytest.raises(BadArgument, match="2 inputs in one step: 1 sequences are free"):
        context.embed([[1, 300], [1]])
    held[1].close()
    assert len(context.embed([[1, 300], [1]])) == 2


@pytest.mark.parametrize(("n_ubatch", "n_seq_max"), [(256, 4), (255, 64), (251, 100), (7, 6), (100, 200), (64, 255)])
def test_means_with_any_sizes(tiny, bert: _core.Model, n_ubatch: int, n_seq_max: int) -> None:
    """llama.cpp's own check fails where n_seq_max does not divide n_ubatch."""
    for model in (bert, _core.Model.load(str(tiny("mamba")))):
        if n_ubatch <= n_seq_max:
            with pytest.raises(BadArgument, match="must be over n_seq_max"):
                embedder(model, n_batch=n_ubatch, n_seq_max=n_seq_max, pooling="mean")
            continue
        context = embedder(model, n_batch=n_ubatch, n_seq_max=n_seq_max, pooling="mean")
        assert (context.n_seq_max, 0 < context.n_ubatch <= n_ubatch) == (n_seq_max, True)
        assert np.isfinite(context.embed([[2, 3]])[0]).all()


def test_no_room_in_memory_leaves_none_taken(tiny) -> None:
    context = embedder(_core.Model.load(str(tiny("llama"))), n_ctx=256)
    sequence = _core.Sequence(context)
    sequence.decode([1] * 200)
    with pytest.raises(DecodeError, match="no room"):
        context.embed([[1] * 40, [1] * 40])
    assert (context.memory.used, context.memory.counts) == (200, {0: 200})
    assert len(context.embed([[1] * 40])) == 1


@pytest.mark.parametrize("arch", ["bert", "llama", "mamba"])
def test_the_abort_flag_ends_a_step(tiny, arch: str) -> None:
    context = embedder(_core.Model.load(str(tiny(arch))), n_ctx=4096, n_batch=4096 if arch != "bert" else 512)
    inputs = [LONG] if arch == "bert" else [[1, *(5 + n % 300 for n in range(4000))]]
    context.abort()
    with pytest.raises(Aborted):
        context.embed(inputs)
    context.clear_abort()
    expected = context.embed(inputs)[0]
    for delay in (0.0, 0.001, 0.003):
        context.clear_abort()
        timer = threading.Timer(delay, context.abort)
        timer.start()
        with pytest.raises(Aborted):
            embed_for_ever(context, inputs)
        timer.join()
        assert context.memory.used == 0
    context.clear_abort()
    assert np.abs(context.embed(inputs)[0] - expected).max() < 1e-5


def test_a_closed_context_says_so(bert: _core.Model) -> None:
    context = embedder(bert)
    found = context.embed(INPUTS)[0]
    context.close()
    with pytest.raises(ClosedError):
        context.embed(INPUTS)
    assert np.isfinite(found).all()  # the array is the caller's own


def test_closing_during_a_step_ends_it(tiny) -> None:
    context = embedder(_core.Model.load(str(tiny("llama"))), n_ctx=4096, n_batch=4096)
    threading.Timer(0.01, context.close).start()
    began = time.monotonic()
    with pytest.raises((Aborted, ClosedError)):
        embed_for_ever(context, [[1] * 4000])
    assert time.monotonic() - began < 20


REFUSED = """
    import sys
    from ipyllama import _core
    from ipyllama.errors import LlamaError
    bert, rank, llama = (_core.Model.load(path) for path in sys.argv[1:])

    def context(model, **more):
        options = _core.ContextOptions()
        for name, value in {"n_ctx": 512, "n_batch": 512, "embeddings": True, "n_seq_max": 3, **more}.items():
            setattr(options, name, value)
        return _core.Context(model, options)

    def tried(make, *inputs):
        for value in inputs:
            try:
                print(len(make().embed(value)))
            except (LlamaError, TypeError) as error:
                print(type(error).__name__, str(error).split(chr(10))[0][:60])

    tried(lambda: context(bert), [], [[]], [[2], []], [[2]] * 4, [[-1]], [[10**6]], [[2] * 513], [[2] * 300] * 2)
    tried(lambda: context(bert, n_batch=1024, n_ctx=1024), [[2] * 513])
    tried(lambda: context(bert), None, [2, 3], [["a"]], "text", [[2.5]], [[2**40]], 7)
    tried(lambda: context(bert, embeddings=False), [[2]])
    tried(lambda: context(bert, n_batch=64, n_ubatch=32), [[2] * 33])
    tried(lambda: context(llama, n_batch=64, n_ubatch=32, pooling="last"), [[2] * 33])
    tried(lambda: context(llama, n_batch=64, n_ubatch=32, pooling="none"), [[2] * 64], [[2] * 65])
    tried(lambda: context(llama, embeddings=False), [[2]])
    tried(lambda: context(bert, pooling="rank"), [[2]])
    tried(lambda: context(llama, pooling="rank"), [[2]])
    tried(lambda: context(rank, pooling="rank"), [[2]])
    tried(lambda: context(llama, pooling="mean", n_seq_max=32), [[2]])
"""


def test_what_would_end_the_process_is_refused(tiny) -> None:
    lines = run_apart(REFUSED, tiny("bert"), tiny("bert-rank"), tiny("llama")).splitlines()
    assert lines[:8] == [
        "0",
        "BadArgument input 0 is empty: there are no tokens to evaluate",
        "BadArgument input 1 is empty: there are no tokens to evaluate",
        "BadArgument 4 inputs in one step: 3 sequences are free (n_seq_max)",
        "BadArgument token -1 is not in the vocabulary (0 to 146)",
        "BadArgument token 1000000 is not in the vocabulary (0 to 146)",
        "BadArgument input 0 has 513 tokens: this model takes at most 512",
        "BadArgument 600 tokens in one step: at most 512 (n_ubatch)",
    ]
    assert lines[8] == lines[6]
    assert all(line.startswith("TypeError") for line in lines[9:16])
    assert lines[16:] == [
        "BadArgument this context computes no embeddings: make it with embeddings",
        "BadArgument 33 tokens in one step: at most 32 (n_ubatch)",
        "BadArgument 33 tokens in one step: at most 32 (n_ubatch)",
        "1",
        "BadArgument 65 tokens in one step: at most 64 (n_batch)",
        "BadArgument this context computes no embeddings: make it with embeddings",
        "BadArgument pooling 'rank' needs a model with a classifier: this one has",
        "BadArgument pooling 'rank' needs a model with a classifier: this one has",
        "1",
        "1",
    ]
