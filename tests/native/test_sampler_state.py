"""Sampler: seeds, state, copies, who keeps whom alive; and log-probabilities."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from native.core import make_context, make_sequence

from ipyllama import _core
from ipyllama.errors import BadArgument, ClosedError
from ipyllama.sampling import SamplingOptions, make_sampler

make = _core.Sampler
N = 356
Model = _core.Model


@pytest.fixture(scope="module")
def model(tiny: Callable[[str], Path]) -> Model:
    return Model.load(str(tiny("llama")))


@pytest.fixture
def sequence(model: Model) -> _core.Sequence:
    sequence = _core.Sequence(make_context(model))
    sequence.decode([1, *range(262, 300)])
    return sequence


def chosen(sampler: _core.Sampler, n: int = 40) -> list[int | None]:
    """What it chooses of n flat distributions."""
    logits = (np.random.default_rng(0).standard_normal((n, 50))).astype(np.float32)
    return [sampler.apply(row).selected for row in logits]


def choosers(model: Model, seed: int) -> list[_core.Sampler]:
    return [
        make.dist(seed),
        make.mirostat_v2(seed=seed),
        make.adaptive_p(0.05, seed=seed),
        make.chain([make.xtc(0.5, 0.02, seed=seed), make.greedy()]),
    ]


def test_the_same_seed_draws_the_same_and_reset_begins_again(model: Model) -> None:
    for one, same, other in zip(choosers(model, 7), choosers(model, 7), choosers(model, 8), strict=True):
        first = chosen(one)
        assert first == chosen(same) != chosen(other)
        assert chosen(one) != first
        one.reset()
        assert chosen(one) == first


def test_a_clone_goes_on_alike(model: Model) -> None:
    """Upstream's copy of adaptive-p begins its draws again: ours does not."""
    for sampler in choosers(model, 3):
        chosen(sampler, 7)
        clone, chain = sampler.clone(), make.chain([sampler])
        rest = chosen(sampler)
        assert chosen(clone) == rest
        assert chosen(chain) == rest
        clone.reset(), sampler.reset()
        assert chosen(clone) == chosen(sampler)


def test_a_clone_has_its_own_history(model: Model) -> None:
    logits = np.ones(N, np.float32)
    sampler = make.penalties(model, presence=1)
    sampler.accept([5])
    clone = sampler.clone()
    clone.accept([6])
    assert [int((copy.apply(logits).logits < 1).sum()) for copy in (sampler, clone)] == [1, 2]
    clone.reset()
    assert (clone.apply(logits).logits == 1).all()
    assert (sampler.apply(logits).logits < 1).sum() == 1


def test_a_choice_without_its_probabilities_is_no_trap(model: Model) -> None:
    """A copy of adaptive-p between choosing and accepting would make upstream read outside of its memory."""
    sampler = make.adaptive_p(0.5)
    token = sampler.apply(np.zeros(N, np.float32)).selected
    for copy in (sampler.clone(), make.chain([sampler]), sampler):
        copy.accept([token])
        assert copy.apply(np.zeros(N, np.float32)).selected is not None


def test_a_random_seed_is_told_and_can_be_used_again() -> None:
    samplers = [make.dist(2**32 - 1) for _ in range(3)]
    assert len({sampler.seed for sampler in samplers}) == 3
    assert chosen(make.dist(samplers[0].seed)) == chosen(samplers[0])
    assert make.chain([make.xtc(0.5, seed=3), make.temp(1), make.dist(4)]).seed == 4
    assert make.chain([make.xtc(0.5, seed=3), make.greedy()]).seed == 3
    assert make.greedy().seed is None


def test_names(model: Model) -> None:
    inner = make.chain([make.top_k(3), make.temp(0.5)])
    chain = make.chain([make.logit_bias(model, {}), inner, make.dist()])
    assert (chain.name, chain.names) == ("chain", ["logit_bias", "top_k", "temp", "dist"])
    assert (make.top_k(0).name, make.top_k(0).names) == ("top_k", ["top_k"])
    assert all(name in dir(make) for name in chain.names)


def test_only_the_last_chooses(model: Model, sequence: _core.Sequence) -> None:
    for last in (make.greedy(), make.dist(), make.mirostat(model), make.mirostat_v2(), make.adaptive_p(0.5)):
        assert 0 <= make.chain([make.top_k(5), last]).sample(sequence) < N
        with pytest.raises(
            BadArgument, match=f"{last.name} chooses a token: it must be the last of a chain, and top_k"
        ):
            make.chain([last, make.top_k(5)])
    with pytest.raises(BadArgument, match="top_k, only filters: end the chain with greedy, dist, mirostat"):
        make.chain([make.temp(1), make.top_k(5)]).sample(sequence)
    with pytest.raises(BadArgument, match="at least one sampler"):
        make.chain([])


