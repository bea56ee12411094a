"""The disk is full, read-only, or somebody deletes the folder: one warning, and work goes on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from blocks import bound, is_true, local_store, make_block, make_chain, number

from ipyllama.prefix import PrefixMemory
from ipyllama.prefix.store.blocks import block_name

LINKS = make_chain(range(400))
NOBODY = 65534


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of two megabytes."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", place], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("this process may not mount a disk")
    yield place
    subprocess.run(["umount", place], check=True)


def read_all(memory: PrefixMemory) -> int:
    """How many blocks come from disk; each is true."""
    n = 0
    for link in LINKS:
        block = memory.store.read(link.parent, link.key) if memory.store else None
        assert block is None or is_true(block)
        n += block is not None
    return n


def test_a_full_disk_is_told_once_and_costs_no_answer(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ipyllama.prefix.store.writer.RETRY", 0.2)
    memory = bound(PrefixMemory(small_disk / "store"))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for link in LINKS[:40]:
            memory.save(make_block(link, 100_000))
            memory.flush(60)
    assert "the disk is full: free some space, or choose another place" in str(told[0].message)
    assert len(told) == 1
    assert "the disk is full" in memory.stats().problem
    saved = read_all(memory)
    assert 5 < saved < 40
    assert not list((small_disk / "store" / "tmp").iterdir())
    blocks = [memory.load(found) for found in memory.find(LINKS[:40])]
    assert all(block is not None and is_true(block) for block in blocks)  # from RAM
    assert len(blocks) == 40
    memory.reduce_size(bytes_limit=200_000)  # deleting needs no room
    time.sleep(1.0)
    memory.save(make_block(number(7000), 100_000))
    memory.flush(60)
    assert memory.stats().problem == ""


def test_a_read_only_disk_is_read(small_disk: Path) -> None:
    before = bound(PrefixMemory(small_disk / "store"))
    for link in LINKS[:5]:
        before.save(make_block(link))
    before.flush(60)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    memory = bound(PrefixMemory(small_disk / "store"))
    assert [found.place for found in memory.find(LINKS)] == ["disk"] * 5
    assert read_all(memory) == 5
    memory.save(make_block(LINKS[9]))
    with pytest.warns(UserWarning, match="the disk is read-only: choose another place"):
        memory.flush(60)
    memory.quarantine(LINKS[1], "looks odd")  # cannot be moved: it is left alone
    assert len(memory.find(LINKS)) == 1
    assert not list(memory.verify())


def test_a_folder_that_may_not_be_written_to_is_read(tmp_path: Path) -> None:
    for path in (tmp_path, *tmp_path.parents[:2]):
        path.chmod(0o755)
    folder = tmp_path / "store"
    before = bound(PrefixMemory(folder))
    for link in LINKS[:5]:
        before.save(make_block(link))
    before.flush(60)
    places = [folder, *folder.rglob("*")]
    is_root = os.geteuid() == 0
    for path in places:
        path.chmod(0o500 if path.is_dir() else 0o400)
        if is_root:
            os.chown(path, NOBODY, NOBODY)
    if is_root:  # who may do everything is no test
        os.seteuid(NOBODY)
    try:
        memory = bound(PrefixMemory(folder))
        found = len(memory.find(LINKS)), read_all(memory)
        memory.save(make_block(LINKS[9]))
        with pytest.warns(UserWarning, match="it may not be written to: choose another place"):
            memory.flush(60)
    finally:
        if is_root:
            os.seteuid(0)
        for path in places:
            path.chmod(0o700)
    assert found == (5, 5)


def test_a_folder_that_is_deleted_comes_again(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "store"
    memory = bound(PrefixMemory(folder))
    for n in range(6):
        memory.save(make_block(LINKS[n]))
        memory.flush(60)
        assert (folder / block_name(LINKS[n].parent, LINKS[n].key)).exists()
        shutil.rmtree(folder if n % 2 else folder / "blocks")
        assert memory.stats().disk_blocks == read_all(memory) == 0
    memory.save(make_block(LINKS[9]))
    memory.flush(60)
    assert (memory.stats().problem, read_all(memory)) == ("", 1)
    assert len(memory.find(LINKS[:6])) == 6  # RAM has them all


def test_a_folder_that_is_deleted_again_and_again(tmp_path: Path) -> None:
    """While blocks are written: some are lost, none is half there, and nothing hangs."""
    folder, done = tmp_path / "store", threading.Event()

    def delete() -> None:
        while not done.is_set():
            shutil.rmtree(folder, ignore_errors=True)
            time.sleep(0.003)

    deleter = threading.Thread(target=delete)
    deleter.start()
    memory = bound(PrefixMemory(folder, verbose=0))
    assert memory.writer is not None
    try:
        for link in LINKS[:80]:
            memory.save(make_block(link, 20_000))
            memory.flush(60)
            memory.writer.resume()
            memory.find(LINKS)
    finally:
        done.set()
        deleter.join()
    assert memory.verify() == []
    memory.save(make_block(LINKS[99]))
    memory.flush(60)
    assert memory.stats().problem == ""
    assert read_all(memory) >= 1


def test_nothing_is_lost_of_what_was_saved_in_time(tmp_path: Path) -> None:
    """The process ends without a word to the memory: what it saved is written first."""
    code = (
        "from blocks import *; from ipyllama.prefix import PrefixMemory\n"
        f"memory = bound(PrefixMemory({str(tmp_path)!r}))\n"
        "for link in make_chain(range(400))[:30]: memory.save(make_block(link, 50_000))\n"
    )
    tests = Path(__file__).parents[1]
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100, cwd=tests)
    assert len(list(local_store(tmp_path).entries())) == 30
    with warnings.catch_warnings(record=True) as told:
        assert read_all(bound(PrefixMemory(tmp_path))) == 30
    assert told == []
