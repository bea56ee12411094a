"""Notes about crashes: whose they are, shown once, never in the way. Written for real in kernel/test_crash.py."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ipyllama import crash
from ipyllama.errors import CrashWarning
from ipyllama.models.cache import crash_dir


@pytest.fixture(autouse=True)
def _at_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)


def leave(name: str, *, place: Path | str, message: str = "ops.cpp:1: failed", age: float = 0.0, **more: str) -> Path:
    """A note as native code writes it."""
    lines = {"version": "0.1.0", "llama.cpp": "0c1e", "place": str(place), "time": "1700000000", **more}
    crash_dir().mkdir(parents=True, exist_ok=True)
    path = crash_dir() / name
    path.write_text("".join(f"{key}: {value}\n" for key, value in lines.items()) + f"message: {message}\n")
    os.utime(path, (time.time() - age,) * 2)
    return path


def test_nothing_happened() -> None:
    assert crash.take_note() is None
    assert not crash_dir().exists()


def test_it_is_told_once(home: Path) -> None:
    leave("a.txt", place=home, running="answering with tiny", log="no room: really")
    note = crash.take_note()
    assert note is not None
    assert (note.message, note.running, note.log) == ("ops.cpp:1: failed", "answering with tiny", "no room: really")
    assert (note.time, note.version, note.llama_cpp) == (1_700_000_000, "0.1.0", "0c1e")
    assert "died in llama.cpp while answering with tiny (2023-11-" in str(note)
    assert "ops.cpp:1: failed (no room: really). Run the cells again;" in str(note)
    assert crash.take_note() is None


def test_the_newest_of_several_is_told_and_all_are_gone(home: Path) -> None:
    leave("new.txt", place=home, message="second")
    leave("old.txt", place=home, message="first", age=60)
    note = crash.take_note()
    assert note is not None
    assert note.message == "second"
    assert list(crash_dir().iterdir()) == []


def test_each_notebook_gets_its_own(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave("folder.txt", place=home, message="folder")
    leave("a.txt", place="/n/a.ipynb", message="a")
    leave("b.txt", place="/n/b  two.ipynb", message="b")
    monkeypatch.setenv("JPY_SESSION_NAME", "/n/c.ipynb")
    assert crash.take_note() is None
    monkeypatch.setenv("JPY_SESSION_NAME", "/n/a.ipynb")
    assert crash.take_note().message == "a"  # type: ignore[union-attr]
    monkeypatch.delenv("JPY_SESSION_NAME")
    assert crash.take_note().message == "folder"  # type: ignore[union-attr]
    assert [path.name for path in crash_dir().iterdir()] == ["b.txt"]


def test_what_nobody_came_for_goes_after_a_month() -> None:
    leave("old.txt", place="/n/a.ipynb", age=31 * 24 * 3600)
    leave("new.txt", place="/n/a.ipynb", age=29 * 24 * 3600)
    crash.take_note()
    assert [path.name for path in crash_dir().iterdir()] == ["new.txt"]


@pytest.mark.parametrize("content", [b"", b"\xff" * 100, b"place: {home}\n", b"\0" * 200_000, b"message: no place\n"])
def test_damaged_notes_are_passed_over(home: Path, content: bytes) -> None:
    crash_dir().mkdir(parents=True)
    (crash_dir() / "x.txt").write_bytes(content.replace(b"{home}", os.fsencode(home)))
    (crash_dir() / "folder.txt").mkdir()
    assert crash.take_note() is None


def test_a_link_is_not_followed(home: Path) -> None:
    real = leave("real.txt", place=home).rename(home / "real.txt")
    (crash_dir() / "link.txt").symlink_to(real)
    assert crash.take_note() is None
    assert real.exists()


def test_a_program_gets_a_warning(home: Path) -> None:
    leave("a.txt", place=home)

    def load() -> None:
        crash.warn()

    with pytest.warns(CrashWarning, match="the previous kernel died") as caught:
        load()  # where the warning points
    lines = Path(__file__).read_text().splitlines()
    assert lines[caught[0].lineno - 1] == "        load()  # where the warning points"
    load()  # a second warning would be an error
