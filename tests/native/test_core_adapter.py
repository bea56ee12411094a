"""LoRA adapters and control vectors, against models whose weights were merged by NumPy."""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from native.adapters import ONE, OTHER, write_merged
from native.ask import bits
from native.core import make_context, make_sequence
from numpy.typing import NDArray

from ipyllama import _core
from ipyllama.errors import BadArgument, ClosedError

PROMPT = list(range(3, 60))
CLOSE = 0.02  # f16 weights round the activations: a last bit there is 5e-3 in the logits, which reach to 10
APART = 1.0  # what an adapter changes them by, at least

Logits = NDArray[np.float32]
Opened = tuple[_core.Model, _core.Context, _core.Sequence]


@pytest.fixture
def folder(adapters: Path) -> Path:
    return adapters


@pytest.fixture
def opened(folder: Path) -> Opened:
    model = _core.Model.load(str(folder / "base.gguf"))
    context = make_context(model, n_seq_max=2)
    return model, context, _core.Sequence(context, 0)


def logits(sequence: _core.Sequence, tokens: Iterable[int] = PROMPT) -> Logits:
    sequence.clear()
    sequence.decode(list(tokens))
    return sequence.logits()


def load(opened: Opened, folder: Path, name: str = "one") -> _core.Adapter:
    return _core.Adapter.load(opened[0], str(folder / f"{name}.gguf"))


@pytest.mark.parametrize("scale", [1.0, 0.7, -1.5])
def test_an_adapter_computes_as_its_merged_weights(opened: Opened, folder: Path, tmp_path: Path, scale: float) -> None:
    _, context, sequence = opened
    base = logits(sequence)
    sequence.clear()
    context.set_adapters([(load(opened, folder), scale)])
    found = logits(sequence)
    merged = logits(make_sequence(write_merged(tmp_path / "merged.gguf", (ONE, scale))))
    np.testing.assert_allclose(found, merged, rtol=0, atol=CLOSE)
    assert np.abs(found - base).max() > APART


def test_a_stack_is_the_sum(opened: Opened, folder: Path, tmp_path: Path) -> None:
    _, context, sequence = opened
    context.set_adapters([(load(opened, folder), 0.5), (load(opened, folder, "other"), 1.25)])
    found = logits(sequence)
    merged = logits(make_sequence(write_merged(tmp_path / "merged.gguf", (ONE, 0.5), (OTHER, 1.25))))
    np.testing.assert_allclose(found, merged, rtol=0, atol=CLOSE)
    for alone in ((ONE, 0.5), (OTHER, 1.25)):
        assert np.abs(found - logits(make_sequence(write_merged(tmp_path / "alone.gguf", alone)))).max() > APART


def test_taken_off_nothing_is_left(opened: Opened, folder: Path) -> None:
    _, context, sequence = opened
    base, adapter = logits(sequence), load(opened, folder)
    for adapters in ([(adapter, 1.0)], [], [(adapter, 0.0)], [(adapter, -2.0)], []):
        sequence.clear()
        context.set_adapters(adapters)
        assert np.array_equal(bits(logits(sequence)), bits(base)) == (not any(scale for _, scale in adapters))


def test_what_is_set_is_told(opened: Opened, folder: Path) -> None:
    _, context, _ = opened
    assert context.adapters == []
    one, other = load(opened, folder), load(opened, folder, "other")
    context.set_adapters([(other, 0.5), (one, 2.0)])
    assert [(adapter.path, scale) for adapter, scale in context.adapters] == [(other.path, 0.5), (one.path, 2.0)]
    one.close()
    context.adapters[1][0].metadata()  # the context has kept it
    context.set_adapters([])
    assert context.adapters == []


def test_metadata(opened: Opened, folder: Path) -> None:
    adapter = load(opened, folder)
    assert adapter.metadata()["general.name"] == "tiny-random-lora"
    assert float(adapter.metadata()["adapter.lora.alpha"]) == ONE.alpha
    assert adapter.path == str(folder / "one.gguf")
    assert adapter.invocation_tokens == [5, 6]
    assert load(opened, folder, "other").invocation_tokens == []


def test_each_context_has_its_own(opened: Opened, folder: Path) -> None:
    model, context, sequence = opened
    adapter, second = load(opened, folder), make_context(model)
    plain = logits(sequence)
    second.set_adapters([(adapter, 1.0)])
    changed = logits(_core.Sequence(second, 0))
    assert np.array_equal(bits(logits(sequence)), bits(plain))
    sequence.clear()
    context.set_adapters([(adapter, 1.0)])
    assert np.array_equal(bits(logits(sequence)), bits(changed))


