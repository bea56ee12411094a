"""Conversations on disk: what comes back equals what was there, damage is told, nothing outside is touched."""

from __future__ import annotations

import json
import os
import pickle
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.test_chat_tree import Parrot

from ipyllama.chat import Chat
from ipyllama.chat.saved import TREES
from ipyllama.errors import BadOption, BadState


@pytest.fixture
def chat(tmp_path: Path) -> Chat:
    chat = Chat(Parrot(), system="Be brief.")
    chat.keep(tmp_path / "chat")
    return chat


def resumed(folder: Path) -> Chat:
    """The next kernel."""
    chat = Chat(Parrot(), system="Be brief.")
    chat.keep(folder)
    assert chat.resume() is not None
    return chat


def same(one: Chat, other: Chat) -> bool:
    """Whether two conversations have the same turns, in every respect."""
    pairs = zip(one.all_turns, other.all_turns, strict=True)
    return all(
        (a, a.id, a.prompt, a.options, [t.id for t in a.path]) == (b, b.id, b.prompt, b.options, [t.id for t in b.path])
        for a, b in pairs
    ) and (one.head and one.head.id) == (other.head and other.head.id)


def test_what_was_said_comes_back_in_every_respect(chat: Chat, tmp_path: Path) -> None:
    one = chat.ask("one", cell="a", name="first")
    chat.ask("two\n<b>é😀", cell="b", temperature=0, stop=("x",), logit_bias={5: -1.5})
    chat.ask("three", after=one, system="Be loud.")
    chat.ask("deux", cell="b")
    chat.goto(one)
    again = resumed(tmp_path / "chat")
    assert same(chat, again)
    assert again["first"].text == "ONE"
    assert again.stale == chat.stale
    assert again.ask("four").parent.id == one.id


def test_nothing_saved_is_nothing_resumed(chat: Chat) -> None:
    assert chat.resume() is None
    with pytest.raises(BadOption, match="is not saved"):
        Chat(Parrot()).resume()


def test_what_was_said_before_stays_beside_what_is_resumed(chat: Chat, tmp_path: Path) -> None:
    chat.ask("one", cell="a")
    other = Chat(Parrot())
    other.keep(tmp_path / "chat")
    other.ask("eins", cell="x")
    other.resume()
    assert [turn.message for turn in other.all_turns] == ["one", "eins"]
    assert other.head.message == "one"
    other.undo()
    assert [turn.message for turn in other.all_turns] == ["eins"]


def test_two_kernels_do_not_lose_each_others_turns(chat: Chat, tmp_path: Path) -> None:
    other = Chat(Parrot())
    other.keep(tmp_path / "chat")
    for number in range(3):
        chat.ask(f"mine {number}")
        other.ask(f"theirs {number}")
    assert same(resumed(tmp_path / "chat"), other)
    assert len(list((tmp_path / "chat" / "turns").iterdir())) == 6


def test_after_a_reset_the_old_conversation_can_be_resumed(chat: Chat) -> None:
    chat.ask("one")
    chat.reset()
    chat.ask("new")
    chat.resume()
    assert {turn.message for turn in chat.all_turns} == {"one", "new"}


def test_only_the_latest_trees_are_kept(tmp_path: Path) -> None:
    for _ in range(TREES + 3):
        chat = Chat(Parrot())
        chat.keep(tmp_path)
        chat.ask("same")
    assert len(list((tmp_path / "trees").iterdir())) == TREES


def test_files_are_their_owners_alone(chat: Chat, tmp_path: Path) -> None:
    chat.ask("one")
    for place in (tmp_path / "chat").rglob("*"):
        mode = stat.S_IMODE(place.stat().st_mode)
        assert mode == (0o700 if place.is_dir() else 0o600), place


@pytest.mark.parametrize("what", ["trees", "turns"])
@pytest.mark.parametrize("damage", ["truncated", "empty", "flipped", "foreign", "pickle", "gone", "deep"])
def test_damage_is_told_and_the_conversation_goes_on(chat: Chat, tmp_path: Path, what: str, damage: str) -> None:
    chat.ask("one")
    chat.ask("two")
    files = [(path, path.read_bytes()) for path in (tmp_path / "chat" / what).iterdir()]
    path, data = next((path, data) for path, data in files if what == "trees" or b"ONE" in data)
    at = data.index(b"ONE") if what == "turns" else len(data) // 2
    {
        "truncated": lambda: path.write_bytes(data[: len(data) // 2]),
        "empty": lambda: path.write_bytes(b""),
        "flipped": lambda: path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]),
        "foreign": lambda: path.write_text('{"format": 1}'),
        "pickle": lambda: path.write_bytes(pickle.dumps(Boom())),
        "gone": path.unlink,
        "deep": lambda: path.write_bytes(b"[" * 100_000),
    }[damage]()
    other = Chat(Parrot())
    other.keep(tmp_path / "chat")
    if what == "trees" and damage == "gone":
        assert other.resume() is None
    else:
        with pytest.raises(BadState, match="saved conversation"):
            other.resume()
    assert other.ask("three").text == "THREE"


class Boom:
    """Would be noticed if it were unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return os._exit, (99,)


def test_ids_from_a_file_lead_nowhere(chat: Chat, tmp_path: Path) -> None:
    chat.ask("one")
    (tree,) = (tmp_path / "chat" / "trees").iterdir()
    (tmp_path / "secret.json").write_text("{}")
    content = json.loads(tree.read_text())
    for wanted in ("../../secret", "/etc/passwd", "", "z" * 16, "0" * 15):
        tree.write_text(json.dumps(content | {"turns": [wanted]}))
        other = Chat(Parrot())
        other.keep(tmp_path / "chat")
        with pytest.raises(BadState):
            other.resume()


def test_a_place_that_cannot_be_written_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    chat = Chat(Parrot())
    chat.keep(tmp_path / "file" / "chat")
    with pytest.warns(UserWarning, match="this conversation is not saved"):
        chat.ask("one")
    chat.ask("two")
    assert len(chat) == 2


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.text(max_size=9).filter(str.split), st.sampled_from([None, "a", "b", "c"])), max_size=8))
def test_whatever_is_said_comes_back(tmp_path_factory: pytest.TempPathFactory, said: list[tuple[str, str]]) -> None:
    folder = tmp_path_factory.mktemp("chat")
    chat = Chat(Parrot())
    chat.keep(folder)
    for text, cell in said:
        chat.ask(text, cell=cell)
    if said:
        assert same(chat, resumed(folder))


def test_killed_at_any_moment_a_whole_conversation_is_left(tmp_path: Path) -> None:
    """The process ends at its n-th write; what is resumed is what was saved before."""
    program = (
        "import os, sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from unit.test_chat_tree import Parrot\n"
        "from ipyllama.chat import Chat\n"
        "left, replace = int(sys.argv[3]), os.replace\n"
        "def counted(*a):\n"
        "    global left\n"
        "    left -= 1\n"
        "    if left < 0: os.kill(os.getpid(), 9)\n"
        "    replace(*a)\n"
        "os.replace = counted\n"
        "chat = Chat(Parrot()); chat.keep(sys.argv[2])\n"
        "for n in range(4): chat.ask(f'm{n}')\n"
    )
    for left in range(9):
        folder = tmp_path / str(left)
        arguments = [str(Path(__file__).parents[1]), str(folder), str(left)]
        subprocess.run([sys.executable, "-c", program, *arguments], check=False, timeout=60)
        chat = Chat(Parrot())
        chat.keep(folder)
        saved = chat.resume()
        assert (0 if saved is None else len(saved.turns)) == left // 2
