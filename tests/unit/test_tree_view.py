"""The tree view from the kernel's side: what the front end asks for, and what becomes of it. The model is a parrot."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from unit.test_chat_tree import Parrot

from ipyllama.chat import Chat
from ipyllama.ledger import Ledger
from ipyllama.prefix.where import Where
from ipyllama.widgets.tree import DETAIL, TreeView

HOSTILE = "<img src=x onerror=alert(1)>"


class Placed(Parrot):
    """A parrot that says where turns are kept: the longer, the less of them."""

    def where(self, prompts: list[Ledger]) -> list[Where]:
        return [Where(100, 100 - len(prompts[0].segments), 100, 0) for _ in prompts]


class Shown(TreeView):
    """A view that keeps what is sent to the front end."""

    def __init__(self, chat: Chat, **options: Any) -> None:
        self.sent: list[dict[str, Any]] = []
        super().__init__(chat, **options)

    def send(self, content: dict[str, Any], buffers: Any = None) -> None:
        self.sent.append(content)

    def say(self, until: Callable[[], object] = lambda: True, **content: Any) -> None:
        """A message of the front end, and all that it leads to."""
        self._handle_custom_msg(content, [])
        until_true(lambda: not self.worker._runs and until())


def until_true(what: Callable[[], object]) -> None:
    end = time.monotonic() + 10
    while not what():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.fixture
def chat() -> Chat:
    chat = Chat(Placed())
    chat.ask("a village", name="village")
    chat.ask(f"a storm {HOSTILE}", name="storm")
    chat.ask("a feast", after="village", name="it's a feast")
    return chat


@pytest.fixture
def view(chat: Chat) -> Iterator[Shown]:
    view = Shown(chat, cells=True)
    yield view
    view.close()


def names(view: TreeView) -> list[str]:
    return [row[2] for row in view.rows]


def test_go_to_rename_remove_and_undo(view: Shown, chat: Chat) -> None:
    storm = chat["storm"]
    view.say(kind="goto", turn=storm.id)
    assert chat.head == storm
    assert view.said == "The head is turn 2 (storm) now"
    view.say(kind="rename", turn=storm.id, name=" gale ")
    assert chat.head is not None
    assert chat.head.name == "gale"
    view.say(kind="rename", turn=storm.id, name="none")
    assert "cannot be the name of a turn" in view.problem
    assert names(view) == ["village", "it's a feast", "gale"]
    view.say(kind="rename", turn=storm.id, name="")
    assert (view.said, view.problem) == ("Turn 2 is without a name now", "")
    view.say(kind="remove", turn=chat["village"].id)
    assert chat.all_turns == ()
    assert view.rows == []
    view.say(kind="undo")
    assert len(view.rows) == 3
    view.say(kind="goto", turn=None)
    assert chat.head is None
    view.say(kind="goto", turn="0" * 16)
    assert view.problem == "that turn is not in the conversation any more"


def test_undo_ends_somewhere(view: Shown, chat: Chat) -> None:
    for _ in range(4):
        view.say(kind="undo")
    assert view.said == "There is nothing to undo"
    assert chat.all_turns == ()


def test_it_follows_what_is_said_elsewhere(view: Shown, chat: Chat) -> None:
    chat.ask("and then?")
    until_true(lambda: len(view.rows) == 4)
    assert view.dirty
    assert view.title == "Chat 'default' with parrot: 4 turns, 3 of them on the way to the head"
    chat.reset()
    until_true(lambda: view.rows == [])
    view.close()
    chat.ask("hello")
    assert view.rows == []


@pytest.mark.parametrize(
    ("name", "code"),
    [("village", "%%llama --after village\n"), ("it's a feast", "%%llama --after 'it'\"'\"'s a feast'\n")],
)
def test_a_fork_is_told_as_a_cell(view: Shown, chat: Chat, name: str, code: str) -> None:
    from ipyllama.magics.options import parse_cell_line

    view.say(kind="detail", turn=chat[name].id)
    assert view.sent[-1]["fork"] == code
    assert parse_cell_line(code.removeprefix("%%llama ").strip()).after == name


def test_a_fork_without_a_name_goes_by_its_id(chat: Chat) -> None:
    plain = chat.ask("nameless")
    view = Shown(chat)
    view.say(kind="detail", turn=plain.id)
    assert view.sent[-1]["fork"] == f"""chat['{plain.id[:8]}'].ask("…")"""
    assert chat[plain.id[:8]] == plain
    view.close()


def test_long_texts_are_cut(view: Shown, chat: Chat) -> None:
    turn = chat.ask("word " * 5000)
    view.say(kind="detail", turn=turn.id)
    assert len(view.sent[-1]["message"]) <= DETAIL + 1
    until_true(lambda: len(view.rows) == 4)
    assert max(len(row[3]) for row in view.rows) <= 121


def test_where_turns_are_kept(view: Shown, chat: Chat) -> None:
    view.say(kind="where", turns=[chat["storm"].id, "unknown", 7])
    (sent,) = view.sent
    n = len(chat["storm"].ledger.segments)
    places = {"live": (100 - n) / 100, "RAM": 1.0}
    assert sent["places"] == {chat["storm"].id: [f"of 100 tokens {100 - n} live, 100 in RAM, 0 on disk", places]}


def test_the_static_forms_say_the_same(view: Shown) -> None:
    bundle = view.bundle()
    assert set(bundle) == {"text/plain", "text/html"}
    for said in ("village", "a feast", "head"):
        assert said in bundle["text/plain"]
        assert said in bundle["text/html"]
    assert "live 98%, RAM" in bundle["text/plain"]
    assert "live 98%, RAM" in bundle["text/html"]
    assert HOSTILE not in bundle["text/html"]


def test_strange_messages_are_no_orders(view: Shown, chat: Chat) -> None:
    head = chat.head
    for content in ({}, {"kind": "goto", "turn": 3}, {"kind": "rename", "turn": chat["storm"].id}, {"kind": "where"}):
        view.say(**content)
    assert chat.head == head
    assert view.problem == ""
