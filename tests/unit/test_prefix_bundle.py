"""Bundles: all of a set of prefixes in one file, and nothing but good blocks out of it."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import struct
import tracemalloc
import zipfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from blocks import BINDING, ROOT, bound, is_true, make_block, make_chain
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ipyllama.errors import BadBundle, BadOption, StoreError
from ipyllama.ledger import Ledger
from ipyllama.prefix import Binding, Block, Origin, PrefixMemory
from ipyllama.prefix.store.block import encode
from ipyllama.prefix.store.blocks import block_name

FIRST, SECOND = Ledger().append_prompt(range(21)), Ledger().append_prompt([*range(8), *range(500, 513)])
INDEX = {"format": "ipyllama bundle", "version": 1, "fingerprint": BINDING.fingerprint.hex()}


def filled(folder: Path | None) -> PrefixMemory:
    """A memory that holds two prompts with eight tokens in common."""
    memory = bound(PrefixMemory(folder))
    for ledger in (FIRST, SECOND):
        for link in memory.links(ledger):
            memory.save(make_block(link))
    memory.flush(60)
    return memory


def held(memory: PrefixMemory, ledger: Ledger) -> int:
    found = memory.find(memory.links(ledger))
    blocks = [memory.load(place) for place in found]
    assert all(block is not None and is_true(block) for block in blocks)
    return found[-1].link.end if found else 0


def test_text_is_no_prompt(tmp_path: Path) -> None:
    memory = filled(None)
    for prompt in ("text", 3):
        with pytest.raises(BadOption, match="token ids are needed"):
            memory.export(tmp_path / "all.kvz", [prompt])  # type: ignore[list-item]
        with pytest.raises(BadOption, match="token ids are needed"):
            memory.check(prompt)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_a_memory_says_where_it_is(tmp_path: Path) -> None:
    assert repr(PrefixMemory()) == "<PrefixMemory: RAM only>"
    assert repr(PrefixMemory(tmp_path, remote="memory://x")) == f"<PrefixMemory: {tmp_path} and memory://x>"


@pytest.mark.parametrize("on_disk", [True, False])
def test_what_another_machine_made_does_not_replace_ones_own(tmp_path: Path, on_disk: bool) -> None:
    elsewhere = Origin("another build", 8)
    other = bound(PrefixMemory(None), replace(BINDING, origin=elsewhere))
    for link in other.links(FIRST):
        other.save(make_block(link, origin=elsewhere))
    other.export(tmp_path / "theirs.kv", [FIRST])
    memory = filled(tmp_path / "a" if on_disk else None)
    taken = memory.import_(tmp_path / "theirs.kv")
    assert (taken.stored, taken.known) == (0, len(memory.links(FIRST)))
    for found in memory.find(memory.links(FIRST)):
        block = memory.load(found)
        assert block is not None
        assert block.origin == BINDING.origin


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
def test_only_a_file_is_replaced(tmp_path: Path) -> None:
    """root may replace /dev/null."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StoreError, match="it is there, and no file"):
        filled(None).export(tmp_path / "pipe", [FIRST])
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


@pytest.mark.parametrize("on_disk", [True, False])
def test_there_and_back(tmp_path: Path, on_disk: bool) -> None:
    memory = filled(tmp_path / "a" if on_disk else None)
    steps: list[tuple[int, int | None, str]] = []
    done = memory.export(tmp_path / "all.kvz", None, lambda *step: steps.append(step))
    n = len({link.key for ledger in (FIRST, SECOND) for link in memory.links(ledger)})
    assert (done.blocks, done.nbytes) == (n, (tmp_path / "all.kvz").stat().st_size)
    assert (steps[0], steps[-1]) == ((0, n, "blocks exported"), (n, n, "blocks exported"))
    other = bound(PrefixMemory(tmp_path / "b" if on_disk else None))
    taken = other.import_(tmp_path / "all.kvz", lambda *step: steps.append(step))
    assert (taken.stored, taken.known, taken.refused) == (n, 0, {})
    assert steps[-1] == (n, n, "blocks imported")
    assert (held(other, FIRST), held(other, SECOND)) == (20, 20)
    again = other.import_(tmp_path / "all.kvz")
    assert (again.stored, again.known) == (0, n)


def test_some_prompts_with_all_they_stand_on(tmp_path: Path) -> None:
    memory = filled(tmp_path / "a")
    path = tmp_path / "one"
    memory.export(path, [list(SECOND.tokens)])
    other = bound(PrefixMemory(tmp_path / "b"))
    other.import_(path)
    assert (held(other, SECOND), held(other, FIRST)) == (20, 8)


