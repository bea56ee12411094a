"""The token view in JupyterLab: look, branch, stop, leave, come back."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from browser.trace import tell_longest

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
expect = playwright.expect
Open = Callable[..., Any]
ASK = "%%llama --show tokens -n 24 -t 0 -o reply\nName a river in Europe."
HOSTILE = """
from ipyllama.logprobs import Logprob, TokenLogprob
from ipyllama.reply import Reply
pieces = [b"<img src=x onerror=alert(1)>", b"</script><script>alert(2)</script>", b"\\n", "日".encode()[:1], b"&lt;"]
top = tuple(Logprob(n, piece, -1.6) for n, piece in enumerate(pieces))
told = tuple(TokenLogprob(each.id, each.bytes, each.logprob, 2.3, top) for each in top)
Reply("x", (0, 1, 2, 3, 4), model="<b>m</b>", logprobs=told).token_view()
"""
MANY = """
import numpy as np
from ipyllama.logprobs import Logprob, TokenLogprob
from ipyllama.reply import Reply
rng = np.random.default_rng(0)
words = [b" the", b" quick", b" brown", b" fox", b".\\n", b" over", b" lazy", b" dogs"]
def token():
    ids, chances = rng.integers(0, 40000, 5), np.sort(rng.dirichlet(np.ones(5) * 0.4))[::-1]
    top = tuple(Logprob(int(i), words[int(i) % 8], float(np.log(p + 1e-9))) for i, p in zip(ids, chances))
    return TokenLogprob(top[0].id, top[0].bytes, top[0].logprob, float(rng.random() * 5), top)
told = tuple(token() for _ in range(8192))
"""


def shown(notebook: Any, cell: int) -> Any:
    notebook.run(cell)
    view = notebook.out(cell).locator(".ipl-tokens")
    expect(view).to_be_visible(timeout=30_000)
    expect(view.locator(".t").first).to_be_visible()
    return view


def printed(notebook: Any, cell: int) -> Any:
    notebook.run(cell)
    return json.loads(notebook.out(cell).inner_text())


def test_pointing_tells_and_clicking_branches(smol: Open) -> None:
    facts = """import json
turn = reply.logprobs[3]
print(json.dumps([turn.id, turn.bytes.hex(" "), [each.id for each in turn.top], len(reply.tokens)]))"""
    after = """import json
