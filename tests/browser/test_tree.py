"""The tree in JupyterLab: mouse and keyboard, what they do in Python, and what a reopened notebook shows."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from browser.trace import tell_longest

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
expect = playwright.expect
Open = Callable[..., Any]
HOSTILE = """<img src=x onerror="window.hit=1"></script><script>window.hit=2</script>"""
SHOW = "chat = get_ipython().magics_manager.registry['LlamaMagics'].session.conversation()"
TALK = (
    "%%llama -n 4 --name village\nabc",
    f"%%llama -n 4 --name storm\n{HOSTILE}",
    "%%llama -n 4 --after village --name feast\ndef",
    "%llama tree",
    f"{SHOW}\nprint('head', chat.head and chat.head.name, [turn.name for turn in chat.all_turns])",
    "%%llama -n 4\nghi",
)
TREE, STATE, MORE = 4, 5, 6


@pytest.fixture
def talk(bigram: Open) -> Any:
    """A conversation with a fork, and its tree."""
    opened = bigram(*TALK)
    for cell in range(1, TREE + 1):
        opened.run(cell)
    expect(opened.out(TREE).get_by_role("tree")).to_be_visible()
    return opened


def state(notebook: Any) -> str:
    notebook.run(STATE)
    return str(notebook.out(STATE).inner_text()).strip()


def row(notebook: Any, text: str | re.Pattern[str]) -> Any:
    return notebook.out(TREE).get_by_role("treeitem").filter(has_text=text)


def button(notebook: Any, name: str) -> Any:
    return notebook.out(TREE).get_by_role("button", name=name, exact=True)


def test_the_mouse(talk: Any) -> None:
    expect(talk.out(TREE).get_by_role("treeitem")).to_have_count(3)
    expect(row(talk, "feast")).to_have_attribute("aria-current", "true")
    expect(row(talk, "storm")).to_contain_text(HOSTILE)
    row(talk, "storm").click()
    expect(talk.out(TREE).locator(".ipl-detail")).to_contain_text(HOSTILE)
    button(talk, "Go to").click()
    expect(row(talk, "storm")).to_have_attribute("aria-current", "true")
    assert state(talk) == "head storm ['village', 'storm', 'feast']"
    button(talk, "Rename").click()
    talk.page.keyboard.type(" gale ")  # over the old name
    talk.page.keyboard.press("Enter")
    expect(row(talk, "gale")).to_be_visible()
    assert state(talk) == "head gale ['village', 'gale', 'feast']"
    row(talk, "village").click()
    button(talk, "Fork").click()
    expect(talk.out(TREE).locator(".ipl-fork code")).to_have_text("%%llama --after village")
    button(talk, "Remove").click()
    expect(talk.out(TREE).get_by_role("status")).to_have_text(
        "Turn 1 (village) and 2 turns that continued it removed; Undo brings them back"
    )
    assert state(talk) == "head None []"
    button(talk, "Undo").click()
    expect(talk.out(TREE).get_by_role("treeitem")).to_have_count(3)
    button(talk, "Go to the beginning").click()
    expect(talk.out(TREE).locator("[aria-current]")).to_have_count(0)
    assert state(talk) == "head None ['village', 'gale', 'feast']"
    assert talk.page.evaluate("() => window.hit ?? 0") == 0
    assert talk.out(TREE).locator("img, script").count() == 0


def test_the_keyboard(talk: Any) -> None:
    selected = talk.out(TREE).locator("[aria-selected=true]")
    selected.focus()
    keys = talk.page.keyboard
    for key, name in (("Home", "village"), ("ArrowDown", "storm"), ("ArrowLeft", "village"), ("ArrowRight", "storm")):
        keys.press(key)
        expect(talk.out(TREE).locator(".ipl-row:focus")).to_contain_text(name)
    keys.press("Enter")
    expect(row(talk, "storm")).to_have_attribute("aria-current", "true")
    expect(row(talk, "storm")).to_be_focused()
    keys.press("F2")
    keys.type("none")
    keys.press("Enter")
    expect(talk.out(TREE).get_by_role("status")).to_contain_text("'none' cannot be the name of a turn")
    expect(row(talk, "storm")).to_be_focused()
    keys.press("F2")
    keys.type("gale")
    keys.press("Escape")
    expect(row(talk, "storm")).to_be_focused()
    keys.press("Delete")
    expect(row(talk, "storm")).to_have_count(0)
    assert state(talk) == "head village ['village', 'feast']"
    button(talk, "Undo").focus()
    keys.press("Enter")
    expect(row(talk, "storm")).to_have_attribute("aria-current", "true")
    row(talk, "village").click()
    button(talk, "Go to").press("Enter")
    expect(row(talk, "village")).to_have_attribute("aria-current", "true")
    expect(row(talk, "village")).to_be_focused()  # that button can do nothing now
    button(talk, "Remove").press("Enter")
    expect(row(talk, "village")).to_have_count(0)
    expect(talk.out(TREE).locator("button:focus")).to_have_count(1)


def test_a_name_that_is_being_written_when_one_goes_elsewhere(talk: Any) -> None:
    row(talk, "storm").click()
    talk.page.keyboard.press("F2")
    talk.page.keyboard.type("gale")
    button(talk, "Undo").focus()
    expect(row(talk, "gale")).to_be_visible()
    expect(button(talk, "Undo")).to_be_focused()
    assert state(talk) == "head feast ['village', 'gale', 'feast']"


def test_it_follows_the_conversation_and_says_where_turns_are_kept(talk: Any) -> None:
    talk.run(MORE)
    expect(talk.out(TREE).get_by_role("treeitem")).to_have_count(4)
    new = row(talk, "ghi")
    expect(new).to_have_attribute("aria-current", "true")
    expect(new.locator(".ipl-live")).to_have_class(re.compile("ipl-all"), timeout=10_000)
    expect(new).to_have_attribute("aria-label", re.compile(r"of [\d,]+ tokens \d+ live, \d+ in RAM, \d+ on disk"))
    expect(row(talk, "storm").locator(".ipl-live")).to_have_class(re.compile("ipl-part"))


def test_a_reopened_notebook_shows_the_static_form(talk: Any) -> None:
    talk.run(MORE)
    expect(talk.out(TREE).get_by_role("treeitem")).to_have_count(4)
    talk.page.mouse.move(2, 2)
    talk.cell(MORE).locator(".cm-content").click()
    expect(talk.out(TREE).locator(".ipyllama-slot > :not(.ipyllama-view)").last).to_contain_text("ghi")
    (saved,) = talk.save().cells[TREE].outputs
    assert set(saved.data) == {"text/plain", "text/html"}
    assert "3 feast" in saved.data["text/plain"]
    assert "ghi" in saved.data["text/plain"]
    assert "<img" not in saved.data["text/html"]
    talk.lab.end_kernels()
    talk.page.reload(wait_until="domcontentloaded")
    expect(talk.out(TREE)).to_contain_text("ghi", timeout=30_000)
    assert talk.out(TREE).get_by_role("button").count() == 0
    assert "Error displaying widget" not in talk.page.content()
    assert talk.page.evaluate("() => window.hit ?? 0") == 0


MANY = """
import ipyllama
from ipyllama.chat import Chat, Turn
from ipyllama.chat.turn import Place
from ipyllama.reply import Reply
llm = ipyllama.llm.loaded()[0]
said = []
for n in range(400):
    said += [{"role": "user", "content": f"question {n} of a long talk"}, {"role": "assistant", "content": "abc " * 20}]