def test_the_same_blocks_make_the_same_file(tmp_path: Path) -> None:
    memory = filled(tmp_path / "a")
    for name in ("x", "y"):
        memory.export(tmp_path / name, [FIRST])
    assert (tmp_path / "x").read_bytes() == (tmp_path / "y").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "x", "y"]


def test_what_is_damaged_here_is_left_out_with_what_stands_on_it(tmp_path: Path) -> None:
    memory = filled(tmp_path / "a")
    third = memory.links(FIRST)[2]
    memory.ram.clear()
    file = tmp_path / "a" / block_name(third.parent, third.key)
    file.write_bytes(file.read_bytes()[:-1])
    done = memory.export(tmp_path / "x")
    other = bound(PrefixMemory(tmp_path / "b"))
    assert other.import_(tmp_path / "x").stored == done.blocks
    assert (held(other, FIRST), held(other, SECOND)) == (8, 20)


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    memory = filled(tmp_path / "a")
    with pytest.raises(StoreError, match="missing/x is not written: No such file"):
        memory.export(tmp_path / "missing" / "x")
    with pytest.raises(BadOption, match="belongs to no model"):
        PrefixMemory(tmp_path / "a").export(tmp_path / "x")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            replace(BINDING, fingerprint=bytes(32), weights="bb", model="large"),
            "for another model, 'tiny': this is 'large'",
        ),
        (
            replace(BINDING, fingerprint=bytes(32), settings={"kv_type": "q8_0"}),
            "for other settings of this model: .*f16",
        ),
    ],
)
def test_another_model_is_refused_with_the_reason(tmp_path: Path, other: Binding, message: str) -> None:
    filled(tmp_path / "a").export(tmp_path / "x")
    memory = bound(PrefixMemory(tmp_path / "b"), other)
    with pytest.raises(BadBundle, match=message):
        memory.import_(tmp_path / "x")
    assert not (tmp_path / "b").exists()


def test_more_than_may_be_kept_is_refused_before_anything_is_stored(tmp_path: Path) -> None:
    filled(tmp_path / "a").export(tmp_path / "x")
    memory = bound(PrefixMemory(tmp_path / "b", bytes_limit=5000))
    with pytest.raises(StoreError, match="no more than 5,000 may be kept: raise the limit"):
        memory.import_(tmp_path / "x")
    assert not (tmp_path / "b").exists()


# -- files that somebody else made ------------------------------------------------------------------------------

Member = tuple[zipfile.ZipInfo | str, bytes]


def write_zip(path: Path, members: Iterable[Member], index: object = INDEX) -> Path:
    with zipfile.ZipFile(path, "w") as bundle:
        if index is not None:
            bundle.writestr("index.json", json.dumps(index))
        for name, content in members:
            bundle.writestr(name, content)
    return path


def member(block: Block, name: str | None = None) -> Member:
    return zipfile.ZipInfo(name or block_name(block.link.parent, block.link.key)), b"".join(encode(block))


BLOCKS = [make_block(link) for link in make_chain(range(12))]


def packed(info: zipfile.ZipInfo) -> zipfile.ZipInfo:
    info.compress_type = zipfile.ZIP_DEFLATED
    return info


def linked(info: zipfile.ZipInfo, kind: int) -> zipfile.ZipInfo:
    info.create_system, info.external_attr = 3, (kind | 0o777) << 16
    return info


def bad_members() -> dict[str, list[Member]]:
    info, content = member(BLOCKS[0])
    name = info.filename
    return {
        "absolute": [("/etc/" + name, content)],
        "above": [("../" * 8 + name, content)],
        "above, hidden": [("blocks/../../" + name.rpartition("/")[2], content)],
        "drive": [("C:\\" + name, content)],
        "another folder": [(name.replace("blocks", "quarantine"), content)],
        "the lock": [("lock", content)],
        "folder": [("blocks/", b"")],
        "link": [(linked(zipfile.ZipInfo(name), stat.S_IFLNK), b"/etc/passwd")],
        "device": [(linked(zipfile.ZipInfo(name), stat.S_IFCHR), b"")],
        "packed": [(packed(zipfile.ZipInfo(name)), content)],
        "bomb": [(packed(zipfile.ZipInfo(name)), bytes(10_000_000))],
        "no block": [(name, b"hello")],
        "empty": [(name, b"")],
        "damaged": [(name, content[:-1] + b"?")],
        "cut": [(name, content[:-1])],
        "under another's name": [member(BLOCKS[0], block_name(BLOCKS[1].link.parent, BLOCKS[1].link.key))],
        "without what it stands on": [member(BLOCKS[1])],
        "of another model": [member(make_block(make_chain(range(4), root=bytes(32))[0]))],
        "pickle": [("output.pkl", b"cos\nsystem\n(S'touch /tmp/ipyllama-was-here'\ntR.")],
    }