chat = reply.chat
print(json.dumps([len(chat.all_turns), chat.head.tokens[3], chat.head.usage.computed, list(chat.head.tokens[:3])]))"""
    notebook = smol(ASK, facts, after, "%%llama -n 3 -o following\nAnd now?", "print(following.parent is chat.head)")
    view = shown(notebook, 1)
    token, raw, others, n = printed(notebook, 2)
    expect(view.locator(".t")).to_have_count(n)
    spans = view.locator(".t")
    spans.nth(3).hover()
    detail = view.locator(".ipl-detail")
    expect(detail).to_contain_text(re.compile(rf"token3.*id{token}.*bytes{raw}.*probability\d.*entropy\d", re.DOTALL))
    spans.nth(5).hover()
    expect(detail).to_contain_text("token5")
    spans.nth(3).click()
    spans.nth(5).hover()
    expect(detail).to_contain_text("token3")  # it was kept
    alternatives = detail.locator(".ipl-other")
    expect(alternatives).to_have_count(5)
    expect(detail.locator("button")).to_have_count(4)  # one is the token itself
    detail.locator("button").first.click()
    expect(view.locator(".ipl-answer")).to_have_count(2, timeout=60_000)
    expect(view.locator(".ipl-answer").nth(1)).to_contain_text("turn 2, the next cell continues from it")
    turns, taken, computed, before = printed(notebook, 3)
    assert (turns, computed) == (2, 1)
    assert taken == next(other for other in others if other != token)
    assert len(before) == 3
    notebook.run(4)
    notebook.run(5)
    expect(notebook.out(5)).to_contain_text("False")  # the head is the new turn now
    assert "2 turns" not in notebook.out(5).inner_text()


def test_all_of_it_by_keyboard(smol: Open) -> None:
    notebook = smol(ASK, "%llama tree")
    view = shown(notebook, 1)
    keys = notebook.page.keyboard
    view.locator(".t").first.focus()
    for _ in range(4):
        keys.press("ArrowRight")
    keys.press("ArrowLeft")
    focused = notebook.page.locator(":focus")
    expect(focused).to_have_attribute("aria-label", re.compile(r"token 3: .*%.*bits"))
    keys.press("End")
    keys.press("Home")
    keys.press("ArrowDown")
    expect(focused).to_have_class(re.compile(r"\bt\b"))
    keys.press("Enter")
    expect(focused).to_have_attribute("aria-label", re.compile("branch with"))
    keys.press("ArrowRight")
    keys.press("Escape")
    expect(focused).to_have_class(re.compile(r"\bt\b"))
    keys.press("Enter")
    keys.press("Enter")
    expect(view.locator(".ipl-answer")).to_have_count(2, timeout=60_000)
    way = view.get_by_role("radio", name="Probability")
    way.focus()
    before = view.locator(".t").first.evaluate("span => getComputedStyle(span).backgroundColor")
    keys.press("ArrowRight")
    expect(view.get_by_role("radio", name="Entropy")).to_be_checked()
    assert view.locator(".t").first.evaluate("span => getComputedStyle(span).backgroundColor") != before
    assert notebook.page.evaluate("jupyterapp.shell.currentWidget.content.activeCellIndex") == 1
    notebook.run(2)
    expect(notebook.out(2)).to_contain_text("2 turns")


def test_a_token_that_is_looked_at_stays_so_when_the_static_form_is_replaced(smol: Open) -> None:
    notebook = smol(ASK)
    view = shown(notebook, 1)
    keys = notebook.page.keyboard
    view.locator(".t").nth(3).click()
    keys.press("Enter")
    keys.press("Enter")
    expect(view.locator(".ipl-answer")).to_have_count(2, timeout=60_000)
    view.locator(".ipl-answer").first.locator(".t").nth(5).click()
    drawn = view.element_handle()
    notebook.page.mouse.move(5, 5)
    notebook.leave_and_come_back(view.locator(".t").nth(5))
    notebook.page.wait_for_function("view => !view.isConnected", arg=drawn)
    keys.press("ArrowRight")
    focused = notebook.page.locator(":focus")
    expect(focused).to_have_attribute("aria-label", re.compile("^token 6: "))


def test_a_branch_is_stopped(smol: Open) -> None:
    notebook = smol(
        "%config Llama.max_tokens = 4000\nfrom ipyllama import loaded\nllm, = loaded()\nchat = llm.chat()\n"
        "job = chat.start('Count.', max_tokens=4000, logprobs=3, logit_bias={llm.vocab.eos: float('-inf')})\n"
        "from itertools import islice\nlist(islice(job, 20))\njob.cancel()\njob.wait()\njob.reply.token_view()",
        "print(chat.head.finish_reason, len(chat.all_turns))",
    )
    view = shown(notebook, 1)
    view.locator(".t").first.click()
    view.locator("button.ipl-other").first.click()
    running = view.locator(".ipl-running")
    expect(running.locator(".ipl-text")).to_contain_text(re.compile(r"(\w+\W+){3}"), timeout=60_000)
    view.locator("button.ipl-other").last.click()
    expect(view.get_by_role("alert")).to_contain_text("One branch at a time")
    running.get_by_role("button", name="Stop").click()
    expect(running).to_be_hidden(timeout=30_000)
    expect(view.get_by_role("alert")).to_be_hidden()
    expect(view.locator(".ipl-answer")).to_have_count(2)
    notebook.run(2)
    expect(notebook.out(2)).to_contain_text("interrupted 2")


def test_a_saved_notebook_shows_the_static_form(smol: Open) -> None:
    notebook = smol(ASK)
    view = shown(notebook, 1)
    view.locator(".t").nth(2).click()
    view.locator("button.ipl-other").first.click()
    expect(view.locator(".ipl-answer")).to_have_count(2, timeout=60_000)
    notebook.page.mouse.move(5, 5)
    notebook.cell(0).locator(".cm-content").click()  # the view is left
    expect(notebook.out(1)).to_contain_text("Branch at token 2", timeout=30_000)
    notebook.page.wait_for_timeout(1000)
    output = notebook.save().cells[1].outputs[-1]
    assert set(output.data) == {"text/plain", "text/html"}
    assert output.data["text/plain"].count("perplexity") == 2
    notebook.lab.end_kernels()  # while one lives the view is there again
    notebook.page.reload(wait_until="domcontentloaded")
    out = notebook.out(1)
    expect(out).to_contain_text("the tokens in numbers", timeout=30_000)
    expect(out).to_contain_text("Branch at token 2")
    expect(out.locator(".ipl-tokens")).to_have_count(0)
    for error in ("model not found", "Error displaying widget", "Traceback"):
        expect(notebook.page.locator("body")).not_to_contain_text(error)


def test_hostile_tokens_are_text(notebook: Open) -> None:
    opened = notebook("%load_ext ipyllama", HOSTILE)
    opened.run(0)
    view = shown(opened, 1)
    expect(view).to_contain_text("<img src=x onerror=alert(1)>")
    view.locator(".t").first.click()
    expect(view.locator(".ipl-detail")).to_contain_text("</script><script>alert(2)</script>")
    expect(view).to_contain_text("<b>m</b>")
    assert view.locator("img, script, b").count() == 0
    assert opened.out(1).locator("img").count() == 0
    (output,) = opened.save().cells[1].outputs
    assert "<img" not in output.data["text/html"]


def test_8192_tokens(notebook: Open) -> None:
    opened = notebook("%load_ext ipyllama", MANY, "Reply('x', model='m', logprobs=told).token_view()")
    opened.run(0)
    opened.run(1)
    page = opened.page

    def show() -> None:
        view = shown(opened, 2)
        expect(view.locator(".t")).to_have_count(8192, timeout=60_000)

    def toggle() -> None:
        view = opened.out(2).locator(".ipl-tokens")
        view.get_by_role("radio", name="Entropy").click()
        page.wait_for_timeout(300)

    for name, act in {"showing": show, "toggling": toggle}.items():
        tell_longest(page, name, act)