chat = Chat.from_messages(llm, said)
talk = chat.all_turns
for n in range(100):
    parent = talk[4 * n]
    place = Place(message=f"another way {n}", parent=parent, run=n + 1, chat=chat)
    chat._tree.add(Turn.of(Reply("abc"), place, parent.ledger.append_prompt([1, 2]).append_sampled([3])))
chat.goto(talk[-1])
"""


def test_five_hundred_turns_stay_smooth(bigram: Open) -> None:
    notebook = bigram(MANY, "chat.tree_view()", "chat.goto(chat.all_turns[250])")
    notebook.run(1)
    notebook.run(2)
    tree = notebook.out(2).get_by_role("tree")
    expect(tree.locator("[aria-selected=true]")).to_have_attribute("aria-setsize", "500")
    tree.locator("[aria-selected=true]").focus()

    def walk() -> None:
        for key in ["ArrowUp"] * 10 + ["Home"] + ["PageDown"] * 30 + ["End"]:
            notebook.page.keyboard.press(key)

    tell_longest(notebook.page, "walking", walk)
    expect(tree.locator(".ipl-row:focus")).to_have_attribute("aria-posinset", "500")
    assert tree.get_by_role("treeitem").count() < 60  # the others are not in the page
    notebook.run(3)
    expect(notebook.out(2).locator(".ipl-title")).to_contain_text("251 of them on the way to the head")
