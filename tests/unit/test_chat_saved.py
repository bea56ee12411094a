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
from unit.chat_samples import Bytes
from unit.test_chat_tree import Parrot

from ipyllama.chat import Chat
from ipyllama.chat.saved import FORMAT, TREES, UNUSED, _digest
from ipyllama.chat.tree import UNDO_STEPS
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
        (a, a.id, a.said, a.prompt, a.options, [t.id for t in a.path])
        == (b, b.id, b.said, b.prompt, b.options, [t.id for t in b.path])
        for a, b in pairs
    ) and (one.head and one.head.id) == (other.head and other.head.id)


def test_what_was_said_comes_back_in_every_respect(chat: Chat, tmp_path: Path) -> None:
    one = chat.ask("one", cell="a", name="first")
    chat.ask(["two\n", "<b>é😀", ""], cell="b", temperature=0, stop=("x",), logit_bias={5: -1.5})
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


def test_a_kernel_that_took_everything_back_hides_nothing(chat: Chat, tmp_path: Path) -> None:
    chat.ask("one")
    other = Chat(Parrot())
    other.keep(tmp_path / "chat")
    other.ask("two")
    other.undo()
    assert [turn.message for turn in resumed(tmp_path / "chat").all_turns] == ["one"]


def test_an_older_conversation_can_be_resumed(chat: Chat, tmp_path: Path) -> None:
    """Somebody asked one thing in a new kernel before resuming, and restarted it; or the latest is damaged."""
    chat.ask("one")
    chat.ask("two")
    other = Chat(Parrot())
    other.keep(tmp_path / "chat")
    other.ask("hasty")
    again = Chat(Parrot())
    again.keep(tmp_path / "chat")
    assert again.resume(3) is None
    assert again.resume().n_before == 1
    assert again.resume(2).n_before == 0
    assert [turn.message for turn in again.path()] == ["one", "two"]
    with pytest.raises(BadOption, match="1 is the latest"):
        again.resume(0)
    (tmp_path / "chat" / "trees" / f"{other._saved._own}.json").write_text("damaged")
    fourth = Chat(Parrot())
    fourth.keep(tmp_path / "chat")
    with pytest.raises(BadState):
        fourth.resume()
    assert fourth.resume(3).n_before == 0
    assert same(chat, fourth)


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
    path = next((tmp_path / "chat" / what).iterdir())
    data = path.read_bytes()
    at = data.rindex(b"0")  # of timings and times: no id depends on them
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
    content = json.loads(tree.read_text())["content"]
    for wanted in ("../../secret", "/etc/passwd", "", "z" * 16, "0" * 15):
        changed = content | {"turns": [wanted]}
        tree.write_text(json.dumps({"format": FORMAT, "sha256": _digest(changed), "content": changed}))
        other = Chat(Parrot())
        other.keep(tmp_path / "chat")
        with pytest.raises(BadState):
            other.resume()


@pytest.mark.parametrize(
    ("cuts", "said"),
    [
        (..., ["abcdef"]),  # as conversations of old have it
        ([2, 4], ["ab", "cd", "ef"]),
        *(
            (cuts, None)
            for cuts in ([True], [2, 2], [3] * 10_000, [4, 2], [0], [6], [-1], [2.0], ["2"], "2", 2, None, {"2": 3})
        ),
    ],
)
def test_parts_in_a_file_end_inside_the_message_one_after_the_other(
    chat: Chat, tmp_path: Path, cuts: object, said: list[str] | None
) -> None:
    turn = chat.ask("abcdef")
    path = tmp_path / "chat" / "turns" / f"{turn.id}.json"
    content = json.loads(path.read_text())["content"]
    content["place"]["cuts"] = cuts
    if cuts is ...:
        del content["place"]["cuts"]
    path.write_text(json.dumps({"format": FORMAT, "sha256": _digest(content), "content": content}))
    if said is None:
        with pytest.raises(BadState, match="damaged"):
            resumed(tmp_path / "chat")
    else:
        assert [each.said for each in resumed(tmp_path / "chat").all_turns] == [said]


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
        "import ipyllama.chat.saved\n"
        "def talk(left):\n"
        "    replace = os.replace\n"
        "    def counted(*a):\n"
        "        nonlocal left\n"
        "        left -= 1\n"
        "        if left < 0: os.kill(os.getpid(), 9)\n"
        "        replace(*a)\n"
        "    os.replace = counted\n"
        "    chat = Chat(Parrot()); chat.keep(os.path.join(sys.argv[2], str(left)))\n"
        "    for n in range(4): chat.ask(f'm{n}')\n"
        "    os._exit(0)\n"
        "Chat(Parrot()).ask('what is imported late is, once for all')\n"
        "for left in range(9):\n"
        "    child = os.fork() or talk(left)\n"
        "    assert os.waitpid(child, 0)[1] == (9 if left < 8 else 0)\n"
    )
    arguments = [str(Path(__file__).parents[1]), str(tmp_path)]
    subprocess.run([sys.executable, "-c", program, *arguments], check=True, timeout=120)
    for left in range(9):
        chat = Chat(Parrot())
        chat.keep(tmp_path / str(left))
        saved = chat.resume()
        assert (0 if saved is None else len(saved.turns)) == left // 2


