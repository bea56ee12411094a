"""The sampling lab in JupyterLab: sliders, draws, going back, by mouse and keyboard."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
expect = playwright.expect
Open = Callable[..., Any]
MAKE = """import json
from ipyllama import loaded
(llm,) = loaded()
lab = llm.sampling_lab("The capital of France is", temperature=1.0, seed=1)
lab"""
STATE = """print(json.dumps([list(lab.drawn), lab.options.top_k, lab.options.temperature, lab.options.repeat_penalty,
len(lab.next.candidates.tokens), lab.text]))"""


@pytest.fixture
def open_lab(smol: Open) -> Open:
    """`open_lab(*cells)`: a notebook with a lab in cell 1, the other cells after it, and the lab's view."""

    def open_(*cells: str) -> Any:
        opened = smol(MAKE, *cells)
        opened.run(1)
        view = opened.out(1).locator(".ipl-lab")
        expect(view).to_be_visible(timeout=30_000)
        return opened, view

    return open_


def state(notebook: Any, cell: int) -> Any:
    notebook.run(cell)
    return json.loads(notebook.out(cell).inner_text())


def test_sliders_change_the_chain_in_python(open_lab: Open) -> None:
    notebook, view = open_lab(STATE, STATE)
    rows = view.locator("tbody tr")
    expect(rows.first).to_contain_text('" Paris"')
    expect(view.get_by_role("columnheader", name="top-k")).to_contain_text("40 left")
    view.get_by_role("slider", name="top-k").fill("3")
    expect(view.get_by_role("columnheader", name="top-k")).to_contain_text("3 left")
    expect(rows.nth(5).locator("td").nth(2)).to_have_text("–")
    view.get_by_role("slider", name="repetition").fill("1.5")
    expect(view.get_by_role("columnheader", name="repetition")).to_contain_text("49,152 left")
    slider = view.get_by_role("slider", name="temperature")
    slider.focus()
    notebook.page.keyboard.press("Home")  # to 0
    expect(view.get_by_role("columnheader", name="temperature")).to_contain_text("1 left")
    expect(view.get_by_role("columnheader", name="top-p")).to_contain_text("nothing gone")
    assert notebook.page.evaluate("jupyterapp.shell.currentWidget.content.activeCellIndex") == 1
    drawn, top_k, temperature, penalty, left, _ = state(notebook, 2)
    assert (drawn, top_k, temperature, penalty, left) == ([], 3, 0, 1.5, 1)


def test_many_moves_of_a_slider_end_where_it_does(open_lab: Open) -> None:
    notebook, view = open_lab(STATE)
    box = view.get_by_role("slider", name="top-k").bounding_box()
    mouse = notebook.page.mouse
    mouse.move(box["x"] + box["width"] * 0.4, box["y"] + box["height"] / 2)
    mouse.down()
    for step in range(30):
        mouse.move(box["x"] + box["width"] * (0.4 + step / 60), box["y"] + box["height"] / 2)
    mouse.up()
    value = int(view.get_by_role("slider", name="top-k").input_value())
    assert value > 60
    expect(view.get_by_role("columnheader", name="top-k")).to_contain_text(f"{value} left", timeout=10_000)
    assert state(notebook, 2)[1] == value


def test_a_slider_does_not_go_back_while_the_kernel_is_busy(open_lab: Open) -> None:
    notebook, view = open_lab(STATE)
    slider = view.get_by_role("slider", name="top-k")
    slider.evaluate("""slider => {
        const { get, set } = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value");
        window.set = [];
        Object.defineProperty(slider, "value", {
            get: () => get.call(slider),
            set: value => (window.set.push(Number(value)), set.call(slider, value)),
        });
    }""")
    slider.focus()
    with notebook.lab.frozen():
        for _ in range(4):
            notebook.page.keyboard.press("ArrowRight")
            notebook.page.wait_for_timeout(100)
        notebook.page.wait_for_timeout(600)
    expect(view.get_by_role("columnheader", name="top-k")).to_contain_text("44 left")
    assert set(notebook.page.evaluate("window.set")) <= {44}
    assert state(notebook, 2)[1] == 44


