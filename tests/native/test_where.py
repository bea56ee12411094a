"""Where turns are kept: what is told is what going on from them then finds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ipyllama.llm import LLM
from ipyllama.prefix.where import where_are

Load = Callable[..., LLM]
LONG = "The quick brown fox jumps over the lazy dog. " * 12


@pytest.mark.parametrize("name", ["llama", "gemma3", "mamba", "lfm2"])
def test_it_is_what_is_found(load: Load, tmp_path: Path, name: str) -> None:
    llm = load(name, cache=tmp_path)
    chat = llm.chat()
    first = chat.ask(LONG, max_tokens=8)
    second = chat.ask("And then?", max_tokens=8)
    llm.memory.flush()
    where = second.where()
    assert where.n_tokens == len(second.ledger)
    assert where.places == {"live": 1.0, "RAM": 1.0, "disk": 1.0}
    assert where.live == second.ask("Go on.", max_tokens=4).usage.reused
    aside = chat.ask("Something else.", after=None, max_tokens=4)
    where = second.where()
    if name in ("mamba", "lfm2"):
        assert where.live == 0  # this state cannot be cut
    assert where.live < where.ram == len(second.ledger) - 1
    assert aside.where().places["live"] == 1.0
    assert first.where().ram == len(first.ledger) - 1
    llm.memory.ram.clear()
    where = second.where()
    assert (where.ram, where.disk) == (0, len(second.ledger) - 1)
    usage = second.ask("Go on from there.", max_tokens=4).usage
    assert usage.reused + usage.restored == where.disk
    llm.memory.clear()
    assert "disk" not in second.where().places


def test_what_turns_have_in_common_is_found_as_for_each_alone(load: Load, tmp_path: Path) -> None:
    llm = load("llama", cache=tmp_path)
    chat = llm.chat()
    for n in range(4):
        chat.ask(f"{n} {LONG}"[: 60 * n + 20], max_tokens=6, name=f"turn-{n}")
    chat.ask("Another way.", after="turn-1", max_tokens=6)
    llm.memory.flush()
    ledgers = [turn.ledger for turn in chat.all_turns]
    alone = [where_are(llm.memory, [ledger], llm._engine.held)[0] for ledger in ledgers]
    assert llm.where(ledgers) == alone
    assert [where.disk for where in alone] == [len(ledger) - 1 for ledger in ledgers]
    paths = sorted(tmp_path.rglob("*.kv"), key=lambda path: path.stat().st_mtime_ns)
    paths[2].unlink()
    assert llm.where(ledgers) == [where_are(llm.memory, [ledger], llm._engine.held)[0] for ledger in ledgers]
    assert any(where.disk < len(ledger) - 1 for where, ledger in zip(llm.where(ledgers), ledgers, strict=True))


def test_nothing_is_kept_of_what_was_never_read(load: Load) -> None:
    llm = load("llama", cache=None)
    (where,) = llm.where([llm.tokenize("Something new")])
    assert (where.live, where.ram, where.disk) == (0, 0, 0)
    assert where.places == {}
    assert str(where) == f"of {where.n_tokens} tokens 0 live, 0 in RAM, 0 on disk"
