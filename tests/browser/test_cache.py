"""The view of the prefix memory in JupyterLab: sort, filter, pin, delete, undo, verify, limit; and 5,000 prefixes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browser.trace import tell_longest

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
expect = playwright.expect
Open = Callable[..., Any]
HOSTILE = """<img src=x onerror="window.hit=1"></script><script>window.hit=2</script>"""
MEMORY = "memory = get_ipython().magics_manager.registry['LlamaMagics'].session.memory"
BESIDE = "import os\ndel os.environ['IPYLLAMA_PREFIX_DIR']\n"  # off in other tests
TALK = (
    f"%%llama --raw -n 4 -t 0\n{'one two three four ' * 3}",
    f"%%llama --raw -n 4 -t 0\n{HOSTILE}",
    "%llama cache flush\n%llama cache",
    f"from ipyllama.prefix import entries\n{MEMORY}\n"
    "found = sorted(entries(memory), key=lambda each: each.n_tokens)\n"
    "print([each.n_tokens for each in found], [each.pinned > 0 for each in found], memory.bytes_limit)",
)
VIEW, STATE = 3, 4


@pytest.fixture
def kept(notebook: Open, tiny: Callable[[str], Path]) -> Any:
    """Two prefixes in the notebook's own folder, shown."""
    load = f'{BESIDE}%load_ext ipyllama\n%llama load "{tiny("llama-bigram")}" --threads 1'
    opened = notebook(load, *TALK)
    for cell in range(VIEW + 1):
        opened.run(cell)
    expect(rows(opened)).to_have_count(2, timeout=15_000)
    return opened


def view(notebook: Any) -> Any:
    return notebook.out(VIEW).locator(".ipl-cache")


def rows(notebook: Any) -> Any:
    return view(notebook).locator(".ipl-row")


def button(notebook: Any, name: str) -> Any:
    return view(notebook).get_by_role("button", name=name, exact=True)


def state(notebook: Any) -> str:
    notebook.run(STATE)
    return str(notebook.out(STATE).inner_text()).strip()


def test_the_mouse(kept: Any) -> None:
    before = state(kept)
    button(kept, "tokens").click()
    expect(view(kept).locator("[aria-sort=descending]")).to_contain_text("tokens")
    longer = rows(kept).first
    expect(longer).to_contain_text(HOSTILE[-20:])
    longer.click()
    button(kept, "Pin").click()
    expect(rows(kept).first.locator(".ipl-c9")).to_have_text("yes")
    assert state(kept) == before.replace("[False, False]", "[False, True]")
    expect(button(kept, "Delete")).to_be_disabled()
    button(kept, "Unpin").click()
    expect(rows(kept).first.locator(".ipl-c9")).to_have_text("")
    button(kept, "Delete").click()
    expect(rows(kept)).to_have_count(1)
    button(kept, "Undo").click()
    expect(rows(kept)).to_have_count(2)
    assert state(kept) == before
    button(kept, "Delete").click()
    expect(view(kept).get_by_role("status")).to_have_text(re.compile("1 prefix deleted"), timeout=20_000)
    assert len(re.findall(r"\d+[,\]]", state(kept).partition("]")[0] + "]")) == 1
    assert kept.page.evaluate("() => window.hit ?? 0") == 0
    assert kept.out(VIEW).locator("img, script").count() == 0


def test_the_keyboard(kept: Any) -> None:
    keys = kept.page.keyboard
    view(kept).locator("[aria-selected=true]").focus()
    keys.press("End")
    expect(view(kept).locator(".ipl-row:focus")).to_have_attribute("aria-rowindex", "3")
    keys.press("p")
    expect(rows(kept).last.locator(".ipl-c9")).to_have_text("yes")
    expect(view(kept).locator(".ipl-row:focus")).to_have_attribute("aria-rowindex", "3")
    keys.press("Delete")
    expect(view(kept).get_by_role("status")).to_contain_text("is pinned: unpin it first")
    keys.press("ArrowUp")
    keys.press("Delete")
    expect(rows(kept)).to_have_count(1)
    button(kept, "Undo").focus()
    keys.press("Enter")
    expect(rows(kept)).to_have_count(2)
    expect(view(kept).locator(".ipl-row:focus")).to_have_count(1)  # the button is gone
    view(kept).get_by_role("searchbox").focus()
    keys.type("pinned")
    expect(rows(kept)).to_have_count(1)
    keys.type(" not")
    expect(view(kept)).to_contain_text("None of 2 prefixes fits the filter.")


