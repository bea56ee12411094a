"""The live answer in JupyterLab: it grows, can be stopped and copied, and leaves static forms behind."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from nbconvert import HTMLExporter

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
Open = Callable[..., Any]
expect = playwright.expect
WORDS = "In the town where I was born there lived a man who sailed to sea. "
COUNT = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,"
HOSTILE = """<img src=x onerror="window.hit=1"> </script><script>window.hit=2</script> <b>bold</b>"""


def stop_button(notebook: Any, index: int) -> Any:
    return notebook.out(index).get_by_role("button", name="Stop")


def test_an_answer_grows_with_its_rate_and_ends_static(smol: Open) -> None:
    notebook = smol("%%llama -t 0 -n 250\nExplain what a list is in Python.", "%%llama --plain -t 0 -n 80 --fresh\nHi")
    notebook.run(1, wait=False)
    expect(stop_button(notebook, 1)).to_be_visible(timeout=60_000)
    expect(notebook.out(1).locator(".ipl-line")).to_have_text(re.compile(r"\d+ tokens · [\d.]+/s"), timeout=10_000)
    notebook.done(1)
    expect(stop_button(notebook, 1)).to_have_count(0)
    expect(notebook.out(1)).to_contain_text(re.compile(r"\d+ prompt tokens: 0 reused"))
    (saved,) = notebook.save().cells[1].outputs
    assert set(saved.data) == {"text/plain", "text/markdown", "text/html"}
    notebook.run(2, wait=False)
    expect(notebook.out(2)).to_contain_text(re.compile(r"\w+"), timeout=60_000)
    assert stop_button(notebook, 2).count() == 0
    notebook.done(2)


def test_run_all_is_live_from_the_first_answer(smol: Open) -> None:
    notebook = smol("%reload_ext ipyllama\n%llama load smollm2 --threads 1", "%%llama -n 60 -t 0\nWhat is rain?")
    notebook.page.evaluate("() => { jupyterapp.commands.execute('notebook:run-all-cells') }")
    expect(stop_button(notebook, 2)).to_be_visible(timeout=60_000)
    notebook.done(2)


@pytest.mark.parametrize("way", ["mouse", "keyboard"])
def test_stop_while_words_come(smol: Open, way: str) -> None:
    notebook = smol(f"%%llama --raw -t 0 -n 6000\n{COUNT}", f"%%llama --raw -n 5\n{COUNT}")
    notebook.begin(1)
    press(stop_button(notebook, 1), way)
    notebook.done(1)
    expect(notebook.out(1)).to_contain_text("[interrupted]")
    expect(notebook.out(1)).to_contain_text(re.compile(r"(\w+\W+){5}"))
    assert "Traceback" not in notebook.out(1).inner_text()
    notebook.run(2)
    expect(notebook.out(2)).to_contain_text(re.compile(r"[1-9]\d+ reused"))


@pytest.mark.parametrize("way", ["mouse", "keyboard"])
def test_stop_while_the_prompt_is_read(smol: Open, way: str) -> None:
    notebook = smol(f"%%llama --raw -n 5\n{WORDS * 300}")
    notebook.run(1, wait=False)
    bar = notebook.out(1).get_by_role("progressbar", name="reading the prompt")
    expect(bar).to_be_visible(timeout=60_000)
    expect(notebook.out(1)).to_contain_text(re.compile(r"reading the prompt: [\d,]+ of [\d,]+ tokens"))
    press(stop_button(notebook, 1), way)
    notebook.done(1)
    expect(notebook.out(1)).to_contain_text("stopped while reading the prompt")


def press(button: Any, way: str) -> None:
    if way == "mouse":
        button.click()
    else:
        button.focus()
        button.press("Enter")


def test_the_answer_can_be_copied(bigram: Open) -> None:
    notebook = bigram("%%llama --raw -n 30\nabc")
    notebook.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    notebook.run(1)
    button = notebook.out(1).get_by_role("button")
    expect(button).to_have_text("Copy")
    button.focus()
    button.press("Enter")
    expect(button).to_have_text("Copied")
    assert notebook.page.evaluate("() => navigator.clipboard.readText()") == "defghijklmnopqrstuvwxyz abcdef"
    button.evaluate("button => button.blur()")
    notebook.out(1).hover()
    button.click()  # the mouse has to be over the answer
    # run again it is another one
    notebook.run(1)
    expect(notebook.out(1).get_by_role("button", name="Copy")).to_have_count(1)


def test_a_reopened_notebook_shows_the_static_form(bigram: Open) -> None:
    notebook = bigram("%%llama --raw -n 30\nabc")
    notebook.run(1)
    expect(notebook.out(1).get_by_role("button", name="Copy")).to_have_count(1)
    notebook.save()
    notebook.lab.end_kernels()
    page = notebook.page
    page.reload(wait_until="domcontentloaded")
    expect(notebook.out(1)).to_contain_text("defghijklm", timeout=30_000)
    expect(notebook.out(1)).to_contain_text("4 prompt tokens")
    assert "Error displaying widget" not in page.content()
    assert notebook.out(1).get_by_role("button").count() == 0


def test_saved_in_the_middle_it_says_so(smol: Open) -> None:
    notebook = smol(f"%%llama --raw -t 0 -n 6000\n{COUNT}")
    notebook.begin(1)
    (saved,) = notebook.save().cells[1].outputs
    assert saved.data["text/plain"] == "an answer is being written"
    assert not any("widget" in kind for kind in saved.data)
    stop_button(notebook, 1).click()
    notebook.done(1)


def test_what_a_model_writes_is_only_ever_text(bigram: Open) -> None:
    said = f"# {HOSTILE}\n\n- {HOSTILE}\n\n```html\n{HOSTILE}\n```\n\n[x](javascript:window.hit=3) ![y](https://example.org/y.png)"
    show = f"""
import time
from ipyllama.display.views import display_here
from ipyllama.widgets.front import next_slot
from ipyllama.widgets.live import LiveView
from ipyllama.reply import Reply
front = get_ipython().magics_manager.registry['LlamaMagics'].front
view, said = LiveView(front.live.send, next_slot(), display_here), {said!r}
for end in range(0, len(said) + 1, 7):
    view.text(said[:end], end + 1)
view.text(said)
time.sleep(1)
"""
    notebook = bigram(show, "view.reply(Reply(said))")
    notebook.run(1)
    live = notebook.out(1).locator(".ipl-live")
    expect(live.locator("h1")).to_have_text(HOSTILE)
    expect(live.locator("code")).to_contain_text(HOSTILE)
    notebook.run(2)
    expect(notebook.out(1).locator("h1")).to_have_text(HOSTILE)
    assert notebook.out(1).locator("img, script, h1 b").count() == 0
    assert notebook.page.evaluate("() => window.hit ?? 0") == 0


def test_nbconvert_shows_it_without_anything_from_elsewhere(bigram: Open, chromium: Any) -> None:
    notebook = bigram("%%llama --raw -n 30\nabc")
    notebook.run(1)
    html, _ = HTMLExporter(embed_images=True).from_notebook_node(notebook.save())
    page = chromium.new_page()
    page.route("**/*", lambda route: route.abort())
    page.set_content(html, wait_until="domcontentloaded")
    shown = page.locator(".ipyllama-slot")
    expect(shown).to_contain_text("defghijklmnopqrstuvwxyz abcdef")
    expect(shown).to_contain_text("4 prompt tokens")
    assert "jupyter.widget" not in html
    page.close()
