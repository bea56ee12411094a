"""What a memory holds, listed by the ends of chains; the oracle is a list of the prompts that were saved."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

from ipyllama.engine import PIECE
from ipyllama.errors import BadOption
from ipyllama.ledger import Ledger
from ipyllama.prefix import Binding, Block, Cut, Origin, PrefixMemory, entries, remove
from ipyllama.prefix.listing import TAIL, _shortened, names

BYTES_PER_TOKEN = 20
SECONDS_PER_TOKEN = 0.25


@pytest.fixture
def memory(tmp_path: Path) -> PrefixMemory:
    return bound(PrefixMemory(tmp_path / "store"))


def bound(memory: PrefixMemory, name: str = "small") -> PrefixMemory:
    fingerprint = hashlib.sha256(name.encode()).digest()
    return memory.bind(Binding(fingerprint, Cut(PIECE), Origin("build", 1), model=name))


def save(memory: PrefixMemory, tokens: Iterable[int]) -> Ledger:
    """Keep all blocks of a prompt, as the engine does it."""
    ledger = Ledger().append_prompt(tokens)
    for link in memory.links(ledger):
        n = len(link.tokens)
        state = np.zeros(n * BYTES_PER_TOKEN, np.uint8)
        if not memory.find([link]):
            memory.save(Block(link, state, memory.binding.origin, n * SECONDS_PER_TOKEN))
    memory.flush()
    return ledger


def reopened(memory: PrefixMemory) -> PrefixMemory:
    """As the next process finds it: nothing in RAM."""
    assert memory.location is not None
    return bound(PrefixMemory(memory.location))


PREFIX = range(512)
BRANCHES = ([*PREFIX, *range(640)], [*PREFIX, *range(50, 274)], list(range(200, 1192)))


def test_each_end_is_a_row(memory: PrefixMemory) -> None:
    for tokens in BRANCHES:
        save(memory, tokens)
    found = {info.n_tokens: info for info in entries(memory)}
    # the last token of a prompt belongs to no block
    assert sorted(found) == sorted(len(tokens) - 1 for tokens in BRANCHES)
    for tokens in BRANCHES:
        info = found[len(tokens) - 1]
        assert info.tail == tuple(tokens[:-1])[-TAIL:]
        assert info.seconds == (len(tokens) - 1) * SECONDS_PER_TOKEN
        assert (info.model, info.places, info.problem) == ("small", ("disk", "RAM"), "")


def test_what_is_shared_is_told_from_what_is_not(memory: PrefixMemory) -> None:
    for tokens in BRANCHES:
        save(memory, tokens)
    first, second, alone = (next(i for i in entries(memory) if i.n_tokens == len(t) - 1) for t in BRANCHES)
    assert memory.store is not None
    on_disk = sum(entry.nbytes for entry in memory.store.entries())
    assert first.shared_bytes == second.shared_bytes > 512 * BYTES_PER_TOKEN
    assert alone.shared_bytes == 0
    assert on_disk == first.shared_bytes + sum(info.own_bytes for info in (first, second, alone))


def test_the_sorts(memory: PrefixMemory) -> None:
    for age, tokens in zip((30, 10, 20), BRANCHES, strict=True):
        save(memory, tokens)
        last = memory.links(Ledger().append_prompt(tokens))[-1]
        for file in memory.location.rglob(f"*{last.key.hex()}.kv"):  # type: ignore[union-attr]
            os.utime(file, (time.time() - age, time.time() - age))
    lengths = {sort: [info.n_tokens for info in entries(memory, sort=sort)] for sort in ("age", "size", "saved")}
    assert lengths == {"age": [735, 991, 1151], "size": [991, 1151, 735], "saved": [1151, 991, 735]}


def test_only_one_models_rows(memory: PrefixMemory) -> None:
    other = bound(memory, "other")
    save(memory, BRANCHES[0])
    save(other, BRANCHES[2])
    assert [info.n_tokens for info in entries(other, model="Other")] == [991]
    assert [info.n_tokens for info in entries(other, model="nobody")] == []
    assert sorted(info.model for info in entries(reopened(memory))) == ["other", "small"]
    for note in memory.location.glob("notes/*"):  # type: ignore[union-attr]
        note.unlink()
    assert sorted(info.model for info in entries(reopened(memory))) == ["", "small"]


def test_what_is_in_ram_only_is_listed() -> None:
    memory = bound(PrefixMemory(None))
    save(memory, BRANCHES[0])
    (info,) = entries(memory)
    assert (info.n_tokens, info.places, info.used) == (1151, ("RAM",), None)
    assert remove(memory, [info.name]).blocks == 5
    assert (entries(memory), memory.ram.nbytes) == ([], 0)


def test_removing_leaves_what_others_stand_on(memory: PrefixMemory) -> None:
    ledgers = [save(memory, tokens) for tokens in BRANCHES]
    name = next(info.name for info in entries(memory) if info.n_tokens == 1151)
    gone = remove(memory, [name[:7]])
    assert (gone.prefixes, gone.blocks) == (1, 3)
    for memory_now in (memory, reopened(memory)):
        assert [memory_now.check(ledger).n_found for ledger in ledgers] == [512, 735, 991]
    rest = [info.name for info in entries(memory)]
    assert remove(memory, rest).blocks == 7
    assert (entries(memory), memory.stats().disk_blocks, memory.ram.nbytes) == ([], 0, 0)


def test_the_count_of_bytes_is_kept(memory: PrefixMemory) -> None:
    for tokens in BRANCHES:
        save(memory, tokens)
    assert memory.store is not None
    for info in entries(memory):
        remove(memory, [info.name])
        with memory.store.locked():
            usage = memory.store.usage()
        assert usage is not None
        assert usage.nbytes == memory.stats().disk_bytes


@pytest.mark.parametrize(("name", "message"), [("zz", "no prefix is called 'zz'"), ("", "no prefix is called ''")])
def test_a_wrong_name_deletes_nothing(memory: PrefixMemory, name: str, message: str) -> None:
    save(memory, BRANCHES[0])
    (info,) = entries(memory)
    with pytest.raises(BadOption, match=message):
        remove(memory, [info.name, name])
    assert len(entries(memory)) == 1


def test_an_ambiguous_name_names_the_candidates(memory: PrefixMemory) -> None:
    folder = memory.location / "blocks" / "ff"  # type: ignore[operator]
    folder.mkdir(parents=True)
    for digit in "123456":
        (folder / f"{'f' * 16}-a{digit * 63}.kv").write_bytes(b"")
    assert sorted(names(memory)) == [f"a{digit * 7}" for digit in "123456"]
    with pytest.raises(BadOption) as error:
        remove(memory, ["A"])
    candidates = "a1111111, a2222222, a3333333, a4444444 and 2 more"
    assert str(error.value) == f"'A' fits 6 prefixes, write more of it: {candidates}"
    assert remove(memory, ["a5", "a6"]).prefixes == 2
    assert len(names(memory)) == 4


def test_names_are_as_long_as_need_be() -> None:
    keys = ["a" * 64, "a" * 12 + "b" * 52, "c" * 64]
    assert _shortened(keys) == {keys[0]: "a" * 13, keys[1]: "a" * 12 + "b", keys[2]: "c" * 8}


def damage(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[40] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize(
    ("harm", "problem"),
    [
        (lambda file: file.unlink(), "what came before is gone"),
        (damage, "damaged: its header is damaged"),
    ],
)
def test_a_chain_that_cannot_be_used_says_so(memory: PrefixMemory, harm: Callable[[Path], None], problem: str) -> None:
    ledger = save(memory, BRANCHES[0])
    first = memory.links(ledger)[0]
    (file,) = memory.location.rglob(f"*{first.key.hex()}.kv")  # type: ignore[union-attr]
    harm(file)
    (info,) = entries(reopened(memory))
    assert info.problem == problem
    remove(reopened(memory), [info.name])


def test_names_that_lead_in_circles_end(memory: PrefixMemory) -> None:
    folder = memory.location / "blocks" / "aa"  # type: ignore[operator]
    folder.mkdir(parents=True)
    a, b, c = ("a" * 16, "ab" * 8, "ac" * 8)
    for parent, key in ((a, b), (b, a), (a, c)):
        (folder / f"{parent}-{key}{'0' * 48}.kv").write_bytes(b"")
    (info,) = entries(memory)
    assert info.name.startswith("acac")
    assert info.problem.startswith("damaged")
    assert remove(memory, [info.name]).blocks == 3


def test_a_name_out_of_a_file_steers_nothing(memory: PrefixMemory) -> None:
    save(memory, BRANCHES[0])
    for note in memory.location.glob("notes/*"):  # type: ignore[union-attr]
        note.write_text(json.dumps(json.loads(note.read_text()) | {"model": "evil\x1b[2J\ud800" + "x" * 9999}))
    known = {binding.model for binding in PrefixMemory(memory.location).bindings.values()}
    assert known == {"evil\N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}" + "x" * 111}


@pytest.mark.parametrize("how", ["clear", "clear the unbound", "remove"])
def test_what_is_deleted_is_in_no_models_ram(tmp_path: Path, how: str) -> None:
    memory = PrefixMemory(tmp_path)
    one, other = bound(memory), bound(memory, "other")
    save(one, BRANCHES[0])
    save(other, BRANCHES[2])
    if how == "remove":
        remove(one, {*names(one), *names(other)})
    else:
        (one if how == "clear" else memory).clear()
    assert (one.ram.nbytes, other.ram.nbytes, one.stats().disk_blocks) == (0, 0, 0)
