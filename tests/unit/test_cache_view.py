"""The view of the prefix memory from the kernel's side, over a store in a folder."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from unit.test_prefix_listing import bound, save
from unit.test_tree_view import until_true

from ipyllama.prefix import PrefixMemory, entries
from ipyllama.widgets import cache
from ipyllama.widgets.cache import CacheView


@pytest.fixture
def memory(tmp_path: Path) -> PrefixMemory:
    memory = bound(PrefixMemory(tmp_path / "store"), "<b>small</b>")
    for start in (1000, 3000, 5000):
        save(memory, range(start, start + 300))
    return memory


@pytest.fixture
def view(memory: PrefixMemory) -> Iterator[CacheView]:
    view = CacheView(memory)
    view.read()
    yield view
    view.close()


def say(view: CacheView, **content: Any) -> None:
    """A message of the front end, and all that it leads to."""
    view._handle_custom_msg(content, [])
    until_true(lambda: not view.worker._runs and not view._verifier._runs)


def names(view: CacheView) -> list[str]:
    return [row[0] for row in view.rows]


def test_what_is_shown(view: CacheView, memory: PrefixMemory) -> None:
    assert sorted(names(view)) == sorted(info.name for info in entries(memory))
    name, model, numbers, written, shared, places, pinned, text, problem = view.rows[0]
    assert (model, numbers[0], written[0], shared, places, pinned, text, problem) == (
        "<b>small</b>", 299, "299", "", "disk, RAM", "", "", "",
    )  # fmt: skip
    assert view.facts["line"].endswith("in RAM")
    assert "of 10 GiB on disk, 6 blocks" in view.facts["line"]
    assert view.facts["texts"] is False  # others may use this folder
    bundle = view.bundle()
    assert set(bundle) == {"text/plain", "text/html"}
    assert name in bundle["text/plain"]
    assert name in bundle["text/html"]
    assert "<b>small" not in bundle["text/html"]


def test_pin_and_unpin(view: CacheView, memory: PrefixMemory) -> None:
    name = names(view)[1]
    say(view, kind="pin", name=name)
    row = next(row for row in view.rows if row[0] == name)
    assert row[6] == "yes"
    assert " pinned" in view.facts["line"]
    assert view.facts["pinned"] > 0
    say(view, kind="delete", name=name)
    assert view.problem == f"{name} is pinned: unpin it first"
    assert name in names(view)
    say(view, kind="unpin", name=name)
    assert memory.store is not None
    assert memory.store.pins() == set()
    assert (view.problem, view.said) == ("", f"{name} is not pinned any more")
    say(view, kind="pin", name="gone")
    assert "no prefix is called 'gone'" in view.problem


def test_a_deletion_waits_and_can_be_taken_back(view: CacheView, memory: PrefixMemory) -> None:
    first, second, _ = names(view)
    say(view, kind="delete", name=first)
    assert first not in names(view)
    assert view.undoable
    assert first in [info.name for info in entries(memory)]  # it is there still
    say(view, kind="undo")
    assert not view.undoable
    assert first in names(view)
    say(view, kind="delete", name=first)
    say(view, kind="delete", name=second)
    assert view._timer is not None
    view._timer.function()  # the time is up
    until_true(lambda: not view.worker._runs)
    assert [info.name for info in entries(memory)] == names(view)
    assert len(names(view)) == 1
    assert view.said.startswith("2 prefixes deleted")
    say(view, kind="undo")
    assert view.said == "There is nothing to undo"


def test_closing_the_view_carries_the_deletion_out(view: CacheView, memory: PrefixMemory) -> None:
    say(view, kind="delete", name=names(view)[0])
    view.close()
    until_true(lambda: len(entries(memory)) == 2)


def test_the_limit_is_asked_about_where_it_deletes(view: CacheView, memory: PrefixMemory) -> None:
    say(view, kind="limit", limit="2G", sure=False)
    assert (memory.bytes_limit, view.question) == (2 << 30, {})
    say(view, kind="limit", limit="9000", sure=False)
    assert memory.bytes_limit == 2 << 30
    assert "have no room in 9.0 kB" in view.question["line"]
    say(view, kind="keep")
    assert (view.question, len(view.rows)) == ({}, 3)
    say(view, kind="limit", limit="9000", sure=True)
    assert memory.bytes_limit == 9000
    assert view.said.startswith("The limit is 9.0 kB in this session; ")
    assert len(entries(memory)) == len(view.rows)
    say(view, kind="limit", limit="much", sure=True)
    assert "a size is a number of bytes" in view.problem
    assert memory.bytes_limit == 9000


def test_pins_are_stronger_than_the_limit(view: CacheView, memory: PrefixMemory) -> None:
    say(view, kind="pin", name=names(view)[0])
    before = memory.bytes_limit
    say(view, kind="limit", limit="100", sure=True)
    assert "pinned prefixes take" in view.problem
    assert memory.bytes_limit == before


def test_verify_names_what_is_damaged_and_can_be_stopped(
    view: CacheView, memory: PrefixMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(view, kind="verify")
    assert (view.said, view.reading) == ("All blocks are sound", {})
    assert memory.location is not None
    path = next(memory.location.rglob("*.kv"))
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    say(view, kind="verify")
    assert view.said == "1 block damaged and set aside"
    assert memory.store is not None
    fetch = memory.store._fetch
    started, go = threading.Event(), threading.Event()

    def slow(*arguments: Any) -> Any:
        started.set()
        go.wait(10)
        return fetch(*arguments)

    monkeypatch.setattr(memory.store, "_fetch", slow)
    view._handle_custom_msg({"kind": "verify"}, [])
    assert started.wait(10)
    view._handle_custom_msg({"kind": "stop"}, [])
    go.set()
    until_true(lambda: not view._verifier._runs)
    assert view.said == "The check was stopped"


def test_it_looks_again_only_where_something_has_changed(
    view: CacheView, memory: PrefixMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[object] = []
    real: Callable[..., Any] = cache.entries
    monkeypatch.setattr(cache, "entries", lambda *given, **named: looked.append(1) or real(*given, **named))
    say(view, kind="look")
    assert looked == []
    save(memory, range(9000, 9300))
    say(view, kind="look")
    assert (len(looked), len(view.rows)) == (1, 4)


def test_strange_messages_are_no_orders(view: CacheView, memory: PrefixMemory) -> None:
    for content in ({}, {"kind": "pin"}, {"kind": "limit", "limit": 3, "sure": True}, {"kind": "delete", "name": None}):
        say(view, **content)
    assert (len(entries(memory)), view.problem) == (3, "")


def test_many_prefixes_are_read_with_progress(view: CacheView, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "INTERVAL", 0.0)
    shown: list[Any] = []
    view.observe(lambda change: shown.append(change["new"].get("line")), "reading")
    view.read()
    assert shown[-2:] == ["reading what is kept: 2 of 3 prefixes · 67%", None]
