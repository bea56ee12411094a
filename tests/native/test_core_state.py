"""State of a context, a sequence and a range: exact where it fits, refused with the reason where it does not."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest
from native.ask import bits
from native.core import make_context
from numpy.typing import NDArray

from ipyllama import _core
from ipyllama.errors import BadArgument, BadState, CannotTrim, DecodeError

ALL = ("llama", "gemma3", "mamba", "lfm2", "jamba")
RECURRENT = ("mamba", "lfm2", "jamba")
TOKENS = [1, *(262 + n * n % 94 for n in range(399))]
BUFFERS: dict[str, Callable[[int], object]] = {
    "bytearray": bytearray,
    "memoryview": lambda n: memoryview(bytearray(n)),
    "numpy": lambda n: np.zeros(n, np.uint8),
    "mmap": lambda n: mmap.mmap(-1, n),
}


def sequence_of(path: Path, number: int | None = None, **options: object) -> _core.Sequence:
    return _core.Sequence(make_context(_core.Model.load(str(path)), **options), number)


def evaluate(sequence: _core.Sequence, tokens: Sequence[int], ends: Iterable[int] = ()) -> NDArray[np.float32]:
    """The logits after `tokens`, of which the sequence holds the first."""
    for end in (*ends, len(tokens)):
        if end > len(sequence):
            sequence.decode(tokens[len(sequence) : end])
    return sequence.logits()


def evaluated(path: Path, n: int = 100, **options: object) -> _core.Sequence:
    sequence = sequence_of(path, **options)
    evaluate(sequence, TOKENS[:n])
    return sequence


def same(a: NDArray[np.float32], b: NDArray[np.float32]) -> bool:
    return np.array_equal(bits(a), bits(b))


def close(a: NDArray[np.float32], b: NDArray[np.float32]) -> bool:
    """Sums over cells in another order: 1.5e-2 was measured, a fault gives more than 1."""
    return bool(np.abs(a - b).max() < 0.05)


def stays(sequence: _core.Sequence, twin: _core.Sequence, attempt: Callable[[], object], words: str) -> None:
    """`attempt` is refused with `words`, and the sequence goes on as its twin does."""
    before = sequence.tokens, sequence.positions, sequence.pos_min, sequence.pos_max, sequence.has_logits
    with pytest.raises(BadState, match=words):
        attempt()
    assert (sequence.tokens, sequence.positions, sequence.pos_min, sequence.pos_max, sequence.has_logits) == before
    for each in (sequence, twin):
        each.decode([300])
    assert same(sequence.logits(), twin.logits())


@pytest.mark.parametrize("arch", ALL)
@pytest.mark.parametrize("kind", BUFFERS)
def test_states_go_to_any_buffer_and_come_from_any(tiny, arch: str, kind: str) -> None:
    sequence = evaluated(tiny(arch))
    ways: list[tuple[Callable[[], int], Callable[[object], int], Callable[[], NDArray[np.uint8]]]] = [
        (sequence.state_size, sequence.save_into, sequence.save),
        (
            lambda: sequence.state_size(partial=True),
            lambda out: sequence.save_into(out, partial=True),
            lambda: sequence.save(partial=True),
        ),
        (sequence.context.state_size, sequence.context.save_into, sequence.context.save),
    ]
    if arch == "llama":
        ways.append(
            (
                lambda: sequence.state_size(10, 20),
                lambda out: sequence.save_into(out, 10, 20),
                lambda: sequence.save(10, 20),
            )
        )
    for size_of, save_into, save in ways:
        size, out = size_of(), BUFFERS[kind](size_of() + 3)
        assert save_into(out) == size == save().nbytes
        assert bytes(out)[:size] == save().tobytes()
        with pytest.raises(BadArgument, match=f"has {size - 1} bytes and the state needs {size}"):
            save_into(BUFFERS[kind](size - 1))
    out = BUFFERS[kind](sequence.state_size())
    sequence.save_into(out)
    live = evaluate(sequence, TOKENS[:101])
    sequence.clear()
    sequence.restore(out, TOKENS[:100])
    assert same(evaluate(sequence, TOKENS[:101]), live)
    sequence.restore(bytes(out), TOKENS[:100])
    assert same(evaluate(sequence, TOKENS[:101]), live)


def test_buffers_that_cannot_be_used_are_refused(tiny) -> None:
    """Not copied into something else that nobody sees."""
    sequence = evaluated(tiny("llama"))
    size, state = sequence.state_size(), sequence.save()
    frozen = np.zeros(size, np.uint8)
    frozen.flags.writeable = False
    wrong = [np.zeros(2 * size, np.uint8)[::2], np.zeros(size, np.float32), np.zeros((size, 1), np.uint8), "x", 5, None]
    for out in (b"\0" * size, memoryview(b"\0" * size), frozen, *wrong):
        for save in (sequence.save_into, sequence.context.save_into):
            with pytest.raises(TypeError):
                save(out)
    for given in (*wrong, np.repeat(state, 2)[::2], state.astype(np.float32), state.astype(np.int8)):
        with pytest.raises(TypeError):
            sequence.restore(given, TOKENS[:100])
    sequence.restore(frozen.__class__(size, np.uint8, state.tobytes()), TOKENS[:100])  # read-only will do to read
    for tokens in (None, 5, ["a"], [1.5], {1: 2}):
        with pytest.raises(TypeError):
            sequence.restore(state, tokens)
    assert sequence.tokens == TOKENS[:100]


@pytest.mark.parametrize("swa_full", [True, False])
@pytest.mark.parametrize(("arch", "block"), [(arch, block) for arch in ALL for block in (16, 32)])
def test_a_chain_of_blocks_is_the_live_state_to_the_bit(tiny, arch: str, block: int, swa_full: bool) -> None:
    """Each block is copied when the prefill reaches its end, and they go in in order."""
    sequence, blocks = sequence_of(tiny(arch), swa_full=swa_full), list[NDArray[np.uint8]]()
    for end in range(block, 385, block):
        sequence.decode(TOKENS[end - block : end])
        blocks.append(sequence.save(end - block, end))
    again = sequence_of(tiny(arch), swa_full=swa_full)
    for i, state in enumerate(blocks):
        again.append(state, TOKENS[i * block : (i + 1) * block])
        assert (len(again), again.pos_max, again.has_logits) == ((i + 1) * block, (i + 1) * block - 1, False)
    assert again.tokens == sequence.tokens
    assert same(evaluate(again, TOKENS, (399,)), evaluate(sequence, TOKENS, (399,)))
    middle = sequence_of(tiny(arch), swa_full=swa_full)  # each end of a block is a place to go on from
    for i, state in enumerate(blocks[:5]):
        middle.append(state, TOKENS[i * block : (i + 1) * block])
    fresh = sequence_of(tiny(arch), swa_full=swa_full)
    ends = range(block, 5 * block, block)
    assert same(evaluate(middle, TOKENS[: 5 * block + 3]), evaluate(fresh, TOKENS[: 5 * block + 3], (*ends, 5 * block)))


def test_2000_tokens_of_a_real_model_in_blocks_of_256(smollm2: Path) -> None:
    sequence, blocks = sequence_of(smollm2, n_ctx=2304, n_threads=2), list[NDArray[np.uint8]]()
    tokens = [1 + n * n % 40_000 for n in range(2001)]
    places = [(begin, min(begin + 256, 2000)) for begin in range(0, 2000, 256)]
    for begin, end in places:
        sequence.decode(tokens[begin:end])
        blocks.append(sequence.save(begin, end))
    for place, state in zip(places[1:], blocks[1:], strict=True):  # or later; the first was of a whole sequence
        assert np.array_equal(sequence.save(*place), state)
    live = evaluate(sequence, tokens)
    sequence.clear()
    for (begin, end), state in zip(places, blocks, strict=True):
        sequence.append(state, tokens[begin:end])
    assert same(evaluate(sequence, tokens), live)


def test_blocks_go_in_in_order(tiny) -> None:
    sequence = evaluated(tiny("llama"), 96)
    first, second, third = (sequence.save(n, n + 32) for n in (0, 32, 64))
    live = evaluate(sequence, TOKENS[:97])
    again, twin = sequence_of(tiny("llama")), sequence_of(tiny("llama"))
    again.append(second, TOKENS[32:64])
    for state, tokens in ((first, TOKENS[:32]), (second, TOKENS[32:64])):
        with pytest.raises(BadArgument, match="ends at 63"):
            again.append(state, tokens)
    assert again.positions == list(range(32, 64))
    again.restore(first, TOKENS[:32])
    for state, tokens in ((second, TOKENS[32:64]), (third, TOKENS[64:96])):
        again.append(state, tokens)
    assert same(evaluate(again, TOKENS[:97]), live)
    twin.append(first, TOKENS[:32])
    stays(again, again, lambda: again.append(third, TOKENS[64:95]), "holds 32 cells and there are 31 tokens")
    twin.append(third, TOKENS[64:96])  # a hole is allowed: positions tell of it
    assert twin.positions == [*range(32), *range(64, 96)]


@pytest.mark.parametrize(
    ("arch", "sizes", "options", "words"),
    [
        ("llama", {"n_head_kv": 4}, {}, "bytes per cell of K in layer 0 128 where this context has 64"),
        ("llama", {"n_head_kv": 1}, {}, "bytes per cell of K"),
        ("llama", {"n_layer": 3}, {}, "layers: 3 where this context has 2"),
        ("llama", {"n_embd": 128}, {}, "bytes per cell of K"),
        ("llama", {}, {"type_k": "f32", "type_v": "f32"}, "type of K in layer 0 0 where this context has 1"),
        ("llama", {}, {"type_k": "bf16"}, "type of K"),
        ("llama", {}, {"flash_attention": 0}, "V transposition 1 where this context has 0"),
        ("gemma3", {}, {}, "layers|too many"),
        ("mamba", {}, {}, "sequences of a cell: 0 where this context has 1"),
        ("lfm2", {}, {}, "too many"),
        ("jamba", {}, {}, "too many"),
    ],
)
def test_foreign_states_are_refused_with_what_differs(
    tiny, tmp_path: Path, arch: str, sizes: dict[str, int], options: dict[str, object], words: str
) -> None:
    from tiny import build

    build(arch, tmp_path / "other.gguf", **sizes)
    other = evaluated(tmp_path / "other.gguf", **options)
    sequence, twin = evaluated(tiny("llama"), 50), evaluated(tiny("llama"), 50)
    stays(sequence, twin, lambda: sequence.restore(other.save(), TOKENS[:100]), words)
    stays(
        sequence,
        twin,
        lambda: (
            sequence.append(other.save(60, 100), TOKENS[60:100])
            if arch == "llama"
            else sequence.append(other.save(), TOKENS[:100])
        ),
        words,
    )
    whole = words if arch == "llama" else f"belongs to '{arch}' and this model is 'llama'"
    stays(sequence, twin, lambda: sequence.context.restore(other.context.save(), {0: TOKENS[:100]}), whole)


def test_positions_that_no_sequence_can_have(tiny) -> None:
    sequence, twin = evaluated(tiny("llama")), evaluated(tiny("llama"))
    for position in (-1, -(2**31), 2**30, 2**31 - 1):
        state = sequence.save()
        state[16:20] = np.frombuffer(np.int32(position).tobytes(), np.uint8)  # of the first cell
        stays(sequence, twin, lambda state=state: sequence.restore(state, sequence.tokens), "out of range")
    state = sequence.save()
    assert state[16:20].tobytes() == bytes(4)
    state[8] = 4
    stays(sequence, twin, lambda: sequence.restore(state, sequence.tokens), "4 KV streams .* --kv-unified")


def test_quantised_kv_of_a_real_model(smollm2: Path, tiny) -> None:
    quantised = evaluated(smollm2, 40, type_k="q8_0", type_v="q8_0")
    plain, twin = evaluated(smollm2, 40), evaluated(smollm2, 40)
    stays(plain, twin, lambda: plain.restore(quantised.save(), TOKENS[:40]), "type of K in layer 0 8 .* has 1")
    stays(plain, twin, lambda: plain.restore(evaluated(tiny("llama")).save(), TOKENS[:100]), "layers: 2 .* has 30")
    state = quantised.save()
    live = evaluate(quantised, TOKENS[:41])
    quantised.restore(state, TOKENS[:40])
    assert same(evaluate(quantised, TOKENS[:41]), live)


def test_a_smaller_window_is_refused(tiny, tmp_path: Path) -> None:
    """A larger one holds cells that are not looked at any more."""
    from tiny import build

    for window in (16, 64):
        build("gemma3", tmp_path / f"{window}.gguf", n_swa=window)
    sequence, twin = evaluated(tiny("gemma3"), 50), evaluated(tiny("gemma3"), 50)
    small, large = (evaluated(tmp_path / f"{window}.gguf").save() for window in (16, 64))
    stays(sequence, twin, lambda: sequence.restore(small, TOKENS[:100]), "cells are missing before position 84")
    sequence.restore(large, TOKENS[:100])
    assert sequence.positions == list(range(100))


@pytest.mark.parametrize("swa_full", [True, False])
def test_a_windowed_state_cannot_be_cut_later_unless_that_is_exact(tiny, swa_full: bool) -> None:
    sequence = evaluated(tiny("gemma3"), swa_full=swa_full)
    state, short = sequence.save(), None
    sequence.restore(state, TOKENS[:100])
    for n in (98, 70, 68, 1):
        with pytest.raises(CannotTrim, match="window of 32"):
            sequence.trim(n)
    with pytest.raises(CannotTrim, match="window"):
        sequence.save(0, 60)
    assert np.array_equal(sequence.save(), state)
    more = evaluate(sequence, TOKENS[:131])
    with pytest.raises(CannotTrim):
        sequence.trim(98)
    sequence.trim(99)  # the next token sees 68 and later, all of which is there
    twin = evaluated(tiny("gemma3"), swa_full=swa_full)
    evaluate(twin, TOKENS[:131])
    twin.trim(99)
    assert close(evaluate(sequence, TOKENS[:131]), more)
    assert close(evaluate(sequence, TOKENS[:140]), evaluate(twin, TOKENS[:140], (131,)))
    sequence.clear()
    evaluate(sequence, TOKENS[:32])
    short = sequence.save()
    sequence.restore(short, TOKENS[:32])
    sequence.trim(10)  # nothing was outside the window
    assert close(evaluate(sequence, TOKENS[:20]), evaluate(evaluated(tiny("gemma3"), 10), TOKENS[:20]))


@pytest.mark.parametrize("flash_attention", [0, 1])
def test_a_pending_shift_is_applied_before_saving(tiny, flash_attention: int) -> None:
    sequence, twin = (evaluated(tiny("llama"), flash_attention=flash_attention) for _ in range(2))
    for each in (sequence, twin):
        each.rm(20, 40)
        each.add(40, None, -20)
    state, context_state = sequence.save(), sequence.context.save()
    after = [*TOKENS[:20], *TOKENS[40:100]]
    assert sequence.positions == list(range(80))
    live = evaluate(twin, [*after, 300])
    assert same(evaluate(sequence, [*after, 300]), live)
    again = sequence_of(tiny("llama"), flash_attention=flash_attention)
    again.restore(state, after)
    assert close(evaluate(again, [*after, 300]), live)
    again.context.restore(context_state, {0: after})
    assert close(evaluate(again, [*after, 300]), live)
    never = evaluated(tiny("llama"), flash_attention=flash_attention)
    never.rm(20, 40)
    assert not close(evaluate(never, [*after, 300]), live)  # so the shift shows in logits at all


@pytest.mark.parametrize("arch", ALL)
def test_another_n_ctx_and_neighbours(tiny, arch: str) -> None:
    """Into a larger context to the bit; beside other sequences as far as other cells allow; not where it is full."""
    sequence = evaluated(tiny(arch), 200)
    state = sequence.save()
    live = evaluate(sequence, TOKENS[:201])
    larger = sequence_of(tiny(arch), n_ctx=2048)
    larger.restore(state, TOKENS[:200])
    assert same(evaluate(larger, TOKENS[:201]), live)
    context = make_context(_core.Model.load(str(tiny(arch))), n_seq_max=3)
    sequences = [_core.Sequence(context) for _ in range(3)]
    for neighbour, n in ((sequences[0], 150), (sequences[2], 100)):
        evaluate(neighbour, TOKENS[::-1][:n])
    sequences[1].restore(state, TOKENS[:200])
    assert close(evaluate(sequences[1], TOKENS[:201]), live)
    sequences[1].clear()
    evaluate(sequences[0], [*TOKENS[::-1][:150], *TOKENS[:100]])
    if arch == "mamba":  # its state has one size
        sequences[1].restore(state, TOKENS[:200])
        return
    evaluate(sequences[0], [*TOKENS[::-1][:150], *TOKENS[:200]])
    with pytest.raises(BadState, match="needs 200 cells and 62 are free"):
        sequences[1].restore(state, TOKENS[:200])
    assert (len(sequences[1]), len(sequences[0]), len(sequences[2])) == (0, 350, 100)
    small = sequence_of(tiny(arch), n_ctx=256)
    evaluate(larger, TOKENS[:300])
    with pytest.raises(BadState, match="needs 300 cells and 256 are free"):
        small.restore(larger.save(), TOKENS[:300])
    with pytest.raises(BadState, match="holds 300 cells and this context has 256"):
        small.context.restore(larger.context.save(), {0: TOKENS[:300]})


@pytest.mark.parametrize("arch", ALL)
def test_a_whole_context_with_shared_cells(tiny, arch: str) -> None:
    def fill() -> list[_core.Sequence]:
        context = make_context(_core.Model.load(str(tiny(arch))), n_seq_max=4)
        first = _core.Sequence(context, 0)
        evaluate(first, TOKENS[:60])
        second = first.fork()
        third = _core.Sequence(context, 3)
        evaluate(second, TOKENS[:70])
        evaluate(third, TOKENS[::-1][:30])
        return [first, second, third]

    before, live = fill(), fill()
    state, tokens = before[0].context.save(), {each.id: each.tokens for each in before}
    cells = [each.cells for each in before]
    context = make_context(_core.Model.load(str(tiny(arch))), n_seq_max=4)
    with pytest.raises(BadArgument, match="make Sequence"):
        context.restore(state, tokens)
    after = [_core.Sequence(context, number) for number in (0, 1, 3)]
    spare = _core.Sequence(context, 2)
    spare.decode([1, 2, 3])
    for wrong, words in (
        ({0: tokens[0], 1: tokens[1]}, "holds sequence 3: its tokens are needed"),
        ({**tokens, 2: [1]}, "holds nothing of sequence 2"),
        ({**tokens, 1: tokens[1][:-1]}, "70 cells and there are 69 tokens"),
        ({}, "needed too"),
    ):
        if arch == "mamba" and "69" in words:
            continue  # recurrent state does not tell how many tokens it is of
        with pytest.raises(BadState, match=words):
            context.restore(state, wrong)
    assert spare.tokens == [1, 2, 3]
    context.restore(state, tokens)
    assert len(spare) == 0
    assert [each.tokens for each in after] == [each.tokens for each in before]
    shared = [[a == b for a, b in zip(x, y, strict=False)] for x in cells for y in cells]
    found = [[a == b for a, b in zip(x.cells, y.cells, strict=False)] for x in after for y in after]
    assert found == shared or arch in RECURRENT
    assert context.memory.used == before[0].context.memory.used
    for here, there in zip(after, live, strict=True):
        for each in (here, there):
            each.decode([300])
        assert close(here.logits(), there.logits())


@pytest.mark.parametrize("arch", ["gemma3", "lfm2", "jamba"])
def test_a_partial_state_takes_a_sequence_back(tiny, arch: str) -> None:
    sequence = evaluated(tiny(arch))
    partial = sequence.save(partial=True)
    assert 0 < partial.nbytes < sequence.state_size()
    live = evaluate(sequence, TOKENS[:140], (120,))
    evaluate(sequence, TOKENS[:200])
    sequence.rewind(partial, TOKENS[:100])
    assert (sequence.tokens, sequence.pos_max, sequence.has_logits) == (TOKENS[:100], 99, False)
    assert close(evaluate(sequence, TOKENS[:140], (120,)), live)
    if arch in RECURRENT:
        assert same(sequence.logits(), live)
    twin = evaluated(tiny(arch))
    evaluate(twin, TOKENS[:140], (120,))
    for wrong in (partial[:-1], np.concatenate([partial, partial[:4]]), sequence.save(), b""):
        with pytest.raises(BadState, match="does not fit"):
            sequence.rewind(wrong, TOKENS[:100])
    for tokens in ([], TOKENS[1:101], [*TOKENS, 300]):
        with pytest.raises(BadArgument, match="does not begin with these tokens"):
            sequence.rewind(partial, tokens)
    with pytest.raises(BadState, match="different positions"):
        sequence.rewind(partial, TOKENS[:99])
    assert close(evaluate(sequence, TOKENS[:141]), evaluate(twin, TOKENS[:141]))


@pytest.mark.parametrize("arch", ["llama", "mamba"])
def test_where_nothing_is_partial(tiny, arch: str) -> None:
    sequence = evaluated(tiny(arch))
    assert np.array_equal(sequence.save(partial=True), sequence.save())
    with pytest.raises(BadArgument, match="no part that could be put back alone"):
        sequence.rewind(sequence.save(), TOKENS[:100])


@pytest.mark.parametrize("arch", ALL)
def test_a_copy_on_the_device(tiny, arch: str) -> None:
    context = make_context(_core.Model.load(str(tiny(arch))), n_seq_max=2)
    sequence, other = _core.Sequence(context), _core.Sequence(context)
    evaluate(sequence, TOKENS[:50])
    old = sequence.save_on_device()
    evaluate(sequence, TOKENS[:100])
    kept = sequence.save_on_device()
    assert (old.n_tokens, kept.n_tokens) == (50, 100)
    live = evaluate(sequence, TOKENS[:120])
    other.decode(TOKENS[:10])
    theirs = other.save_on_device()
    for wrong in (old, theirs):
        with pytest.raises(BadState, match="gone from the device"):
            sequence.restore_on_device(wrong)
    assert sequence.tokens == TOKENS[:120]
    for _ in range(2):
        sequence.restore_on_device(kept)
        assert (sequence.tokens, sequence.has_logits) == (TOKENS[:100], False)
        again = evaluate(sequence, TOKENS[:120])
        assert same(again, live) or (arch == "gemma3" and close(again, live))
    context.memory.clear()
    sequence.restore_on_device(kept)
    assert sequence.tokens == TOKENS[:100]
    sequence.close()
    fresh = _core.Sequence(context, 0)
    with pytest.raises(BadState, match="gone from the device"):
        fresh.restore_on_device(kept)


def test_a_copy_on_the_device_in_pieces(tiny) -> None:
    """As many cells as before, now scattered, in a buffer that fitted exactly."""
    context = make_context(_core.Model.load(str(tiny("llama"))), n_seq_max=2)
    sequence, other = _core.Sequence(context), _core.Sequence(context)
    evaluate(sequence, TOKENS[:11])
    sequence.save_on_device()
    sequence.clear()
    for i in range(11):
        other.decode([300 + i])
        sequence.decode(TOKENS[i : i + 1])
    kept = sequence.save_on_device()
    live = evaluate(sequence, TOKENS[:30])
    sequence.restore_on_device(kept)
    assert close(evaluate(sequence, TOKENS[:30]), live)


def test_copies_on_the_device_that_llama_cpp_cannot_make(tiny, smollm2: Path) -> None:
    """It would end the process in one case and restore a part of the values in the other."""
    for sequence, words in (
        (evaluated(tiny("llama"), flash_attention=0), "element by element"),
        (evaluated(tiny("jamba"), flash_attention=0), "element by element"),
        (evaluated(smollm2, 20, type_k="q8_0", type_v="q8_0"), "quantised"),
    ):
        with pytest.raises(BadArgument, match=words):
            sequence.save_on_device()
        assert sequence.has_logits


@pytest.mark.parametrize("arch", ALL)
def test_values_that_are_no_numbers_stop_the_sampler_and_not_the_process(tiny, arch: str) -> None:
    """The values in a state cannot be checked: there is no checksum in it.

    They go on to spoil what is computed, also after the sequence is cleared, since 0 * NaN is NaN: the buffers have to
    be set to zero.
    """
    sequence = evaluated(tiny(arch))
    state = sequence.save()
    state[-200:-48] = 0xFF  # in the last layer; of lfm2 the headers of empty rows follow
    sequence.restore(state, TOKENS[:100])
    sequence.decode([300])
    assert np.isnan(sequence.logits()).any()
    sampler = _core.Sampler.chain([_core.Sampler.top_k(40), _core.Sampler.dist(1)])
    with pytest.raises(DecodeError, match="not numbers"):
        sampler.sample(sequence)
    sequence.context.memory.clear()
    assert same(evaluate(sequence, TOKENS[:100]), evaluate(evaluated(tiny(arch)), TOKENS[:100]))
