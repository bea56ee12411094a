"""What is at hand for a prompt: the longest beginning is put together from what is live, in RAM and on disk, and the
logits are always those of a start from nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from native.ask import bits
from native.core import make_context
from numpy.typing import NDArray

from ipyllama import _core
from ipyllama.engine import Start, piece_ends
from ipyllama.errors import Aborted
from ipyllama.ledger import Ledger
from ipyllama.loading import LoadOptions
from ipyllama.prefix import PrefixMemory
from ipyllama.prefix.binding import binding
from ipyllama.prefix.live import Live

ARCHS = ("llama", "gemma3", "mamba", "lfm2", "jamba")
A, B, C = ([1, *(262 + (n * n * step) % 94 for n in range(299))] for step in (1, 3, 7))
Make = Callable[..., Live]


@pytest.fixture
def make(tiny) -> Make:
    """A Live over a tiny model, as `load` makes it, with a memory that keeps everything in RAM."""

    def live(arch: str = "llama", memory: PrefixMemory | None = None, context: _core.Context | None = None) -> Live:
        path: Path = tiny(arch)
        model = _core.Model.load(str(path))
        bound = (memory or PrefixMemory()).bind(binding("tiny", path, model, LoadOptions(n_threads=1)))
        can_trim = not (model.is_recurrent or model.is_hybrid)
        context = context or make_context(model)
        return Live(_core.Sequence(context), bound, context.n_ctx, can_trim=can_trim)

    return live


def prefill(live: Live, tokens: list[int]) -> tuple[Start, NDArray[np.uint32]]:
    """Evaluate a prompt as the engine does; where it started, and the bits of its logits."""
    ledger = Ledger().append_prompt(tokens)
    start = live.begin(ledger)
    position = start.position
    for end in (end for end in piece_ends(ledger) if end > position):
        live.evaluate(tokens[position:end])
        assert live.proven(tokens[position:end])
        position = end
    logits = bits(live.sequence.logits())
    live.finish(ledger)
    assert live.sequence.tokens == tokens
    assert len(live) == len(tokens)
    return start, logits


@pytest.mark.parametrize("where", ["RAM", "disk", "both"])
@pytest.mark.parametrize("arch", ARCHS)
def test_whatever_came_before_the_logits_are_those_of_a_fresh_start(
    make: Make, tmp_path: Path, arch: str, where: str
) -> None:
    memory = PrefixMemory(None if where == "RAM" else tmp_path, ram_limit=0 if where == "disk" else "1G")
    live, rng = make(arch, memory), np.random.default_rng(5)
    prompts = [A, B, C, A[:270], [*A[:280], *B[280:]], A[:100], [*A[:257], *C[257:]]]
    fresh = [prefill(make(arch), prompt)[1] for prompt in prompts]
    restored = 0
    for choice in rng.integers(0, len(prompts), 40):
        start, found = prefill(live, prompts[choice])
        restored += start.restored
        memory.flush()
        assert np.array_equal(found, fresh[choice]), choice
    assert restored > 1000


@pytest.mark.parametrize("arch", ARCHS)
def test_a_new_process_computes_one_token(make: Make, tmp_path: Path, arch: str) -> None:
    first = PrefixMemory(tmp_path)
    computed = prefill(make(arch, first), A)
    first.flush()
    again = prefill(make(arch, PrefixMemory(tmp_path)), A)
    assert (computed[0], again[0]) == (Start(), Start(restored=299))
    assert np.array_equal(again[1], computed[1])


@pytest.mark.parametrize("arch", ARCHS)
def test_a_branch_comes_back_from_ram(make: Make, arch: str) -> None:
    live = make(arch)
    assert prefill(live, A)[0] == Start()
    assert prefill(live, B)[0] == Start()
    assert prefill(live, A)[0] == Start(restored=299)
    assert prefill(live, B)[0] == Start(restored=299)


@pytest.mark.parametrize("how", ["clear", "off and on"])
def test_what_is_live_and_no_longer_kept_is_saved_again(make: Make, tmp_path: Path, how: str) -> None:
    live = make(memory=PrefixMemory(tmp_path))
    live.memory.paused = how == "off and on"
    prefill(live, A)
    live.memory.clear()
    live.memory.paused = False
    edited = [*A[:280], *B[280:]]
    assert prefill(live, edited)[0] == Start(reused=256)
    live.memory.flush()
    assert prefill(make(memory=PrefixMemory(tmp_path)), edited)[0] == Start(restored=299)


def test_what_has_no_room_is_not_saved_over_and_over(make: Make) -> None:
    whole = make()
    prefill(whole, A)
    live = make(memory=PrefixMemory(ram_limit=whole.memory.ram.nbytes * 2 // 3))
    prefill(live, A)
    assert prefill(live, [*A[:280], *B[280:]])[0] == Start(reused=256)
    assert live.memory.counts.saved == 3  # two blocks, and the one that is new


def test_running_again_trims_one_token(make: Make) -> None:
    live = make()
    prefill(live, A)
    assert prefill(live, A)[0] == Start(reused=299)
    assert prefill(live, [*A[:290], *B[290:]])[0] == Start(reused=256)
    assert prefill(live, A)[0] == Start(reused=256, restored=43)  # the rest comes back


@pytest.mark.parametrize("arch", ["mamba", "lfm2", "jamba"])
def test_what_cannot_be_trimmed_goes_back_to_a_copy(make: Make, arch: str) -> None:
    live = make(arch)
    prefill(live, A)
    assert prefill(live, A)[0] == Start(restored=299)
    assert prefill(live, [*A, 300])[0].position == 256  # the pieces differ at the end of A


def test_nothing_is_kept_where_nothing_may_be(make: Make) -> None:
    live = make(memory=PrefixMemory(ram_limit=0))
    prefill(live, A)
    prefill(live, B)
    assert live.memory.ram.nbytes == 0
    assert prefill(live, A)[0] == Start()


@pytest.mark.parametrize("arch", ARCHS)
def test_a_state_that_is_not_the_prompts_is_found_out(make: Make, arch: str) -> None:
    """The block of another prompt under this one's key, checksums and all: the logits that follow give it away."""
    live = make(arch)
    fresh = prefill(live, A)[1]
    others = {link.end: link for link in live._links}
    prefill(live, B)
    ram = live.memory.ram
    for link in live._links:
        wrong, right = ram.get(link.key), ram.get(others[link.end].key)
        assert wrong is not None
        assert right is not None
        ram.put(replace(right, state=wrong.state))
    ledger = Ledger().append_prompt(A)
    assert live.begin(ledger) == Start(restored=299)
    live.evaluate(A[299:])
    assert not live.proven(A[299:])
    assert (len(live), live.memory.counts.damaged != []) == (0, True)
    start, again = prefill(live, A)
    assert (start, np.array_equal(again, fresh)) == (Start(), True)


