"""Why a memory is where it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipyllama.prefix import PrefixMemory
from ipyllama.prefix.location import BESIDE, VARIABLE, memory_for, origin


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
