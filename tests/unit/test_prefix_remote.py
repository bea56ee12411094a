"""The remote tier: what others have computed is found, and whatever the network does, nobody waits for it longer than
computing would take."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from blocks import bound, is_true, make_block, make_chain
from slow_fs import StormyFileSystem, weather

from ipyllama.ledger import Ledger
from ipyllama.prefix import Block, FsspecBackend, PrefixMemory
from ipyllama.prefix.keys import Link
from ipyllama.prefix.store.blocks import BlockStore
from ipyllama.prefix.store.tier import RemoteOptions

URL = "stormy://shared/prefix"
TOKENS = list(range(100, 165))
LEDGER = Ledger().append_prompt(TOKENS)
LINKS = make_chain(TOKENS[:64])


@pytest.fixture(autouse=True)
def _calm() -> Iterator[None]:
    StormyFileSystem.store.clear()
    weather.reset()
    yield
    weather.hang.set()
    time.sleep(0.05)
    weather.reset()


def links_of(memory: PrefixMemory, ledger: Ledger = LEDGER) -> list[Link]:
    return [link for link in memory.links(ledger) if link.end < len(ledger)]


@pytest.fixture
def shared() -> list[Block]:
    """What somebody else has saved at the remote."""
    store, memory = BlockStore(FsspecBackend(URL)), bound(PrefixMemory())
    blocks = [make_block(link) for link in links_of(memory)]
    for block in blocks:
        store.write(block)
    weather.reset()
    return blocks


def restore(memory: PrefixMemory, ledger: Ledger = LEDGER) -> list[Block]:
    """As a cell does: what is at hand is brought here, up to the first block that does not come."""
    links = links_of(memory, ledger)
    memory.ask_remote(links)
    blocks: list[Block] = []
    for found in memory.find(links):
        if (block := memory.load(found)) is None:
            break
        blocks.append(block)
    assert all(is_true(block) for block in blocks)
    return blocks


def fast(memory: PrefixMemory, seconds: float) -> PrefixMemory:
    """Computing the whole prompt takes so long."""
    memory.rates.prefill.per_second = len(TOKENS) / seconds
    memory.rates.bytes_per_token = 1.0
    return memory


def test_what_others_computed_comes_here_and_stays(tmp_path: Path, shared: list[Block]) -> None:
    memory = bound(PrefixMemory(tmp_path, remote=URL))
    assert str(memory.check(LEDGER)).startswith("64 of 65 tokens are at hand (64 in remote)")
    assert [block.link for block in restore(memory)] == [block.link for block in shared]
    memory.flush(60)
    assert memory.stats().disk_blocks == memory.stats().ram_blocks == len(shared)
    StormyFileSystem.store.clear()
    assert len(restore(bound(PrefixMemory(tmp_path)))) == len(shared)
    assert memory.stats().problem == ""


def test_a_whole_chain_is_asked_for_at_once(shared: list[Block]) -> None:
    weather.delay = 0.2
    memory = bound(PrefixMemory(remote=URL))
    began = time.perf_counter()
    assert memory.check(LEDGER).n_found == 64
    assert weather.requests == ["info"] * len(shared)
    assert time.perf_counter() - began < 0.2 * len(shared) / 2
    assert len(restore(memory)) == len(shared)
    assert weather.most_at_once > 4


def test_a_no_is_remembered_for_a_while() -> None:
    memory = bound(PrefixMemory(remote=URL))
    assert restore(memory) == []
    n = len(weather.requests)
    assert restore(memory) == []
    assert len(weather.requests) == n <= len(LINKS)


def test_what_is_saved_is_sent_if_asked(tmp_path: Path) -> None:
    for write_through in (False, True):
        memory = bound(PrefixMemory(tmp_path / str(write_through), remote=URL, write_through=write_through))
        for link in links_of(memory):
            memory.save(make_block(link))
        assert memory.flush(60)
        assert memory.stats().disk_blocks == len(LINKS)
        assert len(restore(bound(PrefixMemory(remote=URL)))) == (len(LINKS) if write_through else 0)


def test_a_location_elsewhere_is_written_to() -> None:
    memory = bound(PrefixMemory(URL))
    assert (memory.location, memory.places) == (None, ("", URL))
    for link in links_of(memory):
        memory.save(make_block(link))
    memory.flush(60)
    assert len(restore(bound(PrefixMemory(URL)))) == len(LINKS)


@pytest.mark.filterwarnings("ignore:stormy")
def test_a_remote_that_hangs_costs_no_more_than_computing(tmp_path: Path, shared: list[Block]) -> None:
    weather.hang.clear()
    for seconds, timeout in ((0.3, 60.0), (60.0, 0.3)):
        memory = fast(bound(PrefixMemory(tmp_path, remote=URL, remote_timeout=timeout)), seconds)
        began = time.perf_counter()
        assert restore(memory) == []
        assert 0.25 < time.perf_counter() - began < 1.5
        began = time.perf_counter()
        assert restore(memory) == []  # left alone for a while
        assert time.perf_counter() - began < 0.1


@pytest.mark.filterwarnings("ignore:stormy")
def test_asking_and_loading_share_the_time(shared: list[Block]) -> None:
    memory = fast(bound(PrefixMemory(remote=URL)), 1.0)
    memory.ask_remote(links_of(memory))
    found = memory.find(links_of(memory))
    time.sleep(0.5)
    weather.hang.clear()
    began = time.perf_counter()
    assert memory.load(found[0]) is None
    assert time.perf_counter() - began < 0.9


@pytest.mark.filterwarnings("ignore:stormy")
def test_what_comes_too_late_is_there_the_next_time(tmp_path: Path, shared: list[Block]) -> None:
    memory = fast(bound(PrefixMemory(tmp_path, remote=URL)), 0.5)
    memory.ask_remote(links_of(memory))
    weather.hang.clear()
    assert memory.load(memory.find(links_of(memory))[0]) is None
    weather.hang.set()
    deadline = time.monotonic() + 30
    while memory.stats().disk_blocks < 8 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(restore(bound(PrefixMemory(tmp_path)))) >= 8


def test_a_failure_is_told_once_and_the_pauses_grow(shared: list[Block], monkeypatch: pytest.MonkeyPatch) -> None:
    weather.error = True
    now = time.monotonic()
    memory = bound(PrefixMemory(remote=URL))
    with pytest.warns(UserWarning, match="RuntimeError: the cable is cut: work goes on without it") as told:
        restore(memory)
    assert len(told) == 1
    assert "the cable is cut" in memory.stats().problem
    tried = []
    real = time.monotonic
    for second in range(0, 200):
        monkeypatch.setattr(time, "monotonic", lambda at=now + second: at + real() - now)
        n = len(weather.requests)
        assert restore(memory) == []
        if len(weather.requests) > n:
            tried.append(second)
    gaps = [b - a for a, b in pairwise(tried)]
    assert len(tried) <= 8
    assert all(later > 1.5 * earlier for earlier, later in pairwise(gaps))
    weather.error = False
    monkeypatch.setattr(time, "monotonic", lambda: real() + 10_000)
    assert len(restore(memory)) == len(shared)
    assert memory.stats().problem == ""


def test_a_warning_that_is_an_error_ends_no_answer(shared: list[Block]) -> None:
    weather.error = True
    memory = bound(PrefixMemory(remote=URL))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert restore(memory) == []
    assert "the cable is cut" in memory.stats().problem


def test_a_slow_remote_is_asked_less_and_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """That it answers questions in time does not make it fast enough."""
    memory = fast(bound(PrefixMemory(remote=URL, ram_limit=0, verbose=0)), 0.3)
    prompts = [Ledger().append_prompt(range(1000 * n, 1000 * n + 65)) for n in range(1, 8)]
    store = BlockStore(FsspecBackend(URL))
    for prompt in prompts:
        for link in links_of(memory, prompt):
            store.write(make_block(link))
    weather.fetch_delay = 0.6
    real, tried = time.monotonic, []
    for second in range(40):
        monkeypatch.setattr(time, "monotonic", lambda at=second: at + real())
        n = weather.requests.count("cat")
        assert restore(memory, prompts[len(tried)]) == []
        if weather.requests.count("cat") > n:
            tried.append(second)
            time.sleep(0.7)  # its threads are free again
    gaps = [b - a for a, b in pairwise(tried)]
    assert 4 <= len(tried) <= 5
    assert all(later > 1.5 * earlier for earlier, later in pairwise(gaps))


def test_damage_from_elsewhere_is_refused(tmp_path: Path, shared: list[Block]) -> None:
    weather.flip = True
    memory = bound(PrefixMemory(tmp_path, remote=URL))
    with pytest.warns(UserWarning, match="a block from stormy://shared/prefix is of no use: its state is damaged"):
        assert restore(memory) == []
    memory.flush(60)
    assert memory.stats().disk_blocks == memory.stats().ram_blocks == 0
    assert len(list(BlockStore(FsspecBackend(URL)).entries())) == len(shared)  # others' folder: nothing is moved in it


@pytest.mark.filterwarnings("ignore:stormy", "ignore:nothing is sent")
def test_sending_never_holds_up_and_reading_goes_on_without_it(tmp_path: Path, shared: list[Block]) -> None:
    memory = bound(PrefixMemory(tmp_path, remote=URL, write_through=True, remote_timeout=0.3))
    weather.hang.clear()
    began = time.perf_counter()
    for link in make_chain(range(1000, 1400)):
        memory.save(make_block(link, 100_000))
    assert time.perf_counter() - began < 1.0
    assert not memory.flush(60)
    assert memory.stats().disk_blocks == 100
    weather.error = True
    weather.hang.set()
    memory.flush(60)
    weather.error = False
    assert "nothing is sent to" in memory.stats().problem
    assert len(restore(memory)) == len(shared)


def test_exit_does_not_wait_for_a_remote_that_hangs(tmp_path: Path) -> None:
    code = """
