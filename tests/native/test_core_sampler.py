"""Sampler: against the logits themselves."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from native.core import make_context, make_sampler, make_sequence
from numpy.typing import NDArray

from ipyllama import _core
from ipyllama.errors import BadArgument, DecodeError


@pytest.fixture
def model(tiny) -> _core.Model:
    return _core.Model.load(str(tiny("llama")))


@pytest.fixture
def sequence(model: _core.Model) -> _core.Sequence:
    sequence = _core.Sequence(make_context(model))
    sequence.decode([1, *range(262, 300)])
    return sequence


def probabilities(sequence: _core.Sequence, temperature: float = 1.0) -> NDArray[np.float64]:
    logits = sequence.logits().astype(np.float64) / temperature
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def draws(sampler: _core.Sampler, sequence: _core.Sequence, n: int = 4000) -> NDArray[np.int64]:
    return np.array([sampler.sample(sequence) for _ in range(n)])


def test_greedy_is_the_likeliest(model: _core.Model, sequence: _core.Sequence) -> None:
    likeliest = int(sequence.logits().argmax())
    for options in ({"temperature": 0.0}, {"temperature": 1e-38}, {"temperature": 1e-12}, {"top_k": 1}, {"min_p": 1.0}):
        assert set(draws(make_sampler(model, **options), sequence, 20)) == {likeliest}
    assert set(draws(make_sampler(model, top_p=0.0), sequence, 20)) == {likeliest}


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_probabilities(model: _core.Model, sequence: _core.Sequence, temperature: float) -> None:
    expected = probabilities(sequence, temperature)
    n = 4000
    counts = np.bincount(draws(make_sampler(model, temperature=temperature, seed=3), sequence, n), minlength=356)
    error = np.abs(counts - n * expected) / np.sqrt(n * expected * (1 - expected) + 1)
    assert error.max() < 5  # standard deviations
    assert expected.max() < 0.9  # else this would show nothing


def test_filters_keep_what_they_promise(model: _core.Model, sequence: _core.Sequence) -> None:
    expected = probabilities(sequence)
    order = np.argsort(-expected)

    def seen(**options: float) -> set[int]:
        return set(draws(make_sampler(model, temperature=3.0, seed=1, **options), sequence))

    assert seen(top_k=5) == set(order[:5])
    nucleus = int(np.searchsorted(np.cumsum(expected[order]), 0.8)) + 1
    assert seen(top_p=0.8) == set(order[:nucleus])
    assert seen(min_p=0.2) == set(np.flatnonzero(expected >= 0.2 * expected.max()))
    assert len(seen()) > 50


def test_the_same_seed_gives_the_same_tokens(model: _core.Model, sequence: _core.Sequence) -> None:
    one = draws(make_sampler(model, seed=7), sequence, 50)
    assert np.array_equal(one, draws(make_sampler(model, seed=7), sequence, 50))
    assert not np.array_equal(one, draws(make_sampler(model, seed=8), sequence, 50))
    sampler = make_sampler(model, seed=7)
    draws(sampler, sequence, 10)
    sampler.reset()
    assert np.array_equal(one, draws(sampler, sequence, 50))


def test_the_repeat_penalty_divides_the_logits_of_recent_tokens(model: _core.Model, sequence: _core.Sequence) -> None:
    logits = sequence.logits()
    order = np.argsort(-logits)
    first, second = int(order[0]), int(order[1])
    assert logits[second] > 0
    enough = float(logits[first] / logits[second]) * 1.01
    penalised = make_sampler(model, temperature=0.0, repeat=enough, last_n=2)
    assert penalised.sample(sequence) == first  # nothing was seen yet, now it was
    assert penalised.sample(sequence) == second
    penalised.reset()
    assert penalised.sample(sequence) == first
    penalised.reset()
    penalised.accept([first])
    assert penalised.sample(sequence) == second
    penalised.reset()
    penalised.accept([first, 5, 6])  # out of the last two
    assert penalised.sample(sequence) == first
    off = make_sampler(model, temperature=0.0, repeat=enough, last_n=0)
    off.accept([first])
    assert off.sample(sequence) == first


def test_logits_that_are_no_numbers_are_an_error(tiny, tmp_path: Path) -> None:
    for value in (np.nan, np.inf):
        broken = tmp_path / f"{value}.gguf"
        broken.write_bytes(tiny("llama").read_bytes())
        reader = gguf.GGUFReader(broken, "r+")
        output = next(tensor for tensor in reader.tensors if tensor.name == "output.weight")
        output.data[7, :] = value
        reader.data.flush()
        del reader, output
        sequence = make_sequence(broken)
        sequence.decode([1, 300, 301])
        assert not np.isfinite(sequence.logits()).all()
        for options in ({"temperature": 0.0}, {"top_k": 40}, {"top_p": 0.5}, {"min_p": 0.1}, {}):
            sampler = make_sampler(_core.Model.load(str(broken)), **options)
            with pytest.raises(DecodeError, match="not numbers"):
                sampler.sample(sequence)


def test_nothing_to_sample_from(model: _core.Model, sequence: _core.Sequence, smollm2: Path) -> None:
    sampler = make_sampler(model)
    sequence.clear()
    with pytest.raises(BadArgument, match="no logits"):
        sampler.sample(sequence)
    other = make_sequence(smollm2, n_ctx=64, n_batch=32)
    other.decode([1, 2])
    with pytest.raises(BadArgument, match="another vocabulary"):
        sampler.sample(other)
    for token in (-1, 356):
        with pytest.raises(BadArgument, match="0 to 355"):
            sampler.accept([token])


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("temperature", [-0.1, float("nan"), float("inf")]),
        ("top_k", [-1]),
        ("top_p", [-0.1, 1.1, float("nan")]),
        ("min_p", [-0.1, 1.1, float("nan")]),
        ("repeat", [0.0, -1.0, 1e-30, 1e30, float("nan"), float("inf")]),
        ("last_n", [-1, 2**31 - 1]),
    ],
)
def test_options_out_of_range(model: _core.Model, name: str, values: list[float]) -> None:
    for value in values:
        with pytest.raises(BadArgument, match=name):
            make_sampler(model, **{name: value})


def test_extremes_within_range(model: _core.Model, sequence: _core.Sequence) -> None:
    for options in (
        {"temperature": 3e38},
        {"temperature": 1e-9},
        {"temperature": 1e-45},
        {"top_k": 2**31 - 1},
        {"repeat": 0.01},
        {"repeat": 100.0},
        {"seed": 2**32 - 1},
        {"seed": 0},
        {"top_p": 1e-45, "min_p": 1e-45},
    ):
        sampler = make_sampler(model, **options)
        sampler.accept(list(range(300)))
        assert all(0 <= token < 356 for token in draws(sampler, sequence, 5))