@pytest.mark.parametrize("arch", ["llama", "mamba", "jamba"])
def test_an_aborted_piece_leaves_whole_pieces_or_nothing(tiny, make: Make, arch: str) -> None:
    fresh = prefill(make(arch), A)[1]
    context = make_context(_core.Model.load(str(tiny(arch))))
    live = make(arch, PrefixMemory(ram_limit=0), context)
    ledger = Ledger().append_prompt(A)
    ends = piece_ends(ledger)
    live.begin(ledger)
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


def read(live: Live, ledger: Ledger) -> tuple[Start, NDArray[np.uint32]]:
    """As `prefill`, for a ledger of several segments."""
    start = live.begin(ledger)
    position = start.position
    for end in (end for end in piece_ends(ledger) if end > position):
        live.evaluate(ledger.tokens[position:end])
        position = end
    logits = bits(live.sequence.logits())
    live.finish(ledger)
    return start, logits


def test_a_prompt_that_could_not_begin_saves_nothing_of_another(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Ledger()
    for n in range(10):
        turns = turns.append_prompt(B[20 * n : 20 * n + 20])
    fresh = read(make(), turns)[1]
    live = make()
    prefill(live, A)
    with monkeypatch.context() as patch:
        patch.setattr(type(live.memory), "ask_remote", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            live.begin(turns)
        live.finish(turns)  # as the engine does, whatever happened
    for ledger in (turns, Ledger().append_prompt(A), turns):
        start, found = read(live, ledger)
    assert (start.restored, np.array_equal(found, fresh)) == (199, True)


def test_what_other_threads_computed_costs_nothing_that_is_live(make: Make) -> None:
    theirs, live = make(), make(memory=PrefixMemory(ram_limit="1G"))
    prefill(theirs, A)
    prefill(live, A[:290])
    for block in theirs.memory.ram.blocks():
        if block.link.end > 256:
            live.memory.ram.put(replace(block, origin=replace(block.origin, n_threads=9)))
    start, _ = prefill(live, A)
    assert start == Start(reused=256)


@pytest.mark.parametrize("arch", ["mamba", "lfm2", "jamba"])
def test_what_has_moved_on_is_not_kept_and_costs_no_answer(make: Make, arch: str) -> None:
    turns = Ledger().append_prompt(A[:258])
    live = make(arch)
    live.memory.paused = True
    read(live, turns)
    live.memory.paused = False
    longer = turns.append_prompt(A[258:])
    start, found = read(live, longer)
    assert (start.reused, np.array_equal(found, read(make(arch), longer)[1])) == (258, True)


@pytest.mark.parametrize("harm", ["off", "cleared"])
@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_what_was_not_kept_is_kept_with_what_follows(make: Make, tmp_path: Path, arch: str, harm: str) -> None:
    live = make(arch, PrefixMemory(tmp_path))
    live.memory.paused = harm == "off"
    prefill(live, A[:258])
    live.memory.paused = False
    if harm == "cleared":
        live.memory.flush()
        live.memory.clear()
    fresh = prefill(live, A)[1]
    live.memory.flush()
    again = make(arch, PrefixMemory(tmp_path))
    start, found = prefill(again, A)
    assert np.array_equal(found, fresh)
    assert start.restored == 299