import warnings; warnings.simplefilter("ignore")
from slow_fs import weather
from blocks import bound, make_block, make_chain
from ipyllama.prefix import PrefixMemory
weather.hang.clear()
memory = bound(PrefixMemory(FOLDER, remote="stormy://a/b", write_through=True, remote_timeout=0.5))
for link in make_chain(range(40)):
    memory.save(make_block(link))
print(memory.check(range(100, 150)).n_found)
"""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code.replace("FOLDER", repr(str(tmp_path)))],
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
        cwd=Path(__file__).parents[1],
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")
    assert time.perf_counter() - began < 20
    assert bound(PrefixMemory(tmp_path)).stats().disk_blocks == 10


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:stormy")
def test_a_forked_process_asks_with_threads_of_its_own(shared: list[Block]) -> None:
    """The parent's all hang, and are not there."""
    memory = bound(PrefixMemory(remote=URL, remote_timeout=0.2))
    weather.hang.clear()
    assert restore(memory) == []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer versions of Python warn of forks beside threads
        child = os.fork()
    if child == 0:
        try:
            weather.reset()
            real = time.monotonic
            time.monotonic = lambda: real() + 1000.0  # the pause is over
            memory.remote.options = RemoteOptions(timeout=30.0)
            os._exit(0 if len(restore(memory)) == len(shared) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
