"""Answers from documents in JupyterLab: the chunks under them, what an index holds, and how well it finds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browser.views import OVERFLOW
from nbconvert import HTMLExporter
from shelf import SHELF

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
Open = Callable[..., Any]
expect = playwright.expect
INDEX = f"""
import sys, tempfile
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from ragwords import Words
from ipyllama.rag import Index
texts = [("mill.md", "The mill grinds corn."), ("<b>hut</b>", "The hut is cold."), ("bare.md", "")]
index = Index.create("shelf", texts, location=tempfile.mkdtemp(), embed=Words())
index
"""
EVALUATE = """
found = index.evaluate([("What grinds corn?", "mill.md"), ("What is cold?", "<b>hut</b>")], k=2)
display(found, found.plot())
"""


def test_chunks_fold_out_under_an_answer(bigram: Open, chromium: Any) -> None:
    notebook = bigram(SHELF, "%%llama --rag {{shelf}} -k 2 -n 8\nHow many rooms has the mill?")
    notebook.run(1)
    notebook.run(2)
    chunks = notebook.out(2).locator("details")
    expect(chunks).to_have_count(2)
    chunk = chunks.filter(has_text="castle.md")
    expect(chunk.locator("summary")).to_contain_text("Rooms")
    hostile = chunk.get_by_text("<img src=x onerror=alert(1)></details><script>1</script>")
    expect(hostile).not_to_be_visible()
    chunk.locator("summary").focus()
    notebook.page.keyboard.press("Enter")
    expect(hostile).to_be_visible()
    expect(hostile).to_contain_text("It took $5$ years.")  # and no formula
    for width in (1200, 600):
        notebook.page.set_viewport_size({"width": width, "height": 900})
        assert notebook.out(2).locator(".jp-OutputArea-output").last.evaluate(OVERFLOW) == [], f"at {width} px"
    content = notebook.save()
    notebook.lab.end_kernels()
    notebook.page.reload(wait_until="domcontentloaded")
    expect(chunks).to_have_count(2, timeout=30_000)
    assert notebook.out(2).locator("img, script").count() == 0

    html, _ = HTMLExporter().from_notebook_node(content)
    page = chromium.new_context(java_script_enabled=False, offline=True).new_page()
    page.set_content(html, wait_until="domcontentloaded")
    chunk = page.locator("details", has_text="castle.md")
    chunk.locator("summary").click()
    expect(chunk.get_by_text("<script>1</script>")).to_be_visible()
    page.context.close()


def test_an_index_and_how_well_it_finds(notebook: Open) -> None:
    opened = notebook(INDEX, EVALUATE)
    opened.run(0)
    table = opened.out(0).locator("table")
    expect(table).to_contain_text("<b>hut</b>")
    expect(table).to_contain_text("bare.md")  # told as odd
    opened.run(1)
    expect(opened.out(1).locator("table")).to_contain_text("recall@2")
    plot = opened.out(1).get_by_role("img")
    expect(plot).to_be_visible()
    assert "hybrid: 100%, 100%" in plot.get_attribute("aria-label")
    for width in (1200, 600):
        opened.page.set_viewport_size({"width": width, "height": 900})
        for index in (0, 1):
            assert opened.out(index).locator(".jp-OutputArea-output").last.evaluate(OVERFLOW) == [], f"{width} px"