def test_parts_of_a_chain_stay_themselves(model: Model, sequence: _core.Sequence) -> None:
    parts = [make.penalties(model, repeat=2), make.top_k(9), make.dist(1)]
    chain = make.chain(parts)
    first = chain.sample(sequence)
    for part in parts:
        part.close()
        assert part.closed
        with pytest.raises(ClosedError, match="this sampler is closed"):
            part.reset()
    with pytest.raises(ClosedError):
        make.chain(parts)
    chain.reset()
    assert chain.sample(sequence) == first
    again = make.chain([chain])
    with chain:
        pass
    del parts, chain
    gc.collect()
    again.reset()
    assert again.sample(sequence) == first


def test_a_sampler_keeps_its_vocabulary(tiny: Callable[[str], Path]) -> None:
    model = Model.load(str(tiny("llama")), vocab_only=True)
    digits = model.tokenize("7", add_special=False)
    infill = make.chain([make.top_k(9), make.infill(model)])
    samplers = [make.grammar(model, "root ::= [0-9]+"), make.dry(model), infill]
    model.close()
    del model
    gc.collect()
    for sampler in samplers:
        sampler.accept(digits)
        assert len(sampler.apply(np.zeros(N, np.float32))) > 0


def test_another_vocabulary_is_refused(model: Model, smollm2: Path) -> None:
    other = Model.load(str(smollm2), vocab_only=True)
    with pytest.raises(BadArgument, match="logit_bias was made for another vocabulary than the samplers before it"):
        make.chain([make.penalties(model), make.logit_bias(other, {1: 1})])
    for sampler in (make.penalties(model), make.mirostat(model), make.grammar(model, 'root ::= "a"')):
        with pytest.raises(BadArgument, match=f"{sampler.name} was made for another vocabulary"):
            sampler.apply(np.zeros(other.n_vocab, np.float32))


def test_options_make_the_chain_of_llama_cpp(model: Model) -> None:
    def names(**options: object) -> list[str]:
        return make_sampler(model, SamplingOptions(**options)).names

    assert names() == ["top_k", "top_p", "min_p", "temp_ext", "dist"]
    assert names(temperature=0) == ["greedy"]
    assert names(mirostat=1) == ["temp", "mirostat"]
    assert names(mirostat=2, temperature=0) == ["temp", "mirostat_v2"]
    everything = {
        "grammar": 'root ::= "a"',
        "logit_bias": {1: 1},
        "repeat_penalty": 1.1,
        "dry_multiplier": 1,
        "top_n_sigma": 1,
        "typical_p": 0.9,
        "xtc_probability": 0.1,
        "adaptive_target": 0.1,
    }
    filters = ["top_n_sigma", "top_k", "typical", "top_p", "min_p", "xtc", "temp_ext", "adaptive_p"]
    assert names(**everything) == ["grammar", "logit_bias", "penalties", "dry", *filters]
    assert names(grammar='root ::= "a"', grammar_triggers="x", temperature=0) == ["grammar_lazy_patterns", "greedy"]


def test_options_look_back_on_the_prompt(model: Model) -> None:
    options = SamplingOptions(temperature=0, presence_penalty=5, repeat_last_n=2, grammar='root ::= "a"+')
    sampler = make_sampler(model, SamplingOptions(temperature=0, presence_penalty=5, repeat_last_n=2), [300, 301, 302])
    logits = np.zeros(N, np.float32)
    logits[[300, 301, 302]] = [1, 3, 3]
    assert sampler.apply(logits).selected == 300
    make_sampler(model, options, [300, 301])  # the prompt is no part of what the grammar describes


def test_top_logprobs(model: Model, sequence: _core.Sequence) -> None:
    logits = sequence.logits().astype(np.float64)
    expected = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
    tokens, logprobs = _core.top_logprobs(sequence, N)
    assert (tokens.dtype, logprobs.dtype) == (np.int32, np.float32)
    assert tokens.tolist() == np.lexsort((np.arange(N), -logits)).tolist()
    assert np.allclose(logprobs, expected[tokens], rtol=1e-6, atol=1e-6)
    assert np.isclose(np.exp(logprobs.astype(np.float64)).sum(), 1, atol=1e-6)
    assert np.array_equal(_core.top_logprobs(sequence, 3)[0], tokens[:3])
    for k in (0, -1, N + 1):
        with pytest.raises(BadArgument, match="k must be 1 to 356"):
            _core.top_logprobs(sequence, k)
    sequence.clear()
    with pytest.raises(BadArgument, match="no logits"):
        _core.top_logprobs(sequence, 1)


def test_ties_come_by_id(tiny: Callable[[str], Path]) -> None:
    sequence = make_sequence(tiny("llama-bigram"))
    sequence.decode([1])
    tokens, logprobs = _core.top_logprobs(sequence, 10)  # one token is likely, all others are equal
    assert tokens[1:].tolist() == [token for token in range(10) if token != tokens[0]][:9]
    assert len(set(logprobs[1:].tolist())) == 1
