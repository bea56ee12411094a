"""The chat panel in JupyterLab, with mouse and keyboard: what it does is checked in the page and in Python."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from nbconvert import HTMLExporter

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
Open = Callable[..., Any]
expect = playwright.expect
HOSTILE = """<img src=x onerror="window.hit=1"> </script><script>window.hit=2</script> <b>bold</b>"""
ENDLESS = "Write a very long story about a river, with many chapters."
CHAT = "import json\nchat = get_ipython().magics_manager.registry['LlamaMagics'].session.conversation()\n"
TURNS = CHAT + "print(json.dumps([[t.message, t.text, chat.number(t)] for t in chat.turns]))"
ALL = CHAT + "print(json.dumps([t.message for t in chat.all_turns]))"


def panel(notebook: Any, index: int = 1) -> Any:
    notebook.run(index)
    shown = notebook.out(index).locator(".ipl-panel")
    expect(shown).to_be_visible(timeout=30_000)
    return shown


def field(shown: Any) -> Any:
    return shown.get_by_role("textbox", name="Message")


def ask(shown: Any, text: str, n: int) -> Any:
    """Ask, and wait for the answer, turn `n` of those that are shown then; returns it."""
    field(shown).fill(text)
    field(shown).press("Enter")
    return answered(shown, n)


def answered(shown: Any, n: int) -> Any:
    expect(shown.locator(".ipl-turn")).to_have_count(n, timeout=60_000)
    expect(shown.get_by_role("button", name="Send")).to_be_visible(timeout=60_000)
    return shown.locator(".ipl-turn").nth(n - 1)


def choose(shown: Any, **options: object) -> None:
    """Set options in the fields that fold out."""
    fold = shown.get_by_role("button", name="Sampling")
    fold.click()
    for label, value in options.items():
        control = shown.get_by_label(label.replace("_", " "), exact=True)
        control.fill(str(value))
        control.press("Tab")
    fold.click()
    expect(fold).to_have_attribute("aria-expanded", "false")


def told(notebook: Any, index: int) -> Any:
    """What a cell prints, read as JSON."""
    notebook.run(index)
    return json.loads(notebook.out(index).inner_text())


def test_the_panel_and_cells_are_one_conversation(smol: Open) -> None:
    notebook = smol("%llama chat", TURNS, "%%llama -n 12\nAnd how is that called?", TURNS)
    shown = panel(notebook)
    expect(shown.get_by_role("log")).to_contain_text("Nothing was said yet")
    field(shown).focus()
    notebook.page.keyboard.type("Name a river")
    notebook.page.keyboard.press("Shift+Enter")
    notebook.page.keyboard.type("in Europe.")
    field(shown).evaluate(
        "field => field.dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', isComposing: true, bubbles: true }))"
    )
    assert shown.locator(".ipl-turn").count() == 0  # that Enter chose a character
    notebook.page.keyboard.press("Enter")
    turn = answered(shown, 1)
    expect(field(shown)).to_be_focused()
    expect(field(shown)).to_have_value("")
    expect(turn.locator(".ipl-cost")).to_contain_text(re.compile(r"turn 1 · \d+ prompt tokens: 0 reused"))
    ((message, text, _),) = told(notebook, 2)
    assert message == "Name a river\nin Europe."
    expect(turn.locator(".ipl-said")).to_contain_text(text.split(".")[0][:30])
    # a cell goes on from there, and the panel shows it
    notebook.run(3)
    expect(notebook.out(3)).to_contain_text(re.compile(r"[1-9]\d* reused"))
    expect(shown.locator(".ipl-turn")).to_have_count(2)
    expect(shown.locator(".ipl-message").nth(1)).to_have_text("And how is that called?")
    turn = ask(shown, "Thank you.", 3)
    expect(turn.locator(".ipl-cost")).to_contain_text(re.compile(r"[1-9]\d* reused"))
    assert [message for message, *_ in told(notebook, 4)] == [message, "And how is that called?", "Thank you."]


def test_answer_again_edit_and_walk(smol: Open) -> None:
    notebook = smol("%llama chat", TURNS, ALL, TURNS)
    shown = panel(notebook)
    choose(shown, Temperature=1.5, Most_tokens=12)
    first = ask(shown, "Invent a name.", 1)
    was = first.locator(".ipl-said").inner_text()
    ask(shown, "Another one.", 2)
    first = shown.locator(".ipl-turn").first
    first.get_by_role("button", name="Again").focus()
    notebook.page.keyboard.press("Enter")
    first = answered(shown, 1)
    expect(first.locator(".ipl-place")).to_have_text("2 / 2")
    assert first.locator(".ipl-said").inner_text() != was
    expect(shown.get_by_role("button", name="Again")).to_be_focused()
    # back to the first answer and all that followed it; the keyboard stays where it was
    before = first.get_by_role("button", name="previous branch")
    before.focus()
    notebook.page.keyboard.press("Enter")
    expect(shown.locator(".ipl-turn")).to_have_count(2)
    first = shown.locator(".ipl-turn").first
    expect(first.locator(".ipl-said")).to_have_text(was)
    expect(first.locator(".ipl-place")).to_have_text("1 / 2")
    expect(first.get_by_role("button", name="next branch")).to_be_focused()
    assert [message for message, *_ in told(notebook, 2)] == ["Invent a name.", "Another one."]
    # an edit is a branch of its own
    second = shown.locator(".ipl-turn").nth(1)
    second.hover()
    second.get_by_role("button", name="Edit").click()
    edited = second.get_by_role("textbox", name="Ask this instead")
    expect(edited).to_be_focused()
    expect(edited).to_have_value("Another one.")
    notebook.page.keyboard.press("Escape")
    expect(edited).to_have_count(0)
    second.get_by_role("button", name="Edit").press("Enter")
    edited.fill("A shorter one.")
    edited.press("Enter")
    second = answered(shown, 2)
    expect(second.locator(".ipl-message")).to_have_text("A shorter one.")
    expect(second.locator(".ipl-place")).to_have_text("2 / 2")
    assert told(notebook, 3) == ["Invent a name.", "Another one.", "Invent a name.", "A shorter one."]
    second.get_by_role("button", name="previous branch").click()
    expect(shown.locator(".ipl-message").nth(1)).to_have_text("Another one.")
    assert [message for message, *_ in told(notebook, 4)] == ["Invent a name.", "Another one."]


@pytest.mark.parametrize("way", ["mouse", "keyboard", "slipped"])
def test_stop(smol: Open, way: str) -> None:
    """Also where the button moves away from under the mouse before it is let go, as what is written grows."""
    notebook = smol("%llama chat", CHAT + "print(json.dumps([chat.head.finish_reason, len(chat.head.tokens)]))")
    shown = panel(notebook)
    choose(shown, Most_tokens=3000, Temperature=0)
    field(shown).fill(ENDLESS)
    field(shown).press("Enter")
    expect(shown.locator(".ipl-said")).to_contain_text(re.compile(r"(\w+\W+){5}"), timeout=60_000)
    expect(shown.locator(".ipl-under")).to_contain_text(re.compile(r"\d+ tokens · [\d.]+/s"))
    stop = shown.get_by_role("button", name="Stop")
    if way == "mouse":
        stop.click()
    elif way == "slipped":
        stop.hover()
        notebook.page.mouse.down()
        notebook.page.mouse.move(5, 5)
        notebook.page.mouse.up()
    else:
        field(shown).press("Tab")
        expect(stop).to_be_focused()
        notebook.page.keyboard.press("Enter")
    turn = answered(shown, 1)
    expect(turn.locator(".ipl-cost")).to_contain_text("[interrupted]")
    if way == "keyboard":
        expect(field(shown)).to_be_focused()
    reason, n = told(notebook, 2)
    assert reason == "interrupted"
    assert 5 <= n < 3000


def test_it_answers_while_a_cell_runs(bigram: Open) -> None:
    notebook = bigram("%llama chat", "import time\nfor _ in range(120):\n    time.sleep(0.25)", ALL)
    shown = panel(notebook)
    choose(shown, Most_tokens=30)
    ask(shown, "abc", 1)
    notebook.run(2, wait=False)
    turn = ask(shown, "bcd", 2)
    assert notebook.prompt(2).inner_text() == "[*]:"
    expect(turn.locator(".ipl-cost")).to_contain_text("reused")
    notebook.stop()
    notebook.done(2)
    assert told(notebook, 3) == ["abc", "bcd"]


def test_where_it_is_not_heard_while_a_cell_runs_it_says_so(bigram: Open) -> None:
    notebook = bigram("%llama chat", "import time\ntime.sleep(8)", ALL)
    kernel = "jupyterapp.shell.currentWidget.sessionContext.session.kernel"
    notebook.page.evaluate(f"() => {{ {kernel}.sendControlMessage = undefined }}")
    shown = panel(notebook)
    choose(shown, Most_tokens=30)
    notebook.run(2, wait=False)
    field(shown).fill("abc")
    field(shown).press("Enter")
    expect(shown.get_by_role("status")).to_contain_text("The kernel is busy")
    expect(shown.locator(".ipl-message")).to_have_text("abc")
    assert notebook.prompt(2).inner_text() == "[*]:"
    notebook.done(2)
    answered(shown, 1)
    expect(shown.get_by_role("status")).to_be_empty()
    assert told(notebook, 3) == ["abc"]


def test_a_field_that_is_written_in_is_left_alone(bigram: Open) -> None:
    notebook = bigram("%llama chat")
    shown = panel(notebook)
    shown.get_by_role("button", name="Sampling").click()
    length, temperature = (shown.get_by_label(label, exact=True) for label in ("Most tokens", "Temperature"))
    with notebook.lab.frozen():
        length.fill("0")
        length.press("Tab")
        temperature.fill("0.7")
    expect(shown.get_by_role("alert")).to_contain_text("max_tokens", timeout=10_000)
    expect(length).not_to_have_value("0")
    expect(temperature).to_have_value("0.7")
    length.fill("9")
    length.press("Tab")
    ask(shown, "abc", 1)
    shown.get_by_role("button", name="As cells").click()
    expect(shown.locator("pre.ipl-code")).to_contain_text("--temperature 0.7 --max-tokens 9")


def test_while_another_answer_is_written_it_waits(smol: Open) -> None:
    notebook = smol("%llama chat", "%%llama --raw -n 4000 -t 0\n1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11,", ALL)
    shown = panel(notebook)
    notebook.begin(2)
    field(shown).fill("Hello")
    field(shown).press("Enter")
    expect(shown.locator(".ipl-writing")).to_contain_text("waiting: 1 answer ahead", timeout=30_000)
    notebook.out(2).get_by_role("button", name="Stop").click()
    notebook.done(2)
    answered(shown, 1)
    assert told(notebook, 3) == ["Hello"]


def test_it_becomes_cells(bigram: Open) -> None:
    notebook = bigram("%llama chat", TURNS, TURNS)
    shown = panel(notebook)
    choose(shown, Most_tokens=9, Temperature=0)
    ask(shown, "abc {{x}}", 1)
    ask(shown, "xyz", 2)
    before = told(notebook, 2)
    shown.get_by_role("button", name="As cells").click()
    cells = shown.get_by_role("region", name="The conversation as cells")
    expect(cells.locator("pre")).to_contain_text("%%llama --after none --temperature 0 --max-tokens 9")
    expect(cells.get_by_role("button", name="Copy")).to_be_focused()
    cells.get_by_role("button", name="Insert below").click()
    expect(cells.get_by_role("status")).to_have_text("2 cells inserted below")
    cells.get_by_role("button", name="Close").click()
    expect(cells).to_be_hidden()
    with notebook.lab.frozen():
        shown.get_by_role("button", name="As cells").click()
        notebook.code(2).click()
    expect(cells).to_be_visible()
    expect(notebook.code(2)).to_be_focused()
    cells.get_by_role("button", name="Close").click()
    notebook.run(2)
    notebook.run(3)
    assert [turn[:2] for turn in told(notebook, 4)] == [turn[:2] for turn in before]
    expect(shown.locator(".ipl-turn")).to_have_count(2)
    expect(shown.locator(".ipl-cost").first).to_contain_text("turn 3")


def test_what_is_said_is_only_ever_text(bigram: Open) -> None:
    make = f"""
