"""Saving: within the limits, by age, and again after what went wrong is over."""

from __future__ import annotations

import os
import time
import warnings
from pathlib import Path

import pytest
from blocks import ORIGIN, bound, disk_bytes, is_true, local_store, make_block, make_chain, number
from hypothesis import given, settings
from hypothesis import strategies as st

from ipyllama.errors import BadOption
from ipyllama.prefix import Block, LocalBackend, Origin, PrefixMemory
from ipyllama.prefix.store.blocks import Usage, block_name
from ipyllama.prefix.store.writer import QUARANTINED, TENDED, Writer

DAY = 86400.0


def make_writer(folder: Path, bytes_limit: int = 10**9, age_limit: float | None = None) -> Writer:
    return Writer(local_store(folder), bytes_limit, warnings.warn, age_limit)


def age(folder: Path, block: Block, seconds: float) -> None:
    """Make a block's last use that long ago."""
    at = time.time() - seconds
    os.utime(folder / block_name(block.link.parent, block.link.key), (at, at))


def tend_again(writer: Writer) -> None:
    """A day has gone by."""
    usage = writer.store.usage()
    assert usage is not None
    writer.store.set_usage(Usage(usage.nbytes, usage.counted - TENDED - 1))


def kept(writer: Writer) -> set[bytes]:
    return {entry.key for entry in writer.store.entries()}


@settings(max_examples=20)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 3000)), min_size=1, max_size=40), st.integers(4000, 20_000)
)
def test_the_limit_holds_after_every_block(tmp_path_factory, sizes: list[tuple[int, int]], limit: int) -> None:
    folder = tmp_path_factory.mktemp("store")
    writer = make_writer(folder, limit)
    links = make_chain(range(4 * 31))
    for n, nbytes in sizes:
        writer.write(make_block(links[n], nbytes))
        assert disk_bytes(folder) <= limit
    usage = writer.store.usage()
    assert usage is not None
    assert usage.nbytes == disk_bytes(folder)


def test_a_count_that_is_wrong_or_gone_is_taken_anew(tmp_path: Path) -> None:
    writer = make_writer(tmp_path, 5000)
    for n in range(3):
        writer.write(make_block(number(n)))
    for content in (
        b"",
        b"{}",
        b'{"nbytes": -5, "counted": 1}',
        b'{"nbytes": 1e999, "counted": 1}',
        b"[" * 60_000,
        b"\x80",
    ):
        (tmp_path / "usage").write_bytes(content)
        writer.write(make_block(number(n := n + 1)))
        usage = writer.store.usage()
        assert usage is not None
        assert usage.nbytes == disk_bytes(tmp_path) <= 5000


def test_what_lies_in_quarantine_counts_and_goes_first(tmp_path: Path) -> None:
    writer = make_writer(tmp_path, 6500)
    blocks = [make_block(number(n)) for n in range(5)]
    for block in blocks[:3]:
        writer.write(block)
    writer.store.quarantine(blocks[0].link.parent, blocks[0].link.key)
    writer.write(blocks[3])
    assert (len(list(writer.store.quarantined())), disk_bytes(tmp_path) <= 6500) == (1, True)
    writer.write(blocks[4])
    assert (len(list(writer.store.quarantined())), disk_bytes(tmp_path) <= 6500) == (0, True)
    assert kept(writer) == {block.link.key for block in blocks[1:]}


def test_what_was_not_used_for_too_long_goes_by_itself_once_a_day(tmp_path: Path) -> None:
    writer = make_writer(tmp_path, age_limit=30 * DAY)
    old, young, later, damaged = (make_block(number(n)) for n in range(4))
    for block in (old, young, damaged):
        writer.write(block)
    writer.store.quarantine(damaged.link.parent, damaged.link.key)
    age(tmp_path, old, 31 * DAY)
    lost = tmp_path / "quarantine" / block_name(damaged.link.parent, damaged.link.key).rpartition("/")[2]
    os.utime(lost, (time.time() - QUARANTINED - 1,) * 2)
    writer.write(later)
    assert old.link.key in kept(writer)  # looked at less than a day ago
    tend_again(writer)
    writer.write(make_block(number(9)))
    assert old.link.key not in kept(writer)
    assert {young.link.key, later.link.key} <= kept(writer)
    assert list(writer.store.quarantined()) == []


def test_the_beginning_of_what_is_used_stays(tmp_path: Path) -> None:
    """A chain's first blocks may be served from RAM, and never be read from disk."""
    writer = make_writer(tmp_path)
    blocks = [make_block(link) for link in make_chain(range(12))]
    for block in blocks:
        writer.write(block)
    for block in blocks[:2]:
        age(tmp_path, block, 90 * DAY)
    assert writer.reduce(10**9, None, 30 * DAY) == 0
    age(tmp_path, blocks[2], 90 * DAY)
    assert writer.reduce(10**9, None, 30 * DAY) == 3