def test_other_weights_under_the_same_name_read_the_words_anew(chat: Chat, tmp_path: Path) -> None:
    """Token ids may be another vocabulary's. Everything else stays: names, cells, what is stale, the head."""
    chat.ask("one", cell="a", name="first")
    chat.ask("two", cell="b")
    chat.ask("un", cell="a")
    chat.ask("three", cell="c")
    other = Chat(Heavy())
    other.keep(tmp_path / "chat")
    saved = other.resume()
    assert saved is not None
    assert saved.reread
    assert [turn.tokens for turn in other.all_turns] == [()] * 3
    assert other.messages == chat.messages
    assert [turn.message for turn in other.stale] == [turn.message for turn in chat.stale] == ["two"]
    assert other["first"].cell == "a"
    turn = other.ask("four")
    prompt = other.llm.template.render([*chat.messages, {"role": "user", "content": "four"}])
    assert other.llm.prompts == [prompt]
    read = tuple(other.llm.vocab.tokenize(prompt, False, True))
    assert turn.ledger.tokens[: len(read)] == read
    assert other.ask("zwei", cell="b").path[0].message == "un"
    again = Chat(Heavy())
    again.keep(tmp_path / "chat")
    assert again.resume() is not None
    assert same(again, other)
    assert again["4"].tokens


def test_a_conversation_goes_on_with_other_weights_in_the_place_of_its_model(chat: Chat) -> None:
    chat.ask("one", cell="a")
    chat.ask("two", cell="b")
    before = chat.messages
    chat.use(Parrot())
    assert chat.turns[0].tokens, "the same weights, loaded again"
    chat.use(Heavy())
    assert (chat.messages, chat.turns[0].tokens) == (before, ())
    assert not chat.undo(), "what was there before was for the other weights"
    assert chat.ask("deux", cell="b").parent.message == "one"


def test_what_replaced_what_is_remembered(chat: Chat, tmp_path: Path) -> None:
    """A stale turn that runs again in the next kernel follows its parent's newest answer there, too."""
    chat.ask("one", cell="a")
    chat.ask("two", cell="b")
    chat.ask("un", cell="a")
    chat.ask("uno", cell="a")
    again = resumed(tmp_path / "chat")
    assert [turn.message for turn in again.stale] == ["two"]
    assert [turn.message for turn in again.ask("two", cell="b").path] == ["uno", "two"]
    assert again.stale == ()


def test_names_are_those_of_parents_too(chat: Chat, tmp_path: Path) -> None:
    chat.ask("one", name="first")
    chat.ask("two")
    again = resumed(tmp_path / "chat")
    assert [turn.name for turn in again.head.path] == ["first", None]
    assert [turn.name for turn in again.ask("three").path] == ["first", None, None]


def turn_files(folder: Path) -> set[str]:
    return {path.stem for path in (folder / "turns").iterdir()}


def test_turns_that_no_tree_has_are_deleted(chat: Chat, tmp_path: Path) -> None:
    """At the latest by the next kernel, to which they cannot come back."""
    one = chat.ask("one", cell="a")
    two = chat.ask("two", cell="b")
    un = chat.ask("un", cell="a")
    chat.ask("three", cell="c")
    chat.remove(chat["c"])
    stranger = tmp_path / "chat" / "turns" / "notes.txt"
    stranger.write_text("mine")
    assert len(turn_files(tmp_path / "chat")) == 5, "undo may bring it back"
    other = Chat(Parrot())
    other.keep(tmp_path / "chat")
    new = other.ask("new")
    assert turn_files(tmp_path / "chat") == {one.id, two.id, un.id, new.id, "notes"}, "a stale turn needs its parent"
    assert same(resumed(tmp_path / "chat"), other)
    chat.undo()
    assert same(resumed(tmp_path / "chat"), chat), "what comes back is written again"
    chat.ask("four")
    assert same(resumed(tmp_path / "chat"), chat)


def test_in_a_long_session_turns_that_cannot_come_back_are_deleted(chat: Chat, tmp_path: Path) -> None:
    for number in range(UNDO_STEPS + 2 * UNUSED):
        chat.ask(f"again {number}", cell="a")
    assert len(turn_files(tmp_path / "chat")) <= UNDO_STEPS + UNUSED + 1
    while chat.undo():
        assert len(chat) == 1
    assert same(resumed(tmp_path / "chat"), chat)


def test_where_a_tree_cannot_be_read_nothing_is_deleted(chat: Chat, tmp_path: Path) -> None:
    chat.ask("one")
    (tree,) = (tmp_path / "chat" / "trees").iterdir()
    tree.write_text("later versions write this")
    other = Chat(Parrot())
    other.keep(tmp_path / "chat")
    other.ask("two")
    assert len(turn_files(tmp_path / "chat")) == 2