from ipyllama.chat import Chat
llm = get_ipython().magics_manager.registry['LlamaMagics'].session.current
said = {HOSTILE!r}
system, user, answer = (dict(role=role, content=said) for role in ("system", "user", "assistant"))
messages = [system, user, answer | dict(content="# " + said)]
chat = Chat.from_messages(llm, messages, name=said)
chat.panel(max_tokens=5)"""
    notebook = bigram(make)
    shown = panel(notebook)
    expect(shown.locator(".ipl-message")).to_have_text(HOSTILE)
    expect(shown.locator(".ipl-said h1")).to_have_text(HOSTILE)
    ask(shown, HOSTILE, 2)
    expect(shown.locator(".ipl-message").nth(1)).to_have_text(HOSTILE)
    shown.get_by_role("button", name="As cells").click()
    expect(shown.locator("pre.ipl-code")).to_contain_text("window.hit")
    shown.get_by_role("button", name="Close").click()
    assert shown.locator("img, script, b").count() == 0
    settle(notebook, shown)
    saved = notebook.save().cells[1].outputs[0].data["text/html"]
    assert saved.count("&lt;img src=x") >= 4
    notebook.lab.end_kernels()
    notebook.page.reload(wait_until="domcontentloaded")
    expect(notebook.out(1).locator("h1")).to_have_text(HOSTILE, timeout=30_000)
    assert notebook.out(1).locator("img, script, b").count() == 0
    assert notebook.page.evaluate("() => window.hit ?? 0") == 0


def settle(notebook: Any, shown: Any) -> None:
    """Wait until the static form is what the view shows."""
    notebook.page.wait_for_timeout(1500)
    expect(shown).to_be_visible()


def test_a_message_of_several_lines_with_dollars(bigram: Open) -> None:
    """It is shown as it was written, and the field in which it is edited is as high as it is."""
    text = "a $x^2$\nb\nc\nd"
    notebook = bigram("%config Llama.max_tokens = 4\n%llama chat", "%llama tree")
    shown = panel(notebook)
    turn = ask(shown, text, 1)
    turn.get_by_role("button", name="Again").click()
    answered(shown, 1)
    notebook.run(2)
    expect(notebook.out(2).locator(".ipl-tree")).to_be_visible()
    notebook.page.wait_for_timeout(2500)
    found = notebook.page.locator("mjx-container").evaluate_all(
        "all => all.map(each => each.parentElement.outerHTML.slice(0, 150))"
    )
    assert found == []
    assert turn.locator(".ipl-message").inner_text() == text
    turn.hover()
    turn.get_by_role("button", name="Edit").click()
    assert turn.get_by_role("textbox").evaluate("field => field.scrollHeight <= field.clientHeight")


def test_saved_while_one_writes_it_holds_what_was_said(bigram: Open, chromium: Any) -> None:
    notebook = bigram("%llama chat")
    shown = panel(notebook)
    choose(shown, Most_tokens=26, Temperature=0)
    ask(shown, "abc", 1)
    settle(notebook, shown)
    expect(field(shown)).to_be_focused()  # also where the view was drawn anew
    notebook.page.keyboard.type("a draft")
    content = notebook.save()
    (saved,) = content.cells[1].outputs
    assert set(saved.data) == {"text/plain", "text/html"}
    for form in saved.data.values():
        assert "abcdefgh" in form.replace("\n", "")
        assert "prompt tokens" in form
    expect(field(shown)).to_have_value("a draft")
    # without a kernel: the same, nothing to press, no error
    notebook.lab.end_kernels()
    notebook.page.reload(wait_until="domcontentloaded")
    expect(notebook.out(1)).to_contain_text("abcdefgh", timeout=30_000)
    assert "Error displaying widget" not in notebook.page.content()
    assert notebook.out(1).get_by_role("button").count() == 0
    # and on a page of its own, offline
    html, _ = HTMLExporter(embed_images=True).from_notebook_node(content)
    page = chromium.new_page()
    page.route("**/*", lambda route: route.abort())
    page.set_content(html, wait_until="domcontentloaded")
    expect(page.locator(".ipyllama-slot")).to_contain_text("abcdefgh")
    page.close()


def test_a_page_that_comes_late_shows_the_answer_that_is_written(smol: Open) -> None:
    notebook = smol("%llama chat")
    shown = panel(notebook)
    choose(shown, Most_tokens=3000, Temperature=0)
    field(shown).fill(ENDLESS)
    field(shown).press("Enter")
    expect(shown.locator(".ipl-said")).to_contain_text(re.compile(r"(\w+\W+){5}"), timeout=60_000)
    began = shown.locator(".ipl-said").inner_text()[:10]
    notebook.save()
    notebook.page.reload(wait_until="domcontentloaded")
    expect(shown.locator(".ipl-writing .ipl-said")).to_contain_text(began, timeout=60_000)
    shown.get_by_role("button", name="Stop").click()
    answered(shown, 1)


def test_models_can_be_chosen(smol: Open, tiny: Callable[[str], Any]) -> None:
    other = tiny("llama-bigram")
    notebook = smol(
        f"import ipyllama\nother = ipyllama.load({str(other)!r}, n_threads=1)\n%llama chat",
        CHAT + "print(json.dumps([chat.llm is other, len(chat.turns)]))",
    )
    shown = panel(notebook)
    choose(shown, Most_tokens=8)
    ask(shown, "Hello", 1)
    picker = shown.get_by_role("combobox", name="Model")
    picker.focus()
    expect(picker.locator("option", has_text="tiny-llama-bigram")).to_have_count(1, timeout=30_000)
    picker.select_option(label="tiny-llama-bigram")
    expect(picker).to_be_enabled(timeout=30_000)
    expect(picker).to_be_focused()
    turn = ask(shown, "abc", 2)
    expect(turn.locator(".ipl-said")).to_contain_text("a")
    assert told(notebook, 2) == [True, 2]
