"""The ledger: origins and segment ends survive every operation."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ipyllama.ledger import Ledger, Segment

SEGMENTS = st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 3), max_size=5)), max_size=6)


def build(parts: list[tuple[bool, list[int]]]) -> Ledger:
    ledger = Ledger()
    for sampled, tokens in parts:
        ledger = ledger.append_sampled(tokens) if sampled else ledger.append_prompt(tokens)
    return ledger


def test_prompt_segments_stay_apart_and_sampled_ones_join() -> None:
    ledger = build([(False, [1]), (False, [2]), (True, [3]), (True, [4])])
    assert ledger.segments == (Segment((1,), False), Segment((2,), False), Segment((3, 4), True))
    assert ledger.tokens == (1, 2, 3, 4)
    assert ledger.sampled == (False, False, True, True)


def test_appending_nothing_gives_the_same_ledger() -> None:
    ledger = build([(False, [1])])
    assert ledger.append_prompt(()) is ledger
    assert ledger.append_sampled(()) is ledger


@given(SEGMENTS)
def test_flags_follow_tokens(parts: list[tuple[bool, list[int]]]) -> None:
    expected = [(token, sampled) for sampled, tokens in parts for token in tokens]
    ledger = build(parts)
    assert list(zip(ledger.tokens, ledger.sampled, strict=True)) == expected
    assert len(ledger) == len(expected)
    assert all(segment.tokens for segment in ledger.segments)


@given(SEGMENTS, st.integers(0, 40))
def test_a_head_keeps_origins_and_ends(parts: list[tuple[bool, list[int]]], n: int) -> None:
    ledger = build(parts)
    head = ledger.head(n)
    assert head.tokens == ledger.tokens[:n]
    assert head.sampled == ledger.sampled[:n]
    assert head.segments[:-1] == ledger.segments[: max(len(head.segments) - 1, 0)]
    assert ledger.head(len(ledger)) == ledger


@given(SEGMENTS, SEGMENTS)
def test_the_common_prefix_is_the_longest(a: list[tuple[bool, list[int]]], b: list[tuple[bool, list[int]]]) -> None:
    one, two = build(a), build(b)
    n = one.common_prefix(two)
    assert one.tokens[:n] == two.tokens[:n]
    assert n == min(len(one), len(two)) or one.tokens[n] != two.tokens[n]
    assert n == two.common_prefix(one)
