"""Why a memory is where it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipyllama.prefix import PrefixMemory
from ipyllama.prefix.location import BESIDE, VARIABLE, memory_for, notebook, origin


def test_each_reason(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    monkeypatch.setenv(VARIABLE, "off")
    assert origin(memory_for(True)) == "IPYLLAMA_PREFIX_DIR says so"
    monkeypatch.setenv(VARIABLE, str(tmp_path / "states"))
    assert origin(memory_for(True)) == "IPYLLAMA_PREFIX_DIR says so"
    for chosen in (None, tmp_path / "mine", PrefixMemory(None)):
        assert origin(memory_for(chosen)) == "chosen when the model was loaded"
    monkeypatch.delenv(VARIABLE)
    assert origin(memory_for(True)) == "the user's cache, because no notebook is known"
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "lesson.ipynb"))
    memory = memory_for(True)
    assert memory.location == tmp_path / ".ipyllama" / "lesson" / "prefix"
    assert origin(memory) == BESIDE


def test_a_notebook_name_that_nothing_can_have_is_none(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JPY_SESSION_NAME", f"/{'a' * 5000}/x.ipynb")
    assert notebook() is None


def test_a_folder_stays_where_it_was_chosen(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = PrefixMemory("states")
    monkeypatch.chdir(tmp_path)
    assert memory.location == home / "states"
    assert PrefixMemory("~/states").location == home / "states"
    assert str(memory_for("~nobody-of-this-name/x").location) == str(tmp_path / "~nobody-of-this-name" / "x")