@pytest.mark.parametrize("jump", [-3650 * DAY, -2 * DAY, 2 * DAY, 3650 * DAY])
def test_clock_jumps_cost_nothing_but_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump: float) -> None:
    writer = make_writer(tmp_path, 6000, age_limit=30 * DAY)
    blocks = [make_block(number(n)) for n in range(8)]
    real = time.time
    for n, block in enumerate(blocks):
        if n == 4:
            monkeypatch.setattr(time, "time", lambda: real() + jump)
        writer.write(block)
        assert disk_bytes(tmp_path) <= 6000
        found = writer.store.read(block.link.parent, block.link.key)
        assert found is not None
        assert is_true(found)
    usage = writer.store.usage()
    assert usage is not None
    assert usage.nbytes == disk_bytes(tmp_path)


def test_a_block_from_the_future_grows_old_all_the_same(tmp_path: Path) -> None:
    writer = make_writer(tmp_path, age_limit=30 * DAY)
    block = make_block(number(1))
    writer.write(block)
    age(tmp_path, block, -3650 * DAY)
    tend_again(writer)
    writer.write(make_block(number(2)))
    (used,) = (entry.used for entry in writer.store.entries() if entry.key == block.link.key)
    assert abs(used - time.time()) < 60


def test_items_are_limited_least_valuable_first(tmp_path: Path) -> None:
    writer = make_writer(tmp_path)
    blocks = [make_block(number(n), seconds=float(n)) for n in range(6)]
    for block in blocks:
        writer.write(block)
    assert writer.reduce(10**9, 2, None) == 4
    assert kept(writer) == {blocks[4].link.key, blocks[5].link.key}
    fresh = make_writer(tmp_path)  # knows costs from the headers alone
    assert fresh.reduce(10**9, 1, None) == 1
    assert kept(fresh) == {blocks[5].link.key}


def test_what_another_build_made_is_replaced(tmp_path: Path) -> None:
    writer, link = make_writer(tmp_path), number(1)
    assert writer.write(make_block(link, origin=Origin("other", 2)))
    assert writer.write(make_block(link))
    assert not writer.write(make_block(link))
    assert writer.store.origin(link.parent, link.key) == ORIGIN


def test_saving_begins_again_when_the_reason_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ipyllama.prefix.store.writer.RETRY", 0.05)
    folder = tmp_path / "store"
    folder.write_text("in the way")
    memory = bound(PrefixMemory(folder))
    memory.save(make_block(number(1)))
    with pytest.warns(UserWarning, match="is a link or no folder: remove it"):
        memory.flush(60)
    assert "is a link or no folder" in memory.stats().problem
    memory.save(make_block(number(2)))
    memory.flush(60)
    folder.unlink()
    time.sleep(0.3)
    memory.save(make_block(number(3)))
    memory.flush(60)
    assert (memory.stats().problem, memory.stats().disk_blocks) == ("", 1)


def test_a_warning_that_is_an_error_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("in the way")
    memory = bound(PrefixMemory(tmp_path / "store"))
    for n in range(3):  # the tests turn warnings into errors, and there is nobody to raise them to
        memory.save(make_block(number(n)))
        assert memory.flush(60)
    assert "is a link or no folder" in memory.stats().problem


def test_a_busy_store_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ipyllama.prefix.store.local.LOCK_PATIENCE", 0.1)
    monkeypatch.setattr("ipyllama.prefix.store.writer.BUSY", 0.0)
    memory = bound(PrefixMemory(tmp_path))
    with LocalBackend(tmp_path).lock():
        memory.save(make_block(number(1)))
        memory.flush(60)
    memory.save(make_block(number(2)))
    memory.flush(60)
    assert (memory.stats().problem, memory.stats().disk_blocks) == ("", 1)


def test_a_busy_store_is_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At exit, say: a process that was stopped while it held the lock never lets it go."""
    monkeypatch.setattr("ipyllama.prefix.store.local.LOCK_PATIENCE", 1.0)
    memory = bound(PrefixMemory(tmp_path))
    with LocalBackend(tmp_path).lock():
        began = time.monotonic()
        for n in range(20):
            memory.save(make_block(number(n)))
        assert memory.writer is not None
        memory.writer.close()
        assert time.monotonic() - began < 10


def test_nothing_is_larger_than_the_limit(tmp_path: Path) -> None:
    memory = bound(PrefixMemory(tmp_path, bytes_limit=500))
    memory.save(make_block(number(1)))
    memory.flush(60)
    assert memory.stats().disk_blocks == 0


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf")])
def test_a_remote_is_waited_for_some_time(timeout: float) -> None:
    with pytest.raises(BadOption, match="remote_timeout is a number of seconds above 0"):
        PrefixMemory(remote="memory://a", remote_timeout=timeout)


def test_a_remote_is_named_once() -> None:
    with pytest.raises(BadOption, match="memory://a is a remote already"):
        PrefixMemory("memory://a", remote="memory://b")
