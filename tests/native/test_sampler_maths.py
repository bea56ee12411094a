"""What each sampler keeps and changes, against the published definitions written out in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ipyllama import _core
from ipyllama.errors import BadArgument, DecodeError

Logits = NDArray[np.float32]
make = _core.Sampler
N = 356


@pytest.fixture(scope="module")
def model(tiny: Callable[[str], Path]) -> _core.Model:
    return _core.Model.load(str(tiny("llama")), vocab_only=True)


def draw_logits(seed: int, n: int = N, scale: float = 3.0) -> Logits:
    return (np.random.default_rng(seed).standard_normal(n) * scale).astype(np.float32)


def softmax(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    weights = np.exp(logits.astype(np.float64) - logits.max())
    return weights / weights.sum()


def kept(sampler: _core.Sampler, logits: Logits) -> set[int]:
    return set(sampler.apply(logits).tokens.tolist())


def changed(sampler: _core.Sampler, logits: Logits) -> Logits:
    """All logits after a sampler that keeps every token, by id."""
    left = sampler.apply(logits)
    found = np.full(len(logits), -np.inf, np.float32)
    found[left.tokens] = left.logits
    return found


def surprise(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    return -np.log2(probabilities)


seeds = st.integers(0, 1000)
sizes = st.sampled_from([2, 5, N, 3000])


def test_what_comes_out_is_owned_and_typed(model: _core.Model) -> None:
    logits = draw_logits(0)
    left = make.top_k(5).apply(logits)
    assert (left.tokens.dtype, left.logits.dtype, left.probabilities.dtype) == (np.int32, np.float32, np.float32)
    assert len(left) == 5
    assert left.selected is None
    assert np.array_equal(left.logits, logits[left.tokens])
    assert np.allclose(left.probabilities, softmax(left.logits), rtol=1e-6)
    tokens = left.tokens
    del left
    tokens[0] = 7  # writable, and nobody else's
    assert logits.sum() == draw_logits(0).sum()


@given(seed=seeds, size=sizes, k=st.integers(1, 400))
def test_top_k(seed: int, size: int, k: int) -> None:
    logits = draw_logits(seed, size)
    assert kept(make.top_k(k), logits) == set(np.argsort(-logits)[:k].tolist())


@given(seed=seeds, size=sizes, p=st.floats(0, 0.999), min_keep=st.integers(0, 300))
def test_top_p(seed: int, size: int, p: float, min_keep: int) -> None:
    """The shortest run of the most probable tokens whose probabilities add up to p (Holtzman et al. 2019)."""
    logits = draw_logits(seed, size)
    order = np.argsort(-logits)
    sums = np.cumsum(softmax(logits)[order])
    n = max(int(np.searchsorted(sums, p)) + 1, min(min_keep, size))
    found = kept(make.top_p(p, min_keep), logits)
    assert found == set(order[: len(found)].tolist())
    assert len(found) == n or np.abs(sums[min(n, size) - 1] - p) < 1e-5 or np.abs(sums[len(found) - 1] - p) < 1e-5


@given(seed=seeds, size=sizes, p=st.floats(1e-6, 1), min_keep=st.integers(0, 300))
def test_min_p(seed: int, size: int, p: float, min_keep: int) -> None:
    logits = draw_logits(seed, size)
    ratio = softmax(logits) / softmax(logits).max()
    sure = set(np.flatnonzero(ratio >= p * 1.0001).tolist()) | set(np.argsort(-logits)[:min_keep].tolist())
    possible = set(np.flatnonzero(ratio >= p * 0.9999).tolist()) | sure
    assert sure <= kept(make.min_p(p, min_keep), logits) <= possible


@given(seed=seeds, size=sizes, p=st.floats(0.01, 0.99))
def test_typical(seed: int, size: int, p: float) -> None:
    """Tokens by the distance of their surprise from the entropy, up to probability p (Meister et al. 2022)."""
    logits = draw_logits(seed, size)
    probabilities = softmax(logits)
    distance = np.abs(-np.log(probabilities) - (probabilities * -np.log(probabilities)).sum())
    sums = np.cumsum(probabilities[np.argsort(distance, kind="stable")])
    found = sorted(kept(make.typical(p), logits), key=lambda token: distance[token])
    assert distance[found].max() <= np.sort(distance)[len(found) - 1] + 1e-4
    assert sums[len(found) - 1] > p - 1e-4
    assert len(found) == 1 or sums[len(found) - 2] <= p + 1e-4


def test_typical_survives_probabilities_that_vanish() -> None:
    """Upstream takes the logarithm of a probability of zero, and then sorts by what is not a number."""
    logits = np.array([0, -1, *[-200 - i for i in range(500)]], np.float32)
    assert kept(make.typical(0.9), logits) <= {0, 1}


@given(seed=seeds, size=sizes, n=st.floats(0.1, 5))
def test_top_n_sigma(seed: int, size: int, n: float) -> None:
    logits = draw_logits(seed, size)
    bound = logits.max() - n * logits.astype(np.float64).std()
    found = kept(make.top_n_sigma(n), logits)
    assert set(np.flatnonzero(logits > bound + 1e-3).tolist()) <= found
    assert found <= set(np.flatnonzero(logits >= bound - 1e-3).tolist())


@given(seed=seeds, t=st.floats(0.01, 10))
def test_temperature(seed: int, t: float) -> None:
    logits = draw_logits(seed)
    assert np.allclose(changed(make.temp(t), logits), logits / np.float32(t), rtol=1e-6)
    assert kept(make.temp(0), logits) == {int(logits.argmax())}


@given(seed=seeds, t=st.floats(0.5, 2), delta=st.floats(0.05, 0.4), power=st.floats(0.2, 3))
def test_dynamic_temperature(seed: int, t: float, delta: float, power: float) -> None:
    """Between t - delta and t + delta by the share of the largest possible entropy (Zhu et al. 2023)."""
    logits = draw_logits(seed)
    probabilities = softmax(logits)
    share = (probabilities * -np.log(probabilities)).sum() / np.log(len(logits))
    temperature = t - delta + 2 * delta * share**power
    found = changed(make.temp_ext(t, delta, power), logits)
    assert np.allclose(softmax(found), softmax(logits / temperature), rtol=1e-3, atol=1e-7)
    assert np.allclose(changed(make.temp_ext(t, 0), logits), logits / np.float32(t), rtol=1e-6)


def test_a_dynamic_temperature_near_zero_is_greedy() -> None:
    logits = np.array([-500, -587, -700, -900], np.float32)
    left = make.temp_ext(0.5, 0.5).apply(logits)
    assert (left.tokens[0], left.probabilities[0]) == (0, 1)


@given(seed=seeds, threshold=st.floats(0.01, 0.5))
def test_xtc(seed: int, threshold: float) -> None:
    """Of the tokens of at least `threshold` only the least probable stays."""
    logits = draw_logits(seed, 20)
    probabilities = softmax(logits)
    if np.abs(probabilities - threshold).min() < 1e-5:
        return
    top = [token for token in np.argsort(-logits).tolist() if probabilities[token] >= threshold]
    assert kept(make.xtc(1, threshold), logits) == set(range(20)) - set(top[:-1])
    assert kept(make.xtc(0, threshold), logits) == set(range(20))
    often = sum(len(make.xtc(0.3, threshold, seed=draw).apply(logits)) < 20 for draw in range(200))
    assert often == 0 if len(top) < 2 else 30 < often < 90


@settings(max_examples=40)
@given(
    seed=seeds,
    last_n=st.integers(0, 40),
    repeat=st.floats(0.5, 3),
    frequency=st.floats(-2, 2),
    presence=st.floats(-2, 2),
)
def test_penalties(
    model: _core.Model, seed: int, last_n: int, repeat: float, frequency: float, presence: float
) -> None:
    logits = draw_logits(seed)
    history = np.random.default_rng(seed).integers(0, 30, 50)
    sampler = make.penalties(model, last_n=last_n, repeat=repeat, frequency=frequency, presence=presence)
    sampler.accept(history.tolist())
    recent = history[len(history) - last_n :]
    expected = logits.astype(np.float64)
    for token in set(recent.tolist()):
        value = expected[token]
        value = value * repeat if value <= 0 else value / repeat
        expected[token] = value - frequency * (recent == token).sum() - presence
    assert np.allclose(changed(sampler, logits), expected, rtol=1e-5, atol=1e-5)


def test_logit_bias(model: _core.Model) -> None:
    logits = draw_logits(1)
    found = changed(make.logit_bias(model, {3: 2.5, 7: -1, 9: -np.inf}), logits)
    expected = logits.copy()
    expected[[3, 7, 9]] += np.array([2.5, -1, -np.inf], np.float32)
    assert np.array_equal(found, expected)
    last = make.chain([make.top_k(50), make.logit_bias(model, {int(logits.argmax()): -np.inf})])
    assert kept(last, logits) == set(np.argsort(-logits)[1:50].tolist())  # where candidates are sorted, too


def test_dry(model: _core.Model) -> None:
    """multiplier * base ** (n - allowed_length) off the token that would go on with a repetition of n tokens."""
    a, b, c, x, y = range(300, 305)
    sampler = make.dry(model, multiplier=0.8, base=1.75, allowed_length=2, last_n=64, breakers=[])
    sampler.accept([a, b, c, x, 1, b, c, y, 2, a, b, c])
    logits = np.zeros(N, np.float32)
    expected = np.zeros(N)
    expected[x] = -0.8 * 1.75 ** (3 - 2)  # a b c was there, then x
    expected[y] = -0.8 * 1.75 ** (2 - 2)  # b c was there, then y
    assert np.allclose(changed(sampler, logits), expected, atol=1e-6)
    longer = make.dry(model, multiplier=0.8, allowed_length=4, breakers=[])
    longer.accept([a, b, c, x, 1, b, c, y, 2, a, b, c])
    assert not changed(longer, logits).any()


def test_dry_stops_at_a_breaker(model: _core.Model) -> None:
    (comma,) = model.tokenize(",", add_special=False)
    for breakers, penalised in (([], True), ([","], False)):
        sampler = make.dry(model, multiplier=1, allowed_length=2, breakers=breakers)
        sampler.accept([300, comma, 301, 302, 5, 300, comma, 301])
        assert (changed(sampler, np.zeros(N, np.float32))[302] < 0) == penalised


def test_mirostat_v2_cuts_at_twice_the_target_and_then_learns() -> None:
    """One step after another (Basu et al. 2020, algorithm 2); the choice is read from the sampler itself."""
    tau, eta = 3.0, 0.1
    sampler, mu = make.mirostat_v2(tau, eta, seed=5), 2 * tau
    for seed in range(30):
        logits = draw_logits(seed)
        order = np.argsort(-logits)
        probabilities = softmax(logits)[order]
        n = max(int((surprise(probabilities) <= mu).sum()), 1)
        left = sampler.apply(logits)
        assert len(left) == n or np.abs(surprise(probabilities) - mu).min() < 1e-4
        assert left.selected is not None
        among = softmax(left.logits)[left.tokens.tolist().index(left.selected)]
        mu -= eta * (surprise(among) - tau)


def test_mirostat_keeps_the_surprise_near_its_target(model: _core.Model) -> None:
    for sampler in (make.mirostat(model, 3, 0.1, seed=1), make.mirostat_v2(3, 0.1, seed=1)):
        found = []
        for seed in range(400):
            left = sampler.apply(draw_logits(seed))
            found.append(surprise(left.probabilities[left.tokens.tolist().index(left.selected)]))
        assert abs(np.mean(found[100:]) - 3) < 0.5


def test_adaptive_p_prefers_tokens_near_its_target() -> None:
    probabilities = np.array([0.5, 0.3, 0.15, 0.05])
    logits = np.log(probabilities).astype(np.float32)
    distance = np.abs(probabilities - 0.3) / 0.3
    expected = softmax(5 - 10 * distance**2 / (1 + distance))
    drawn = [make.adaptive_p(0.3, seed=seed).apply(logits).selected for seed in range(2000)]
    assert np.allclose(np.bincount(drawn, minlength=4) / 2000, expected, atol=0.04)
    assert np.allclose(make.adaptive_p(0.3).apply(logits).probabilities, expected, rtol=1e-4)


def test_infill_merges_tokens_that_begin_alike(model: _core.Model, smollm2: Path) -> None:
    a, b = (model.tokenize(text, add_special=False)[0] for text in "ab")
    byte_a = 3 + ord("a")  # the vocabulary has a token for each byte, too
    assert model.piece(byte_a) == model.piece(a) == b"a"
    logits = np.full(N, -30, np.float32)
    logits[[a, byte_a, b]] = np.log([0.4, 0.25, 0.35])
    sampler = make.chain([make.top_k(5), make.infill(model)])
    assert kept(sampler, logits) == {a, b}
    logits[model.eos] = 2
    assert kept(sampler, logits) == {model.eos}  # rather than to guess
    with pytest.raises(BadArgument, match="put a top_k of at most 1024 before it"):
        make.infill(_core.Model.load(str(smollm2), vocab_only=True)).apply(draw_logits(0, 49152))


def test_the_order_of_a_chain_counts() -> None:
    logits = np.log(np.array([0.4, 0.3, 0.2, 0.1])).astype(np.float32)
    cut_first = make.chain([make.top_p(0.65), make.temp(100)])
    flat_first = make.chain([make.temp(100), make.top_p(0.65)])
    assert (len(cut_first.apply(logits)), len(flat_first.apply(logits))) == (2, 3)
    assert cut_first.names == ["top_p", "temp"]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_logits_that_are_no_numbers(value: float) -> None:
    logits = draw_logits(0)
    logits[7] = value
    for sampler in (make.greedy(), make.dist(), make.top_k(3), make.typical(0.5), make.mirostat_v2()):
        with pytest.raises(DecodeError, match="not numbers"):
            sampler.apply(logits)


def test_impossible_tokens_are_never_left(model: _core.Model) -> None:
    logits = np.full(N, -np.inf, np.float32)
    with pytest.raises(DecodeError, match="every logit is minus infinity"):
        make.greedy().apply(logits)
    logits[5] = 1
    for sampler in (make.dist(), make.typical(0.5), make.mirostat(model), make.mirostat_v2(), make.adaptive_p(0.5)):
        assert sampler.apply(logits).tokens.tolist() == [5]
    with pytest.raises(DecodeError, match="logit_bias left none"):
        make.logit_bias(model, {5: -np.inf}).apply(logits)


def test_logits_of_any_size_are_sorted_right() -> None:
    """Upstream sorts by an integer made of the logit, which overflows for large ones."""
    logits = np.linspace(-1e10, 1e10, 2000).astype(np.float32)
    np.random.default_rng(0).shuffle(logits)
    assert kept(make.top_k(300), logits) == set(np.argsort(-logits)[:300].tolist())
    assert kept(make.top_p(0.5), logits) == {int(logits.argmax())}
