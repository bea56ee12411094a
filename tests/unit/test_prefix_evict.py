"""What is given up first."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from ipyllama.prefix.store.blocks import Entry
from ipyllama.prefix.store.evict import HALF_LIFE, eviction_order


def entry(n: int, parent: int, nbytes: int = 100, used: float | None = None) -> Entry:
    key = n.to_bytes(8, "big") + bytes(24)
    return Entry(f"blocks/{n}", key, parent.to_bytes(8, "big").hex(), nbytes, time.time() if used is None else used)


@st.composite
def forests(draw: st.DrawFn) -> list[Entry]:
    """Every block stands on an earlier one, or on 0, which is not there."""
    now = time.time()
    parents = [draw(st.integers(0, n)) for n in range(draw(st.integers(0, 30)))]
    ages = st.floats(-1e9, 1e9)
    return [entry(n + 1, parent, draw(st.integers(0, 10**6)), now + draw(ages)) for n, parent in enumerate(parents)]


@given(forests(), st.randoms(use_true_random=False))
def test_every_block_once_and_none_before_what_stands_on_it(entries: list[Entry], random) -> None:
    costs = {item.name: random.random() for item in entries}
    order = list(eviction_order(entries, lambda item: costs[item.name], {}))
    assert sorted(item.name for item in order) == sorted(item.name for item in entries)
    gone: set[str] = set()
    for item in order:
        on_it = [other.name for other in entries if other.parent == item.key.hex()[:16]]
        assert set(on_it) <= gone
        gone.add(item.name)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=20, unique=True))
def test_names_that_lie_are_given_up_as_well(pairs: list[tuple[int, int]]) -> None:
    """Circles, blocks that follow themselves, the same key twice: no chain has them, a folder may."""
    entries = [
        Entry(f"blocks/{n}", key.to_bytes(8, "big") * 4, parent.to_bytes(8, "big").hex(), 1, 0.0)
        for n, (key, parent) in enumerate(pairs)
    ]
    assert sorted(item.name for item in eviction_order(entries, lambda item: 1.0, {})) == sorted(
        e.name for e in entries
    )


def test_fewest_seconds_per_byte_go_first() -> None:
    now = time.time()
    entries = [entry(1, 0, 100), entry(2, 0, 1000), entry(3, 0, 100, now - HALF_LIFE), entry(4, 0, 100, now + 1e8)]
    costs = {1: 1.0, 2: 4.0, 3: 1.9, 4: 0.9}
    order = [item.name for item in eviction_order(entries, lambda item: costs[int(item.name[7:])], {})]
    assert order == ["blocks/2", "blocks/4", "blocks/3", "blocks/1"]
