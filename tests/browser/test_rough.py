"""What people do to a notebook while something is shown in it: restarts, deleted cells, cleared outputs, odd texts."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from typing import Any

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
Open = Callable[..., Any]
expect = playwright.expect
ENDLESS = "%%llama --raw -t 0 -n 6000 --logit-bias 2=-inf --logit-bias 0=-inf\n1, 2, 3, 4, 5, 6, 7, 8,"
KERNEL = "jupyterapp.shell.currentWidget.sessionContext.session.kernel"
CHAT = "chat = get_ipython().magics_manager.registry['LlamaMagics'].session.conversation()"
WRITE = """
import time
from ipyllama.display.views import display_here
from ipyllama.widgets.front import next_slot
from ipyllama.widgets.live import LiveView
from ipyllama.reply import Reply
front = get_ipython().magics_manager.registry['LlamaMagics'].front
def write(said, step):
    view = LiveView(front.live.send, next_slot(), display_here)
    for end in range(0, len(said), step):
        view.text(said[:end], end + 1)
        time.sleep(0.05)
    view.text(said)
    time.sleep(1)
    view.reply(Reply(said))
"""


def test_a_stop_button_goes_through_the_server_where_it_must(smol: Open) -> None:
    """As in front ends whose widgets have no way to interrupt."""
    notebook = smol(ENDLESS)
    notebook.page.evaluate(f"() => {{ {KERNEL}.interrupt = undefined }}")
    notebook.begin(1)
    with notebook.page.expect_request(re.compile("/api/kernels/.*/interrupt")):
        notebook.out(1).get_by_role("button", name="Stop").click()
    notebook.done(1)
    expect(notebook.out(1)).to_contain_text("[interrupted]")


def test_a_kernel_that_starts_anew_leaves_what_there_is(smol: Open) -> None:
    notebook = smol("%llama kv", "%llama chat", ENDLESS)
    notebook.run(1)
    notebook.run(2)
    expect(notebook.out(2).locator(".ipl-panel")).to_be_visible()
    notebook.begin(3)
    written = notebook.out(3).locator(".ipl-live p").first.inner_text()[:10]
    notebook.page.evaluate(f"() => {KERNEL}.restart()")
    expect(notebook.out(3).locator(".ipl-line")).to_contain_text("not finished: the kernel has ended")
    expect(notebook.out(3)).to_contain_text(written)
    expect(notebook.out(3).get_by_role("button", name="Stop")).to_be_disabled()
    expect(notebook.out(1).locator(".ipl-kv")).to_have_count(0)
    expect(notebook.out(1)).to_contain_text("in use")
    expect(notebook.out(2).locator(".ipl-panel")).to_have_count(0)
    notebook.lab.wait_for_kernel(notebook.page)
    notebook.run(0)
    notebook.run(2)
    expect(notebook.out(2).locator(".ipl-panel")).to_be_visible()
    notebook.begin(3)
    notebook.out(3).get_by_role("button", name="Stop").click()
    notebook.done(3)


def test_outputs_may_be_cleared_and_cells_deleted_while_they_are_written(smol: Open) -> None:
    notebook = smol(ENDLESS, "print('on')")
    notebook.begin(1)
    notebook.page.evaluate("() => { jupyterapp.commands.execute('notebook:clear-cell-output') }")
    expect(notebook.out(1).locator(".ipl-live")).to_have_count(0)
    notebook.stop()
    notebook.done(1)
    notebook.begin(1)
    notebook.page.evaluate("() => { jupyterapp.commands.execute('notebook:delete-cell') }")
    expect(notebook.page.locator(".ipl-live")).to_have_count(0)
    notebook.stop()
    notebook.run(1)
    expect(notebook.out(1)).to_have_text("on")


def test_two_views_of_one_conversation_and_clicks_while_it_is_busy(smol: Open) -> None:
    notebook = smol(
        "%config Llama.max_tokens = 30\n%llama chat",
        "%llama chat",
        "%llama tree",
        "%%llama --show tokens -n 10 -t 0\nName a river.",
        ENDLESS,
        f"{CHAT}\nprint(len(chat.all_turns))",
    )
    for index in (1, 2, 3, 4):
        notebook.run(index)
    notebook.begin(5)
    tokens = notebook.out(4).locator(".ipl-tokens")
    tokens.locator(".t").nth(1).click()
    tokens.locator("button.ipl-other").first.click()
    for index in (1, 2):
        panel = notebook.out(index).locator(".ipl-panel")
        panel.get_by_role("textbox", name="Message").fill(f"From panel {index}")
        panel.get_by_role("button", name="Send").click()
    row = notebook.out(3).get_by_role("treeitem").first
    row.dblclick()
    expect(row).to_have_attribute("aria-current", "true")
    notebook.out(5).get_by_role("button", name="Stop").click()
    notebook.done(5)
    expect(tokens.locator(".ipl-answer")).to_have_count(2, timeout=60_000)
    expect(notebook.out(3).get_by_role("treeitem")).to_have_count(4, timeout=60_000)
    notebook.run(6)
    assert notebook.out(6).inner_text().strip() == "4"


def test_a_long_answer_odd_characters_and_words_from_the_right(bigram: Open) -> None:
    family = "\U0001f468\u200d\U0001f469\u200d\U0001f467"  # one character of five code points
    odd = f"שלום world {family * 3}\n\nThen *left* again. e\u0301 \u202edrow\u202c"
    notebook = bigram(WRITE, f"write({odd!r}, 1)", "write('word ' * 200_000, 100_000)")
    notebook.run(1)
    notebook.run(2, wait=False)
    paragraph = notebook.out(2).locator("p").first
    expect(paragraph).to_have_attribute("dir", "auto", timeout=20_000)
    notebook.done(2)
    expect(paragraph).to_have_text(f"שלום world {family * 3}")
    assert paragraph.evaluate("p => getComputedStyle(p).direction") == "rtl"
    assert notebook.out(2).locator("p").nth(1).evaluate("p => getComputedStyle(p).direction") == "ltr"
    notebook.run(3)
    assert len(notebook.out(3).locator("p").first.inner_text()) == 1_000_000 - 1


def test_two_notebooks_on_one_kernel(bigram: Open) -> None:
    """The second one brings the views of the kernel to life once more, and takes only its own with it."""
    notebook = bigram("%llama kv", "%llama chat")
    notebook.run(1)
    notebook.run(2)
    page = notebook.page
    shutil.copy(notebook.path, notebook.lab.root / "second.ipynb")
    page.evaluate(
        f"""async () => {{
            const kernel = {{ id: {KERNEL}.id }};
            const second = {{ path: 'second.ipynb', factory: 'Notebook', kernel }};
            await jupyterapp.commands.execute('docmanager:open', second);
        }}"""
    )
    expect(page.locator(".jp-NotebookPanel")).to_have_count(2)
    page.wait_for_timeout(3000)
    page.evaluate("() => jupyterapp.shell.currentWidget.dispose()")
    expect(page.locator(".jp-NotebookPanel")).to_have_count(1)
    page.wait_for_timeout(1000)
    expect(notebook.out(1).locator("canvas")).to_be_visible()
    panel = notebook.out(2).locator(".ipl-panel")
    panel.get_by_role("textbox", name="Message").fill("abc")
    panel.get_by_role("button", name="Send").click()
    expect(panel.locator(".ipl-cost")).to_contain_text("prompt tokens", timeout=30_000)