def test_who_is_back_before_the_static_form_is_replaced_goes_on_typing(kept: Any) -> None:
    page, gone = kept.page, "view => !view.isConnected"
    view(kept).locator("[aria-selected=true]").focus()
    page.keyboard.press("p")
    expect(rows(kept).filter(has_text="yes")).to_have_count(1)
    drawn, wanted = view(kept).element_handle(), view(kept).get_by_role("searchbox")
    kept.leave_and_come_back(wanted)
    page.keyboard.type("pin")
    page.wait_for_function(gone, arg=drawn)
    page.keyboard.type("ned")
    expect(wanted).to_have_value("pinned")
    expect(rows(kept)).to_have_count(1)
    button(kept, "Unpin").press("Enter")
    expect(rows(kept)).to_have_count(0)
    drawn, limit = view(kept).element_handle(), view(kept).get_by_role("textbox", name="Limit")
    kept.leave_and_come_back(limit)
    limit.fill("34M")
    page.keyboard.press("Home")
    page.wait_for_function(gone, arg=drawn)
    page.keyboard.type("12")
    expect(limit).to_have_value("1234M")


def test_limit_and_verify(kept: Any) -> None:
    button(kept, "Verify").click()
    expect(view(kept).get_by_role("status")).to_have_text("All blocks are sound")
    limit = view(kept).get_by_role("textbox", name="Limit")
    limit.fill("2G")
    limit.press("Enter")
    expect(view(kept).get_by_role("status")).to_contain_text("The limit is 2 GiB in this session")
    assert state(kept).endswith(str(2 << 30))
    limit.fill("many")
    button(kept, "Set").click()
    expect(view(kept).get_by_role("status")).to_contain_text("a size is a number of bytes")
    limit.fill("1k")
    button(kept, "Set").click()
    expect(view(kept).get_by_role("alertdialog")).to_contain_text("have no room in 1 KiB")
    button(kept, "Keep it").click()
    expect(view(kept).get_by_role("alertdialog")).to_have_count(0)
    assert state(kept).endswith(str(2 << 30))
    limit.fill("1k")  # what was typed is gone when the view was left
    button(kept, "Set").click()
    button(kept, "Delete it").click()
    expect(view(kept)).to_contain_text("0 B of 1 KiB on disk, 0 blocks")  # the rest is in RAM
    assert state(kept).endswith("1024")


def test_a_question_takes_no_keys_from_who_is_elsewhere(kept: Any) -> None:
    limit, question = view(kept).get_by_role("textbox", name="Limit"), view(kept).get_by_role("alertdialog")
    before = state(kept)
    limit.fill("1k")
    limit.press("Enter")
    expect(button(kept, "Keep it")).to_be_focused()  # Enter once more deletes nothing
    kept.page.keyboard.press("Enter")
    expect(question).to_have_count(0)
    limit.fill("1k")
    with kept.lab.frozen():
        limit.press("Enter")
        kept.code(VIEW).click()
    expect(question).to_be_visible()
    kept.page.keyboard.type("\n ")
    expect(question).to_be_visible()
    assert state(kept) == before


def test_a_reopened_notebook_shows_the_static_form(kept: Any) -> None:
    (_, saved) = kept.save().cells[VIEW].outputs
    assert set(saved.data) == {"text/plain", "text/html"}
    assert "beside the notebook" in saved.data["text/plain"]
    assert "ends with" in saved.data["text/plain"]
    assert "<img" not in saved.data["text/html"]
    kept.lab.end_kernels()
    kept.page.reload(wait_until="domcontentloaded")
    expect(kept.out(VIEW)).to_contain_text("ends with", timeout=30_000)
    assert kept.out(VIEW).get_by_role("button").count() == 0
    assert "Error displaying widget" not in kept.page.content()


MANY = """
import numpy as np, tempfile
from ipyllama.ledger import Ledger
from ipyllama.prefix import Block, PrefixMemory
import ipyllama
llm = ipyllama.llm.loaded()[0]
memory = PrefixMemory(tempfile.mkdtemp()).bind(llm.memory.binding)
state = np.zeros(64, np.uint8)
for n in range(5000):
    (link,) = memory.links(Ledger().append_prompt([n % 60, n // 60, 1, 2]))
    memory.store.write(Block(link, state, memory.binding.origin, float(n)))
"""


def test_five_thousand_prefixes(bigram: Open) -> None:
    notebook = bigram(MANY, "pass", "memory.view()")
    notebook.run(1)
    notebook.run(VIEW)
    grid = view(notebook).get_by_role("grid")
    expect(grid).to_have_attribute("aria-rowcount", "5001", timeout=60_000)

    def walk() -> None:
        button(notebook, "spares").click()
        view(notebook).locator("[aria-selected=true]").focus()
        for key in ["PageDown"] * 20 + ["End", "Home"]:
            notebook.page.keyboard.press(key)

    tell_longest(notebook.page, "walking", walk)
    expect(view(notebook).locator(".ipl-row:focus")).to_contain_text("1 h 23 min")
    assert rows(notebook).count() < 60
