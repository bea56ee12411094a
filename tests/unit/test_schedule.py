"""The evaluation schedule: a function of the ledger alone, the same for whoever starts in the middle."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from native.ask import schedule

from ipyllama.engine.schedule import PIECE, piece_ends, shared_end
from ipyllama.ledger import Ledger

PARTS = st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 2), max_size=20)), max_size=6)
Parts = list[tuple[bool, list[int]]]


def build(parts: Parts) -> Ledger:
    ledger = Ledger()
    for sampled, tokens in parts:
        ledger = ledger.append_sampled(tokens) if sampled else ledger.append_prompt(tokens)
    return ledger


@pytest.mark.parametrize(
    ("n", "ends"),
    [
        (0, []),
        (1, [1]),
        (2, [1, 2]),
        (256, [255, 256]),
        (257, [256, 257]),
        (258, [256, 257, 258]),
        (600, [256, 512, 599, 600]),
        (769, [256, 512, 768, 769]),
    ],
)
def test_a_prompt_is_cut_at_multiples_and_before_its_last_token(n: int, ends: list[int]) -> None:
    assert piece_ends(build([(False, [1] * n)])) == ends


def test_turns_are_cut_at_their_ends_and_sampled_tokens_stand_alone() -> None:
    ledger = build([(False, [1] * 300), (True, [2] * 3), (False, [3] * 250)])
    assert piece_ends(ledger) == [256, 299, 300, 301, 302, 303, 512, 552, 553]


@given(PARTS, st.integers(1, 8))
def test_the_schedule_is_its_definition(parts: Parts, piece: int) -> None:
    ledger = build(parts)
    assert piece_ends(ledger, piece) == schedule([(s.tokens, s.sampled) for s in ledger.segments], piece)


@given(PARTS, PARTS, st.integers(1, 8))
def test_continuing_changes_no_earlier_piece(parts: Parts, more: Parts, piece: int) -> None:
    """Whatever is appended, the pieces so far stay: this is why a follow-up loses nothing."""
    ledger = build(parts)
    longer = ledger
    for sampled, tokens in more:
        longer = longer.append_sampled(tokens) if sampled else longer.append_prompt(tokens)
    ends = piece_ends(ledger, piece)
    assert piece_ends(longer, piece)[: len(ends)] == ends


@given(PARTS, PARTS, st.integers(1, 8))
def test_both_runs_have_evaluated_the_same_batches_up_to_the_shared_end(a: Parts, b: Parts, piece: int) -> None:
    one, two = build(a), build(b)
    ends, other = piece_ends(one, piece), piece_ends(two, piece)
    shared = shared_end(one.tokens, ends, two.tokens, other)
    assert one.tokens[:shared] == two.tokens[:shared]
    assert [end for end in ends if end <= shared] == [end for end in other if end <= shared]
    assert shared == 0 or shared in ends
    following = (next((end for end in e if end > shared), None) for e in (ends, other))
    first, second = following
    if first is not None and first == second:  # no longer one would do
        assert one.tokens[:first] != two.tokens[:first]


def test_the_same_tokens_cut_otherwise_are_not_shared() -> None:
    tokens = list(range(10))
    as_prompt, in_turns = build([(False, tokens)]), build([(False, tokens[:4]), (False, tokens[4:])])
    assert shared_end(tokens, piece_ends(as_prompt), tokens, piece_ends(in_turns)) == 0
    sampled = build([(False, tokens[:4]), (True, tokens[4:])])
    assert shared_end(tokens, piece_ends(in_turns), tokens, piece_ends(sampled)) == 4


def test_an_edit_loses_one_piece_at_most() -> None:
    before, after = [1] * 1000, [1] * 900 + [2] * 100
    ends = piece_ends(build([(False, before)]))
    shared = shared_end(before, ends, after, piece_ends(build([(False, after)])))
    assert shared == 768
    assert 900 - shared < PIECE