@pytest.mark.parametrize("name", list(bad_members()))
def test_nothing_bad_is_taken_and_the_good_is(tmp_path: Path, name: str) -> None:
    outside = set(tmp_path.rglob("*"))
    good = [make_block(link) for link in make_chain(range(50, 58))]
    path = write_zip(tmp_path / "x", [*bad_members()[name], *map(member, good)])
    memory = bound(PrefixMemory(tmp_path / "store"))
    taken = memory.import_(path)
    assert (taken.stored, len(taken.refused)) == (2, 1)
    assert all(reason for reason in taken.refused.values())
    assert memory.stats().disk_blocks == 2
    left = {str(item.relative_to(tmp_path)).split("/")[0] for item in set(tmp_path.rglob("*")) - outside}
    assert left == {"x", "store"}
    assert all(not item.is_symlink() for item in tmp_path.rglob("*"))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_the_same_name_twice_is_one_block(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "x", [member(BLOCKS[0]), member(BLOCKS[0])])
    assert bound(PrefixMemory(tmp_path / "store")).import_(path).stored == 1


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (None, "it has no index"),
        ([], "its index says so"),
        ({"format": "other"}, "its index says so"),
        (INDEX | {"version": 2}, "format version 2, and this ipyllama reads 1"),
        (INDEX | {"fingerprint": "zz"}, "another model"),
        (INDEX | {"x": "y" * 70_000}, "its index is not what one looks like"),
    ],
)
def test_an_index_that_is_none_is_refused(tmp_path: Path, index: object, message: str) -> None:
    path = write_zip(tmp_path / "x", [member(BLOCKS[0])], index)
    with pytest.raises(BadBundle, match=message):
        bound(PrefixMemory(tmp_path / "store")).import_(path)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("content", [b"", b"PK", b"hello" * 100, b"PK\x05\x06" + bytes(18), bytes(1000)])
def test_what_is_no_bundle_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(BadBundle):
        bound(PrefixMemory(tmp_path / "store")).import_(path)
    with pytest.raises(BadBundle, match="cannot be read: No such file"):
        bound(PrefixMemory(tmp_path / "store")).import_(tmp_path / "y")
    with pytest.raises(BadBundle, match="cannot be read"):
        bound(PrefixMemory(tmp_path / "store")).import_(tmp_path)


def test_lengths_that_lie_cost_no_memory(tmp_path: Path) -> None:
    """A sparse file whose end says that the list of what is inside has a gigabyte."""
    path, size = tmp_path / "x", 1 << 30
    with path.open("wb") as file:
        file.truncate(size)
        file.seek(size)
        file.write(struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, size, 0, 0))
    tracemalloc.start()
    try:
        with pytest.raises(BadBundle, match="is no bundle, or damaged"):
            bound(PrefixMemory(tmp_path / "store")).import_(path)
        assert tracemalloc.get_traced_memory()[1] < 100_000_000
    finally:
        tracemalloc.stop()


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_damage_of_a_bundle_gets_into_a_store(tmp_path: Path, data: st.DataObject) -> None:
    path = write_zip(tmp_path / "x", map(member, BLOCKS))
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        if data.draw(st.booleans()):
            content[at] ^= 1 << data.draw(st.integers(0, 7))
        else:
            del content[at : at + data.draw(st.integers(1, 200))]
        if not content:
            break
    path.write_bytes(content)
    memory = bound(PrefixMemory())
    with contextlib.suppress(BadBundle, StoreError):
        memory.import_(path)
    for block in BLOCKS:
        found = memory.ram.get(block.link.key)
        assert found is None or (found.link == block.link and is_true(found))
    assert len(memory.ram) <= len(BLOCKS)


def test_a_size_that_the_file_does_not_have(tmp_path: Path) -> None:
    """An entry whose directory claims 3 GB, in a file of some kilobytes."""
    path = write_zip(tmp_path / "x", [member(BLOCKS[0])])
    content = bytearray(path.read_bytes())
    at = content.rindex(b"PK\x01\x02")
    content[at + 20 : at + 28] = struct.pack("<II", 3 << 30, 3 << 30)
    path.write_bytes(content)
    taken = bound(PrefixMemory(tmp_path / "store")).import_(path)
    assert list(taken.refused.values()) == ["it is larger than the bundle"]


def test_a_bundle_may_be_read_by_all_who_may_read_its_folder(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        filled(tmp_path / "a").export(tmp_path / "x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o644
    assert BINDING.root == ROOT