def test_memory_that_was_computed_otherwise(opened: Opened, folder: Path) -> None:
    _, context, sequence = opened
    adapter = load(opened, folder)
    context.set_adapters([(adapter, 1.0)])
    sequence.decode(PROMPT)
    for change in ([], [(adapter, 0.5)], [(adapter, 1.0), (load(opened, folder, "other"), 1.0)]):
        with pytest.raises(BadArgument, match=r"sequence 0 holds tokens.*clear it first, or pass keep_memory=True"):
            context.set_adapters(change)
    assert [scale for _, scale in context.adapters] == [1.0]
    context.set_adapters([(adapter, 1.0)])  # no change
    context.set_adapters([], keep_memory=True)
    assert sequence.tokens == PROMPT
    sequence.decode([100])
    mixed = sequence.logits()
    assert np.abs(mixed - logits(sequence, [*PROMPT, 100])).max() > APART  # the prompt was not computed again


def test_wrong_arguments(opened: Opened, folder: Path, tiny) -> None:
    model, context, _ = opened
    adapter = load(opened, folder)
    for scale in (float("nan"), float("inf"), 1e300):
        with pytest.raises(BadArgument, match="scale"):
            context.set_adapters([(adapter, scale)])
    with pytest.raises(BadArgument, match="twice"):
        context.set_adapters([(adapter, 1.0), (adapter, 2.0)])
    with pytest.raises(BadArgument, match="another model"):
        make_context(_core.Model.load(str(folder / "base.gguf"))).set_adapters([(adapter, 1.0)])
    for wrong in ([None], [(None, 1.0)], [(adapter,)], [("one.gguf", 1.0)], adapter, 7):
        with pytest.raises((TypeError, BadArgument)):
            context.set_adapters(wrong)
    assert context.adapters == []
    with pytest.raises(BadArgument, match="NUL"):
        _core.Adapter.load(model, "a\0b")


def test_use_after_close(opened: Opened, folder: Path) -> None:
    model, context, sequence = opened
    adapter = load(opened, folder)
    with adapter as same:
        assert same is adapter
        context.set_adapters([(adapter, 1.0)])
    assert adapter.closed
    adapter.close()
    for use in (
        adapter.metadata,
        adapter.__enter__,
        lambda: adapter.path,
        lambda: adapter.invocation_tokens,
        lambda: context.set_adapters([(adapter, 1.0)]),
    ):
        with pytest.raises(ClosedError):
            use()
    changed = logits(sequence)
    sequence.clear()
    context.set_adapters([])
    assert np.abs(changed - logits(sequence)).max() > APART  # it worked on after close()
    context.close()
    model.close()
    for use in (
        lambda: context.set_adapters([]),
        lambda: context.adapters,
        context.clear_control_vector,
        lambda: _core.Adapter.load(model, str(folder / "one.gguf")),
    ):
        with pytest.raises(ClosedError):
            use()


def test_set_while_a_step_runs_waits_for_it(folder: Path) -> None:
    model = _core.Model.load(str(folder / "base.gguf"))
    context = make_context(model, n_ctx=8192, n_batch=4096)
    sequence, adapter = _core.Sequence(context, 0), _core.Adapter.load(model, str(folder / "one.gguf"))
    context.set_adapters([(adapter, 1.0)])
    adapter.close()
    with ThreadPoolExecutor(1) as pool:
        step = pool.submit(sequence.decode, [5] * 4096)  # half a second
        time.sleep(0.05)
        assert not step.done()
        context.set_adapters([], keep_memory=True)  # frees the adapter
        assert len(sequence) == 4096
        step.result()


def test_a_control_vector_is_a_bias_on_the_layer(opened: Opened, tmp_path: Path) -> None:
    _, context, sequence = opened
    base, rows = logits(sequence), np.random.default_rng(0).standard_normal((2, 64), dtype=np.float32)
    sequence.clear()
    context.set_control_vector(rows, 1, 1)
    found = logits(sequence)
    np.testing.assert_allclose(
        found, logits(make_sequence(write_merged(tmp_path / "m.gguf", bias=rows[1]))), rtol=0, atol=CLOSE
    )
    assert np.abs(found - base).max() > APART
    with pytest.raises(BadArgument, match="keep_memory"):
        context.clear_control_vector()
    sequence.clear()
    context.clear_control_vector()
    assert np.array_equal(bits(logits(sequence)), bits(base))


def test_wrong_control_vectors(opened: Opened) -> None:
    _, context, sequence = opened
    rows = np.zeros((2, 64), np.float32)
    for shape in ((1, 64), (2, 63), (3, 64), (0, 64), (64, 2)):
        with pytest.raises(BadArgument, match=r"shape \(2, 64\)"):
            context.set_control_vector(np.zeros(shape, np.float32), 1, 1)
    for first, last in ((0, 1), (1, 2), (2, 1), (-1, 1), (1, 2**31 - 1)):
        with pytest.raises(BadArgument, match="first_layer"):
            context.set_control_vector(rows, first, last)
    for wrong in (rows[0], rows[None], "x", None):
        with pytest.raises(TypeError):
            context.set_control_vector(wrong, 1, 1)
    with pytest.raises(BadArgument, match="not numbers"):
        context.set_control_vector(np.full_like(rows, np.nan), 1, 1)
    sequence.decode(PROMPT)