def test_draws_are_those_of_an_answer(open_lab: Open) -> None:
    answer = """reply = llm.complete("The capital of France is", temperature=1.0, seed=1, max_tokens=11)
print(json.dumps(list(reply.tokens)))"""
    notebook, view = open_lab(STATE, answer, STATE)
    view.get_by_role("button", name="Draw", exact=True).click()
    drawn = view.locator(".ipl-drawn span")
    expect(drawn).to_have_count(1)
    view.get_by_role("button", name="Draw 10").press("Enter")
    expect(drawn).to_have_count(11, timeout=30_000)
    tokens, *_, text = state(notebook, 2)
    assert tokens == state(notebook, 3)
    assert view.locator(".ipl-drawn").inner_text().replace("\xa0", " ").strip() == text.strip()
    view.get_by_role("button", name="Undo").click()
    expect(drawn).to_have_count(len(tokens) - 1)
    view.locator("tbody .ipl-token").nth(1).click()
    expect(drawn).to_have_count(len(tokens))
    assert state(notebook, 4)[0][:-1] == tokens[:-1]


def test_the_keyboard(open_lab: Open) -> None:
    notebook, view = open_lab()
    drawn, keys = view.locator(".ipl-drawn span"), notebook.page.keyboard
    view.get_by_role("button", name="Draw", exact=True).focus()
    keys.press("Enter")
    expect(drawn).to_have_count(1)
    keys.press("Enter")
    keys.press("Enter")  # before the last one is drawn, perhaps
    expect(drawn).to_have_count(3)
    for _ in range(5):
        keys.down("Enter")  # held down
    expect(drawn).to_have_count(4)
    keys.up("Enter")
    notebook.page.wait_for_timeout(500)
    expect(drawn).to_have_count(4)
    view.get_by_role("button", name="Undo").focus()
    for number in (3, 2, 1, 0):
        keys.press("Enter")
        expect(drawn).to_have_count(number)
    expect(view.locator(":focus")).to_have_count(1)


def test_a_new_seed_draws_something_else(open_lab: Open) -> None:
    notebook, view = open_lab(STATE)
    seed = view.get_by_label("seed")
    expect(seed).to_have_value("1")
    view.get_by_role("button", name="Another").click()
    expect(seed).not_to_have_value("1")
    seed.fill("77")
    seed.press("Tab")
    notebook.page.wait_for_timeout(500)
    notebook.run(2)
    expect(seed).to_have_value("77")


def test_when_it_is_left_its_static_form_is_what_it_shows(open_lab: Open) -> None:
    notebook, view = open_lab()
    view.get_by_role("slider", name="top-k").fill("5")
    view.get_by_role("button", name="Draw", exact=True).click()
    expect(view.locator(".ipl-drawn span")).to_have_count(1)
    notebook.page.mouse.move(5, 5)
    notebook.cell(0).locator(".cm-content").click()
    notebook.page.wait_for_timeout(1500)
    (output,) = notebook.save().cells[1].outputs
    assert set(output.data) == {"text/plain", "text/html"}
    assert output.data["text/plain"].startswith("1 token drawn: ")
    assert "top-k 5" in output.data["text/html"]
    expect(view).to_be_visible()  # it is drawn over the new form
    expect(view.locator(".ipl-drawn span")).to_have_count(1)
    notebook.page.reload(wait_until="domcontentloaded")
    expect(notebook.out(1)).to_contain_text("1 token drawn", timeout=30_000)
    expect(notebook.page.locator("body")).not_to_contain_text("Error displaying widget")


def test_a_long_token_ends_with_an_ellipsis(open_lab: Open) -> None:
    _, view = open_lab()
    token = view.locator("tbody button").first
    assert token.evaluate("token => token.scrollWidth <= token.clientWidth")
    token.evaluate("token => { token.textContent = 'a'.repeat(50) }")
    assert token.evaluate("token => token.scrollWidth > token.clientWidth")
    assert token.evaluate("token => getComputedStyle(token).display") == "block", "an ellipsis needs one"


def test_a_magic_and_what_is_wrong(open_lab: Open) -> None:
    hostile = '%llama sample "<img src=x onerror=alert(1)> </script>" -t 1.5'
    notebook, _ = open_lab(hostile, "lab.draw(200)")
    notebook.run(2)
    view = notebook.out(2).locator(".ipl-lab")
    expect(view.locator(".ipl-context")).to_contain_text("<img src=x onerror=alert(1)> </script>")
    expect(view.get_by_role("slider", name="temperature")).to_have_value("1.5")
    assert notebook.out(2).locator("img").count() == 0
    seed = view.get_by_label("seed")
    seed.fill("99999999999")
    seed.press("Tab")
    expect(view.get_by_role("alert")).to_have_text(re.compile("seed must be between 0 and 4,294,967,294"))
