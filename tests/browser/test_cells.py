"""`%%llama` as a person sees it: in JupyterLab, with a real model."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
Open = Callable[..., Any]
WORDS = "In the town where I was born there lived a man who sailed to sea. "


def test_an_answer_grows_and_is_saved_as_html(smol: Open) -> None:
    notebook = smol("%%llama -t 0 -n 80\nExplain what a list is in Python.", "%%llama -n 20\nGo on.")
    notebook.run(1, wait=False)
    seen = set()
    while notebook.prompt(1).inner_text() == "[*]:":
        seen.add(notebook.out(1).inner_text())
        notebook.page.wait_for_timeout(30)
    assert len(seen) >= 4  # it grew before the reader's eyes
    out = notebook.out(1)
    playwright.expect(out.locator("p").first).to_be_visible()
    playwright.expect(out).to_contain_text(re.compile(r"\d+ prompt tokens: 0 reused, 0 restored, \d+ computed"))
    notebook.run(2)
    playwright.expect(notebook.out(2)).to_contain_text(re.compile(r"[1-9]\d+ reused"))
    (saved,) = notebook.save().cells[1].outputs
    assert set(saved.data) == {"text/plain", "text/markdown", "text/html"}
    assert "<p>" in saved.data["text/html"]
    assert "prompt tokens" in saved.data["text/plain"]
    # a reader who opens it without a kernel sees the same
    shown = out.inner_text()
    notebook.page.reload(wait_until="domcontentloaded")
    playwright.expect(notebook.out(1)).to_contain_text(shown.splitlines()[0], timeout=30_000)


def test_the_stop_button_keeps_what_was_written(smol: Open) -> None:
    count = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,"
    notebook = smol(f"%%llama --raw -t 0 -n 6000\n{count}", f"%%llama --raw -n 5\n{count}")
    notebook.begin(1)
    notebook.stop()
    notebook.done(1)
    playwright.expect(notebook.out(1)).to_contain_text("[interrupted]")
    playwright.expect(notebook.out(1)).to_contain_text(re.compile(r"(\w+\W+){5}"))
    assert "Traceback" not in notebook.out(1).inner_text()
    notebook.run(2)
    playwright.expect(notebook.out(2)).to_contain_text(re.compile(r"[1-9]\d+ reused"))  # all but the last token


def test_a_long_prompt_shows_how_far_it_is(smol: Open) -> None:
    notebook = smol(f"%%llama --raw -n 5\n{WORDS * 60}")
    notebook.run(1, wait=False)
    bar = notebook.out(1).get_by_role("progressbar", name="reading the prompt")
    playwright.expect(bar).to_be_visible(timeout=60_000)
    notebook.done(1)
    playwright.expect(bar).to_have_count(0)
    playwright.expect(notebook.out(1)).to_contain_text("computed · first token")


def test_an_error_is_one_line(smol: Open) -> None:
    notebook = smol("%%llama --temprature 1\nHi")
    notebook.run(1)
    playwright.expect(notebook.out(1)).to_have_text(
        "BadOption: unknown option '--temprature' of %%llama: did you mean '--temperature'?"
    )
