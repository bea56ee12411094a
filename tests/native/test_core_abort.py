"""The abort flag: a running step ends, and the ledger holds what is in memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
from native.ask import bits
from native.core import make_context

from ipyllama import _core
from ipyllama.errors import Aborted, ClosedError, LlamaError

ALL = ("llama", "gemma3", "mamba", "lfm2", "jamba")
BEFORE, LONG = list(range(1, 101)), [token for token in range(1, 301) for _ in range(6)]
DELAYS = [0.0, *(0.0005 * 2**n for n in range(8))]


def interrupted(context: _core.Context, sequence: _core.Sequence) -> Iterator[Aborted]:
    """The errors of a long step aborted after one delay and another, the flag set before or inside the step."""
    for delay in DELAYS:
        timer = threading.Timer(delay, context.abort)
        timer.start()
        try:
            sequence.decode(LONG)
        except Aborted as error:
            timer.join()
            yield error
        timer.join()
        context.clear_abort()


@pytest.mark.parametrize("arch", ALL)
def test_a_step_aborted_anywhere_leaves_a_true_ledger(tiny, arch: str) -> None:
    """Recurrent state has moved on by then and has no way back: the sequence is then empty, not wrong."""
    model = _core.Model.load(str(tiny(arch)))
    context = make_context(model, n_ctx=4096, n_batch=2048)
    sequence, fresh = _core.Sequence(context), _core.Sequence(make_context(model, n_ctx=4096, n_batch=2048))
    fresh.decode(BEFORE)
    fresh.decode([50, 60])
    sequence.decode(BEFORE)
    inside = 0
    for error in interrupted(context, sequence):
        inside += "step was aborted" in str(error)
        context.clear_abort()
        assert sequence.tokens in (BEFORE, [])
        assert sequence.pos_max == len(sequence) - 1
        assert sequence.has_logits == ("flag is set" in str(error))  # refused before anything was touched
        if len(sequence) == 0:
            assert arch in ("mamba", "lfm2", "jamba")
            sequence.decode(BEFORE)
        sequence.decode([50, 60])  # as if nothing had happened
        assert np.array_equal(bits(sequence.logits()), bits(fresh.logits()))
        sequence.clear()
        sequence.decode(BEFORE)
    assert inside > 0


def test_the_flag_refuses_steps_until_it_is_cleared(tiny) -> None:
    context = make_context(_core.Model.load(str(tiny("llama"))))
    sequence = _core.Sequence(context)
    context.abort()
    for _ in range(2):
        with pytest.raises(Aborted, match="flag is set"):
            sequence.decode([1, 2])
    assert len(sequence) == 0
    context.clear_abort()
    sequence.decode([1, 2])
    assert len(sequence) == 2


def decode_for_ever(sequence: _core.Sequence) -> None:
    while True:
        sequence.decode(LONG)
        sequence.clear()


def test_closing_ends_a_running_step(tiny) -> None:
    """Whatever the moment: the step ends with a named error, or it was over; the context is then closed."""
    model = _core.Model.load(str(tiny("llama")))
    for delay in DELAYS:
        context = make_context(model, n_ctx=2048, n_batch=2048)
        sequence = _core.Sequence(context)
        timer = threading.Timer(delay, context.close)
        timer.start()
        with pytest.raises((Aborted, ClosedError)):
            decode_for_ever(sequence)
        timer.join()
        assert context.closed
        with pytest.raises(ClosedError):
            len(sequence)


def test_everything_from_many_threads_at_once(tiny) -> None:
    """No order of calls is wrong: each works, or says in our words why not."""
    model = _core.Model.load(str(tiny("llama")))
    context = make_context(model, n_seq_max=4, n_ctx=1024)
    sequences = [_core.Sequence(context, number) for number in range(4)]
    sequences[0].decode([5, 6, 7])
    state = sequences[0].save()
    surprises: list[BaseException] = []

    def work(sequence: _core.Sequence, seed: int) -> None:
        rng = np.random.default_rng(seed)
        sampler = _core.Sampler.chain([_core.Sampler.penalties(model, repeat=1.1), _core.Sampler.dist()])
        actions = [
            lambda: sequence.decode([int(token) for token in rng.integers(0, 356, 20)]),
            lambda: sampler.sample(sequence),
            lambda: sequence.trim(len(sequence) // 2),
            lambda: sequence.restore(sequence.save(), sequence.tokens),
            lambda: sequence.restore(state, [5, 6, 7]),
            lambda: (sequence.logits(), sequence.tokens, sequence.pos_min),
            context.abort,
            context.clear_abort,
            sequence.clear,
            lambda: model.detokenize(model.tokenize("hello")),
        ]
        for choice in rng.integers(0, len(actions), 200):
            try:
                actions[choice]()
            except LlamaError:
                continue
            except BaseException as error:  # noqa: BLE001 - told by the thread that asserts
                surprises.append(error)

    threads = [threading.Thread(target=work, args=(sequence, n)) for n, sequence in enumerate(sequences)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert surprises == []
    context.clear_abort()
    for sequence in sequences:
        assert sequence.pos_max == len(sequence) - 1