def test_a_kernel_whose_tree_was_deleted_writes_everything_again(chat: Chat, tmp_path: Path) -> None:
    chat.ask("one")
    for number in range(TREES + 1):
        other = Chat(Parrot())
        other.keep(tmp_path / "chat")
        other.ask(f"other {number}")
    assert len(turn_files(tmp_path / "chat")) == TREES
    chat.ask("two")
    assert same(resumed(tmp_path / "chat"), chat)


def test_what_is_resumed_is_not_written_again(chat: Chat, tmp_path: Path) -> None:
    for number in range(5):
        chat.ask(f"{number}", name=f"n{number}")
    before = {path: path.stat().st_ino for path in (tmp_path / "chat" / "turns").iterdir()}
    again = resumed(tmp_path / "chat")
    again.rename("n0", "zero")
    assert {path: path.stat().st_ino for path in before} == before


def test_a_turn_that_comes_out_the_same_in_another_way_is_saved_as_it_is_now(chat: Chat, tmp_path: Path) -> None:
    chat.ask("one", cell="a", max_tokens=5)
    chat.ask("one", cell="a", max_tokens=7)
    assert resumed(tmp_path / "chat").head.options.max_tokens == 7


def test_eight_kernels_at_once_lose_nothing(tmp_path: Path) -> None:
    """They write, take back and delete in one folder; what each has is whole at every moment."""
    program = (
        "import os, random, sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from unit.test_chat_tree import Parrot\n"
        "from ipyllama.chat import Chat\n"
        "import ipyllama.chat.saved as saved\n"
        "saved.UNUSED = 1\n"
        "def live(seed):\n"
        "    dice = random.Random(seed)\n"
        "    for life in range(2):\n"
        "        chat = Chat(Parrot()); chat.keep(sys.argv[2])\n"
        "        chat._saved._look_at = 1\n"
        "        for n in range(12):\n"
        "            what = dice.random()\n"
        "            if what < 0.5: chat.ask(f'word{dice.randrange(4)}', cell=dice.choice('ab'))\n"
        "            elif what < 0.8: chat.undo()\n"
        "            elif what < 0.9 and chat.all_turns: chat.remove(dice.choice(chat.all_turns))\n"
        "            else: chat.resume()\n"
        "    os._exit(0)\n"
        "def safely(seed):\n"
        "    try: live(seed)\n"
        "    finally: os._exit(1)\n"
        "Chat(Parrot()).ask('what is imported late is, once for all')\n"
        "children = [os.fork() or safely(n) for n in range(8)]\n"
        "assert [os.waitpid(child, 0)[1] for child in children] == [0] * 8\n"
    )
    arguments = [str(Path(__file__).parents[1]), str(tmp_path / "chat")]
    subprocess.run([sys.executable, "-c", program, *arguments], check=True, timeout=120)
    chat = Chat(Parrot())
    chat.keep(tmp_path / "chat")
    trees = list((tmp_path / "chat" / "trees").iterdir())
    assert len(trees) == TREES
    for tree in trees:
        chat._saved._read_tree(f"trees/{tree.name}", chat)


def test_replacements_from_a_file_lead_in_no_circle(chat: Chat, tmp_path: Path) -> None:
    one = chat.ask("one", cell="a")
    two = chat.ask("two", cell="a")
    (tree,) = (tmp_path / "chat" / "trees").iterdir()
    content = json.loads(tree.read_text())["content"]
    content["replaced"] = {one.id: two.id, two.id: one.id, "x": "y", "y": "x"}
    tree.write_text(json.dumps({"format": FORMAT, "sha256": _digest(content), "content": content}))
    assert resumed(tmp_path / "chat").ask("three", after=one).parent.id == two.id


def test_in_the_next_kernel_cells_that_ran_before_resuming_have_their_saved_turns(chat: Chat, tmp_path: Path) -> None:
    chat.ask("one", cell="a", name="first")
    other = Chat(Parrot())
    other.keep(tmp_path / "chat")
    other.ask("eins", cell="a")
    other.ask("zwei", cell="b", name="first")
    other.resume()
    assert [(turn.message, turn.name) for turn in other.all_turns] == [("one", "first"), ("zwei", None)]
    assert [turn.message for turn in other.stale] == ["zwei"]
    assert [turn.message for turn in other.ask("zwei", cell="b").path] == ["one", "zwei"]


class Heavy(Parrot):
    """Of the same name, out of another file: its ids are others."""

    weights = "lead"

    def __init__(self) -> None:
        super().__init__()
        self.vocab = Backwards()


class Backwards(Bytes):
    """Another vocabulary: the ids of bytes in the other order."""

    def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        return [255 - token if token < 256 else token for token in super().tokenize(text, add_special, parse_special)]

    def piece(self, token: int) -> bytes:
        return super().piece(255 - token if token < 256 else token)
