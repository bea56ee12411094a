"""What holds for every view: its width, its static forms, and what it says when its model is gone."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browser.conftest import opening
from browser.views import BEFORE, HOSTILE, OVERFLOW, VIEWS, live, show_all
from nbconvert import HTMLExporter

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
Open = Callable[..., Any]
expect = playwright.expect
GONE = "was unloaded: load it again"


@pytest.fixture
def views(notebook: Open, tiny: Callable[[str], Path]) -> Any:
    """Every view, live."""
    opened = notebook(BEFORE.format(path=tiny("llama-bigram")), *(view.code for view in VIEWS.values()))
    opened.run(0)
    show_all(opened)
    for name, view in VIEWS.items():
        if view.live:
            expect(live(opened, name)).to_be_visible(timeout=15_000)
    return opened


def test_none_is_wider_than_its_place(views: Any) -> None:
    page = views.page
    page.evaluate("() => { jupyterapp.commands.execute('application:toggle-left-area') }")
    live(views, "panel").get_by_role("button", name="Sampling").click()
    live(views, "tokens").locator(".t").nth(3).click()
    live(views, "tree").get_by_role("button", name="Fork").click()
    for width in (1200, 600, 480, 380):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(500)
        for index, name in enumerate(VIEWS, start=1):
            shown = views.out(index).locator(".ipyllama-slot" if VIEWS[name].live else ".jp-OutputArea-output").last
            assert shown.evaluate(OVERFLOW) == [], f"{name} at {width} px"


def test_static_forms_are_there_without_a_kernel_and_offline(views: Any, chromium: Any) -> None:
    page = views.page
    page.mouse.move(5, 5)
    views.cell(0).locator(".cm-content").click()  # all views are left
    page.wait_for_timeout(2500)
    content = views.save()
    for (name, view), cell in zip(VIEWS.items(), content.cells[1:], strict=True):
        data = cell.outputs[-1].data
        assert {"text/plain", "text/html"} <= set(data) <= {"text/plain", "text/html", "text/markdown"}, name
        assert view.fact in data["text/plain"], name
        assert "<script" not in data["text/html"], name
        assert "<img" not in data["text/html"], name
    views.lab.end_kernels()
    page.reload(wait_until="domcontentloaded")
    for index, (name, view) in enumerate(VIEWS.items(), start=1):
        expect(views.out(index)).to_contain_text(view.fact, timeout=30_000)
        assert views.out(index).locator(".ipyllama-view, button, canvas, img, script").count() == 0, name
    for error in ("model not found", "Error displaying widget", "Traceback"):
        expect(page.locator("body")).not_to_contain_text(error)
    assert page.evaluate("() => window.hit ?? 0") == 0
    for width in (1200, 600):
        page.set_viewport_size({"width": width, "height": 900})
        for index, name in enumerate(VIEWS, start=1):
            assert views.out(index).locator(".jp-OutputArea-output").last.evaluate(OVERFLOW) == [], f"{name}, static"
    offline(chromium, content)


def offline(chromium: Any, content: Any) -> None:
    """What nbconvert makes of the notebook, where nothing can be fetched and no script runs."""
    html, _ = HTMLExporter(embed_images=True).from_notebook_node(content)
    assert "jupyter.widget" not in html
    page = chromium.new_context(java_script_enabled=False, offline=True).new_page()
    page.route("**/*", lambda route: route.abort())
    page.set_content(html, wait_until="domcontentloaded")
    cells = page.locator(".jp-CodeCell")
    for index, (name, view) in enumerate(VIEWS.items(), start=1):
        output = cells.nth(index).locator(".jp-OutputArea")
        expect(output).to_contain_text(view.fact)
        expect(output).to_be_visible()
        assert output.locator("img, script").count() == 0, name
    page.context.close()


def test_when_the_model_is_gone_each_says_what_to_do(views: Any, tiny: Callable[[str], Path]) -> None:
    notebook = views
    notebook.cell(0).locator(".cm-content").fill("%llama unload")
    notebook.run(0)
    # the answer can be copied, the tree and the prefix memory need no model
    expect(live(notebook, "answer").get_by_role("button", name="Copy")).to_be_attached()
    expect(live(notebook, "kv")).to_contain_text("it was unloaded: load it again")
    tokens = live(notebook, "tokens")
    tokens.locator(".t").nth(2).click()
    for _ in range(2):
        tokens.locator("button.ipl-other").first.click()
        expect(tokens.get_by_role("alert")).to_contain_text(GONE)
        expect(tokens.locator(".ipl-running")).to_be_hidden()
    panel = live(notebook, "panel")
    panel.get_by_role("textbox", name="Message").fill("Hello")
    panel.get_by_role("button", name="Send").click()
    expect(panel.get_by_role("alert")).to_contain_text(GONE)
    expect(panel.get_by_role("textbox", name="Message")).to_have_value("Hello")  # it is not lost
    for act in ("slider", "Draw", "Another"):
        lab = live(notebook, "lab")
        lab.get_by_role("slider", name="top-k").fill("7") if act == "slider" else lab.get_by_role(
            "button", name=act, exact=True
        ).click()
        expect(lab.get_by_role("alert")).to_contain_text("the model of this lab was unloaded: load it again")
        expect(lab.get_by_role("button", name="Draw", exact=True)).to_be_enabled()
    tree = live(notebook, "tree")
    tree.get_by_role("treeitem").first.click()
    tree.get_by_role("button", name="Go to", exact=True).click()
    expect(tree.get_by_role("treeitem").first).to_have_attribute("aria-current", "true")
    tree.get_by_role("button", name="Undo").click()
    expect(tree.get_by_role("treeitem").last).to_have_attribute("aria-current", "true")
    cache = live(notebook, "cache")
    cache.get_by_role("button", name="Verify").click()
    expect(cache.get_by_role("status")).to_have_text("All blocks are sound", timeout=15_000)
    cache.locator(".ipl-row").first.click()
    cache.get_by_role("button", name="Pin", exact=True).click()
    expect(cache.get_by_role("status")).to_contain_text("is pinned")
    # a page that is opened now shows them, too, and nothing went wrong in the kernel
    notebook.save()
    notebook.page.reload(wait_until="domcontentloaded")
    expect(live(notebook, "kv")).to_contain_text("it was unloaded: load it again", timeout=30_000)
    expect(live(notebook, "lab").get_by_role("button", name="Draw", exact=True)).to_be_enabled()
    expect(notebook.page.locator("body")).not_to_contain_text("Traceback")
    tokens.locator(".t").nth(2).click()
    panel.get_by_role("textbox", name="Message").fill("Hello")
    # loaded again, the views go on
    notebook.cell(0).locator(".cm-content").fill(f'%llama load "{tiny("llama-bigram")}" --threads 1')
    notebook.run(0)
    panel.get_by_role("button", name="Send").click()
    expect(panel.locator(".ipl-message").last).to_have_text("Hello")
    expect(panel.get_by_role("button", name="Send")).to_be_visible(timeout=30_000)
    expect(panel.get_by_role("alert")).to_be_hidden()
    tokens.locator("button.ipl-other").first.click()
    expect(tokens.locator(".ipl-answer")).to_have_count(2, timeout=30_000)
    expect(tokens.get_by_role("alert")).to_be_hidden()


def test_in_notebook_7(chromium: Any, tiny: Callable[[str], Path], tmp_path: Path) -> None:
    from browser.lab import Notebook7

    server = Notebook7(tmp_path)
    try:
        with opening(server, chromium, "seven.ipynb") as open_:
            load = BEFORE.format(path=tiny("llama-bigram"))
            notebook = open_(load, *(view.code for view in VIEWS.values()))
            notebook.run(0)
            show_all(notebook)
            for name, view in VIEWS.items():
                if view.live:
                    expect(live(notebook, name)).to_be_visible(timeout=15_000)
            live(notebook, "panel").get_by_role("textbox", name="Message").fill(HOSTILE)
            live(notebook, "panel").get_by_role("button", name="Send").click()
            expect(live(notebook, "tree").get_by_role("treeitem")).to_have_count(3, timeout=30_000)
            live(notebook, "lab").get_by_role("slider", name="top-k").fill("3")
            expect(live(notebook, "lab").get_by_role("columnheader", name="top-k")).to_contain_text("3 left")
            live(notebook, "tokens").locator(".t").nth(2).click()
            live(notebook, "tokens").locator("button.ipl-other").first.click()
            expect(live(notebook, "tokens").locator(".ipl-answer")).to_have_count(2, timeout=30_000)
            live(notebook, "kv").locator("canvas").press("Home")
            expect(live(notebook, "kv").locator(".ipl-kv-tip")).to_have_text(re.compile("^cell 0: "))
            live(notebook, "cache").get_by_role("button", name="Read again").click()
            notebook.page.wait_for_timeout(1000)
            live(notebook, "cache").locator(".ipl-row").first.click()
            live(notebook, "cache").get_by_role("button", name="Pin", exact=True).click()
            expect(live(notebook, "cache").get_by_role("status")).to_contain_text("is pinned")
            assert notebook.page.evaluate("() => window.hit ?? 0") == 0
    finally:
        server.stop()
