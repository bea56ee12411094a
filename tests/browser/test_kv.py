"""The KV map in JupyterLab: live while a cell runs, with mouse and keyboard, and static when it is reopened."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from browser.trace import tell_longest

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
Open = Callable[..., Any]
expect = playwright.expect
SHOW = "%llama kv"


def test_it_follows_an_answer(smol: Open) -> None:
    notebook = smol(SHOW, "%%llama --raw -t 0 -n 300 --fresh\nOne two three")
    notebook.run(1)
    view = notebook.out(1).locator(".ipl-kv")
    expect(view).to_contain_text("0 of 8,192 in use")
    notebook.run(2, wait=False)
    expect(view.locator(".ipl-kv-legend")).to_contain_text(re.compile(r"generated [1-9]\d"), timeout=60_000)
    assert notebook.prompt(2).inner_text() == "[*]:"  # it is still being written
    notebook.done(2)
    written = re.search(r"(\d+) tokens at", notebook.out(2).inner_text())
    expect(view).to_contain_text(f"generated {int(written[1]) - 1}")  # the last one has not been evaluated
    expect(view.locator(".ipl-kv-legend")).to_contain_text("computed 3")


def test_a_cell_tells_its_token_to_mouse_and_keyboard(bigram: Open) -> None:
    notebook = bigram("%%llama --raw -n 20\nabc", SHOW)
    notebook.run(1)
    notebook.run(2)
    canvas, tip = notebook.out(2).locator("canvas"), notebook.out(2).locator(".ipl-kv-tip")
    canvas.hover(position={"x": 3, "y": 3})
    expect(tip).to_have_text(re.compile(r"^cell 0: "))
    canvas.focus()
    canvas.press("Home")
    for _ in range(3):
        canvas.press("ArrowRight")
    expect(tip).to_have_text(re.compile(r'^cell 3: "c", token \d+ at position 3, computed, sequence 0$'))
    canvas.press("End")
    expect(tip).to_contain_text("generated")
    canvas.press("ArrowDown")
    expect(tip).to_have_text(re.compile(r"^cell \d+: free"))
    canvas.press("Escape")
    expect(tip).to_contain_text("arrow keys")
    assert notebook.page.evaluate("() => document.activeElement.tagName") == "CANVAS"


def test_who_goes_from_cell_to_cell_goes_on_when_the_static_form_is_replaced(bigram: Open) -> None:
    notebook = bigram(SHOW, "%%llama --raw -n 20\nabc")
    notebook.run(1)
    notebook.run(2)
    canvas, tip = notebook.out(1).locator("canvas"), notebook.out(1).locator(".ipl-kv-tip")
    drawn = canvas.element_handle()
    canvas.press("Home")
    canvas.press("ArrowRight")
    expect(tip).to_have_text(re.compile("^cell 1: "))
    notebook.page.wait_for_function("canvas => !canvas.isConnected", arg=drawn)
    expect(tip).to_have_text(re.compile("^cell 1: "))
    notebook.page.keyboard.press("ArrowRight")
    expect(tip).to_have_text(re.compile("^cell 2: "))


def test_it_is_saved_static_and_comes_back_live(bigram: Open) -> None:
    notebook = bigram("%%llama --raw -n 20\nabc", SHOW)
    notebook.run(1)
    notebook.run(2)
    expect(notebook.out(2).locator("canvas")).to_be_visible()
    saved = notebook.save().cells[2].outputs[0].data
    assert set(saved) == {"text/plain", "text/html"}
    assert "in use" in saved["text/plain"]
    page = notebook.page
    page.reload(wait_until="domcontentloaded")  # the kernel lives: the view is there again
    expect(notebook.out(2).locator("canvas")).to_be_visible(timeout=30_000)
    notebook.lab.end_kernels()
    page.reload(wait_until="domcontentloaded")
    expect(notebook.out(2)).to_contain_text("in use", timeout=30_000)
    expect(notebook.out(2).locator(".ipyllama-slot")).to_contain_text("sequence 0")
    assert notebook.out(2).locator("canvas").count() == 0
    assert "Error displaying widget" not in page.content()


def test_many_cells_stay_smooth(bigram: Open) -> None:
    fill = """
from ipyllama.engine.kv import KVBoard, KVMap
from ipyllama.widgets.kv import KVView
board, n = KVBoard(), 32768
vocab = ipyllama.loaded()[0].vocab
board.show(tuple(range(3, 28)) * (n // 25), 9000, 9000, 25000)
view = KVView(lambda: KVMap(n, board.runs(), "many"), board, vocab)
view
"""
    notebook = bigram("import ipyllama\n" + fill)
    notebook.run(1)
    canvas = notebook.out(1).locator("canvas")
    expect(canvas).to_be_visible()
    box = canvas.bounding_box()
    assert box["height"] < 320

    def point() -> None:
        for step in range(20):
            canvas.hover(position={"x": 5 + step * 24, "y": 5 + step * 8})
        notebook.page.evaluate("() => window.dispatchEvent(new Event('resize'))")

    tell_longest(notebook.page, "pointing", point)
    expect(notebook.out(1)).to_contain_text("cell ")


def test_without_live_views_it_is_a_picture(bigram: Open) -> None:
    notebook = bigram("%config Llama.widgets = False\n%llama kv")
    notebook.run(1)
    expect(notebook.out(1)).to_contain_text("0 of")
    assert notebook.out(1).locator("canvas, .ipyllama-slot").count() == 0
