"""Pins: what is pinned outlives every limit, with all that it stands on; what is not goes as before."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from unit.test_prefix_listing import BYTES_PER_TOKEN, bound, reopened, save

from ipyllama.errors import BadOption, StoreFull
from ipyllama.ledger import Ledger
from ipyllama.prefix import PrefixInfo, PrefixMemory, entries, remove

TALK = list(range(1000, 1600))
OTHER = list(range(3000, 3600))


@pytest.fixture
def memory(tmp_path: Path) -> PrefixMemory:
    return bound(PrefixMemory(tmp_path / "store"))


def info(memory: PrefixMemory, n_tokens: int) -> PrefixInfo:
    return next(info for info in entries(memory) if info.n_tokens == n_tokens)


def on_disk(memory: PrefixMemory, ledger: Ledger) -> int:
    """Tokens that another process would find."""
    again = reopened(memory)
    return sum(found.n_tokens for found in again.find(again.links(ledger)))


def test_what_is_pinned_outlives_every_limit(memory: PrefixMemory) -> None:
    ledger, other = save(memory, TALK), save(memory, OTHER)
    memory.pin(info(memory, 599).name[:8])
    pinned = next(each for each in entries(memory) if each.pinned)
    assert (pinned.pinned, pinned.n_tokens) == (599, 599)
    kept, lost = (ledger, other) if on_name(memory, ledger) == pinned.name else (other, ledger)
    size = pinned.own_bytes + pinned.shared_bytes
    with pytest.raises(StoreFull, match="pinned prefixes take 0"):
        memory.reduce_size(bytes_limit=0)
    assert (on_disk(memory, kept), on_disk(memory, lost)) == (599, 0)
    assert memory.reduce_size(bytes_limit=size, items_limit=0, age_limit=0) == 0
    assert on_disk(memory, kept) == 599
    assert reopened(memory).store is not None
    memory.unpin(pinned.name)
    memory.reduce_size(bytes_limit=0)
    assert on_disk(memory, kept) == 0


def on_name(memory: PrefixMemory, ledger: Ledger) -> str:
    last = memory.links(ledger)[-1].key.hex()
    return next(each.name for each in entries(memory) if last.startswith(each.name))


def test_it_grows_old_and_stays(memory: PrefixMemory) -> None:
    ledger = save(memory, TALK)
    memory.pin(on_name(memory, ledger))
    assert memory.location is not None
    long_ago = time.time() - 1e7
    for path in memory.location.rglob("*.kv"):
        os.utime(path, (long_ago, long_ago))
    assert memory.reduce_size(age_limit="1d") == 0
    memory.unpin(on_name(memory, ledger))
    assert memory.reduce_size(age_limit="1d") == 3


def test_what_goes_on_from_it_is_not_pinned(memory: PrefixMemory) -> None:
    short = save(memory, TALK[:300])
    memory.pin(on_name(memory, short))
    longer = Ledger().append_prompt(TALK[:300]).append_prompt(OTHER)
    for link in memory.links(longer):
        assert link.end <= 299 or not memory.find([link])
    for part in _saved(memory, longer):
        assert part
    (only,) = entries(memory)
    assert (only.n_tokens, only.pinned) == (899, 299)
    remove(memory, [only.name])  # all but what is pinned
    assert on_disk(memory, longer) == 299
    with pytest.raises(BadOption, match=f"{on_name(memory, short)} is pinned: %llama cache unpin"):
        remove(memory, [on_name(memory, short)])
    memory.clear()
    assert on_disk(memory, short) == 0
    assert memory.store is not None
    assert memory.store.pins() == set()


def _saved(memory: PrefixMemory, ledger: Ledger) -> list[bool]:
    import numpy as np

    from ipyllama.prefix import Block

    for link in memory.links(ledger):
        state = np.zeros(len(link.tokens) * BYTES_PER_TOKEN, np.uint8)
        memory.save(Block(link, state, memory.binding.origin, 1.0))
    memory.flush()
    return [bool(memory.find([link])) for link in memory.links(ledger)]


def test_limits_hold(memory: PrefixMemory) -> None:
    ledger = save(memory, TALK)
    name = on_name(memory, ledger)
    memory.bytes_limit = 5000
    with pytest.raises(StoreFull, match="raise it"):
        memory.pin(name)
    assert not info(memory, 599).pinned
    memory.bytes_limit = 30_000
    memory.pin(name)
    with pytest.raises(StoreFull, match="unpin some"):
        memory.bytes_limit = 5000
    assert memory.bytes_limit == 30_000
    assert memory.location is not None
    taken = sum(path.stat().st_size for path in memory.location.rglob("*.kv"))
    memory.bytes_limit = taken + 1000
    warned = []
    assert memory.writer is not None
    memory.writer._warn = warned.append
    save(memory, OTHER)  # there is no room beside what is pinned
    assert on_disk(memory, ledger) == 599
    assert sum(path.stat().st_size for path in memory.location.rglob("*.kv")) <= taken + 1000
    assert len(warned) == 1
    memory.bytes_limit = "10M"  # and now there is
    other = save(memory, [*OTHER[:5], *TALK])
    assert on_disk(memory, other) == 604


def test_what_is_in_ram_only_is_written_first(memory: PrefixMemory) -> None:
    ledger = save(memory, TALK)
    memory.reduce_size(bytes_limit=0)
    assert on_disk(memory, ledger) == 0
    memory.pin(on_name(memory, ledger))
    assert on_disk(memory, ledger) == 599


@pytest.mark.parametrize(
    ("names", "said"),
    [(["zz"], "no prefix is called 'zz'"), ([""], "no prefix is called ''"), (["a", "b"], "no prefix")],
)
def test_names_that_mean_nothing(memory: PrefixMemory, names: Sequence[str], said: str) -> None:
    with pytest.raises(BadOption, match=said):
        memory.pin(*names)
    with pytest.raises(BadOption, match=said):
        memory.unpin(*names)


def test_without_a_disk_there_is_nothing_to_pin() -> None:
    memory = bound(PrefixMemory(None))
    with pytest.raises(BadOption, match="nothing is kept on disk here"):
        memory.pin("a")


def test_pins_of_others_and_strange_files_are_no_harm(memory: PrefixMemory) -> None:
    ledger = save(memory, TALK)
    assert memory.location is not None
    folder = memory.location / "pins"
    folder.mkdir()
    (folder / ("ab" * 32)).write_text("of a block that is gone")
    (folder / "README").write_text("no pin")
    (folder / ("cd" * 32)).symlink_to(memory.location)
    assert memory.store is not None
    assert memory.store.pins() == {bytes.fromhex("ab" * 32)}
    assert info(memory, 599).pinned == 0
    assert memory.reduce_size(bytes_limit=0) == 3
    assert on_disk(memory, ledger) == 0
