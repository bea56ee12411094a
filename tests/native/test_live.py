"""What stays in memory: the longest beginning that is at hand is found, and the RAM limit holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from native.ask import bits
from native.core import make_context, make_sequence
from numpy.typing import NDArray

from ipyllama import _core
from ipyllama.engine.live import WORTH_PARKING, Live, Start
from ipyllama.engine.schedule import piece_ends
from ipyllama.errors import Aborted
from ipyllama.ledger import Ledger

UNLIMITED = 1 << 30
A, B, C = ([1, *(262 + (n * n * step) % 94 for n in range(299))] for step in (1, 3, 7))
Make = Callable[..., Live]


@pytest.fixture
def make(tiny) -> Make:
    """A Live over a tiny model, as the engine makes it."""

    def live(arch: str = "llama", ram_limit: int = UNLIMITED) -> Live:
        window = 32 if arch == "gemma3" else 0
        can_trim = arch in ("llama", "gemma3")
        return Live(make_sequence(tiny(arch)), can_trim=can_trim, window=window, ram_limit=ram_limit)

    return live


def prefill(live: Live, tokens: list[int]) -> tuple[Start, NDArray[np.uint32]]:
    """Evaluate a prompt as the engine does; where it started, and the bits of its logits."""
    ends = piece_ends(Ledger().append_prompt(tokens))
    start = live.begin(tokens, ends)
    position = start.position
    for end in (end for end in ends if end > position):
        if end == len(tokens):
            live.checkpoint()
        live.evaluate(tokens[position:end])
        position = end
    assert live.sequence.tokens == tokens
    assert len(live) == len(tokens)
    return start, bits(live.sequence.logits())


@pytest.mark.parametrize("arch", ["llama", "gemma3", "mamba", "lfm2", "jamba"])
def test_whatever_came_before_the_logits_are_those_of_a_fresh_start(make: Make, arch: str) -> None:
    live, rng = make(arch), np.random.default_rng(5)
    prompts = [A, B, C, A[:270], [*A[:280], *B[280:]], A[:100], [*B[:257], *C[257:]]]
    fresh = [prefill(make(arch), prompt)[1] for prompt in prompts]
    for choice in rng.integers(0, len(prompts), 40):
        _, found = prefill(live, prompts[choice])
        assert np.array_equal(found, fresh[choice]), choice


@pytest.mark.parametrize("arch", ["llama", "mamba", "lfm2", "jamba"])
def test_a_branch_comes_back_from_ram(make: Make, arch: str) -> None:
    live = make(arch)
    assert prefill(live, A)[0] == Start()
    assert prefill(live, B)[0] == Start()
    assert prefill(live, A)[0] == Start(restored=299)
    assert prefill(live, B)[0] == Start(restored=299)
    assert live.parked_bytes > 0


def test_running_again_trims_one_token(make: Make) -> None:
    live = make()
    prefill(live, A)
    assert prefill(live, A)[0] == Start(reused=299)
    assert live.parked_bytes == 0  # one token is not worth a copy
    assert prefill(live, [*A[:290], *B[290:]])[0] == Start(reused=256)
    assert live.parked_bytes > 0
    assert len(A) - 256 >= WORTH_PARKING


def test_after_an_edit_running_again_trims_one_token_too(make: Make) -> None:
    live = make()
    prefill(live, A)
    edited = [*A[:256], *B[:144]]
    assert prefill(live, edited)[0] == Start(reused=256)
    assert prefill(live, edited)[0] == Start(reused=399)


@pytest.mark.parametrize("arch", ["mamba", "lfm2", "jamba"])
def test_what_cannot_be_trimmed_goes_back_to_a_copy(make: Make, arch: str) -> None:
    live = make(arch)
    prefill(live, A)
    assert prefill(live, A)[0] == Start(restored=299)
    assert prefill(live, [*A, 300])[0].position == 0  # the pieces differ at the end of A


def test_the_longer_of_live_and_parked_wins(make: Make) -> None:
    live = make()
    prefill(live, A)
    prefill(live, [*A[:256], *B[256:]])
    assert prefill(live, [*A[:299], 300])[0] == Start(restored=299)  # live would give 256
    assert prefill(live, [*A[:256], *C[256:]])[0] == Start(reused=256)  # RAM would give no more


def test_a_windowed_model_is_never_copied_beyond_its_window(make: Make) -> None:
    live = make("gemma3")
    prefill(live, A)
    prefill(live, B)
    assert live.parked_bytes == 0
    assert prefill(live, A)[0] == Start()


def size_of(make: Make, tokens: list[int]) -> int:
    live = make()
    prefill(live, tokens)
    return live.sequence.state_size()


def test_the_ram_limit_holds_and_the_oldest_goes_first(make: Make) -> None:
    one = size_of(make, A)
    live = make(ram_limit=2 * one + 1)
    for prompt in (A, B, C, A, B, C, B):
        prefill(live, prompt)
        assert live.parked_bytes <= 2 * one + 1
    live = make(ram_limit=2 * one + 1)
    for prompt in (A, B, C):
        prefill(live, prompt)  # A and B wait, C is live
    assert prefill(live, A)[0] == Start(restored=299)  # C pushes B out: A was used just now
    assert live.parked_bytes <= 2 * one + 1
    assert prefill(live, B)[0] == Start()
    assert prefill(live, C)[0] == Start(restored=299)


def test_room_for_one_only(make: Make) -> None:
    one = size_of(make, A)
    live = make(ram_limit=one)
    for prompt in (A, B, A, B, C, A):
        prefill(live, prompt)
        assert live.parked_bytes <= one
    assert prefill(live, C)[0] == Start(restored=299)
    assert live.parked_bytes <= one


def test_a_branch_over_the_limit_pushes_nothing_out(make: Make) -> None:
    small, large = A[:64], B
    live = make(ram_limit=2 * size_of(make, small))
    prefill(live, small)
    prefill(live, large)
    assert live.parked_bytes > 0
    prefill(live, C)
    assert prefill(live, small)[0] == Start(restored=63)


def test_no_ram_at_all(make: Make) -> None:
    live = make(ram_limit=0)
    prefill(live, A)
    prefill(live, B)
    assert live.parked_bytes == 0
    assert prefill(live, A)[0] == Start()


def test_a_longer_branch_takes_the_place_of_its_beginnings(make: Make) -> None:
    live = make()
    prefill(live, A[:100])
    prefill(live, B)
    prefill(live, A[:100])
    live.evaluate([300])  # goes on from there
    longer = live.sequence.state_size()
    prefill(live, C)
    assert live.parked_bytes == size_of(make, B) + longer
    assert prefill(live, A[:100])[0] == Start(restored=99)  # it is cut back to them


def test_release_forgets_everything(make: Make) -> None:
    live = make()
    prefill(live, A)
    prefill(live, B)
    live.release()
    assert (len(live), live.parked_bytes, len(live.sequence)) == (0, 0, 0)
    assert prefill(live, A)[0] == Start()


@pytest.mark.parametrize("arch", ["llama", "mamba", "jamba"])
def test_an_aborted_piece_leaves_whole_pieces_or_nothing(tiny: Callable[[str], Path], make: Make, arch: str) -> None:
    fresh = prefill(make(arch), A)[1]
    context = make_context(_core.Model.load(str(tiny(arch))))
    live = Live(_core.Sequence(context), can_trim=arch == "llama", window=0, ram_limit=UNLIMITED)
    ends = piece_ends(Ledger().append_prompt(A))
    live.begin(A, ends)
    live.evaluate(A[: ends[0]])
    context.abort()
    with pytest.raises(Aborted):
        live.evaluate(A[ends[0] : ends[1]])
    context.clear_abort()
    assert live.sequence.tokens == A[: len(live)]
    assert len(live) == ends[0]  # refused before it began: nothing is lost
    start, found = prefill(live, A)
    assert start == Start(reused=ends[0])
    assert np.array_equal(found, fresh)
