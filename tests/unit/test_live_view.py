"""The live answer, seen from the kernel: what is displayed and saved, and what is sent to draw it."""

from __future__ import annotations

from typing import Any

import pytest

from ipyllama.display import Progress, ReplyStream, reply_bundle
from ipyllama.reply import Delta, Finished, Prefill, Reply, Timings, Usage
from ipyllama.widgets.front import FrontEnd, placed, running_cell
from ipyllama.widgets.live import LiveView

REPLY = Reply("one *two*", usage=Usage(1, 2, 3, 4), timings=Timings(first_token=0.5, decode=1))


class Page:
    """What a front end gets, in order: messages, and the states of one output."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.shown: list[dict[str, str]] = []
        self.order: list[str] = []
        self.now = 0.0
        self.view = LiveView(self._send, "cell-0", self._show, lambda: self.now)

    def _send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)
        self.order.append(message["kind"])

    def _show(self, bundle: dict[str, str]) -> Any:
        self.shown.append(bundle)
        self.order.append("shown")
        return self._show


@pytest.fixture
def page() -> Page:
    return Page()


def test_an_answer(page: Page) -> None:
    stream = ReplyStream(page.view)
    stream.feed(Delta("one ", 1))
    page.now = 2.0
    page.view.text("one *two*", 5)
    stream.feed(Finished(REPLY))
    assert page.order == ["begin", "shown", "text", "text", "end", "shown"]
    assert [m.get("line") for m in page.sent] == [None, "1 token", "5 tokens · 2.0/s", None]
    assert page.sent[-1]["copy"] == "one *two*"
    assert {message["slot"] for message in page.sent} == {"cell-0"}
    final = reply_bundle(REPLY)
    assert page.shown[-1] == final | {"text/html": placed(final["text/html"], "cell-0")}


def test_a_saved_notebook_holds_no_widget(page: Page) -> None:
    page.view.text("<b>one</b>", 1)
    assert set(page.shown[0]) == {"text/plain", "text/html"}
    assert page.shown[0]["text/plain"] == "an answer is being written"


def test_progress(page: Page) -> None:
    page.view.progress(Progress("reading the prompt", 512, 1024, eta=3.0))
    assert page.sent[-1] == {
        "slot": "cell-0",
        "kind": "progress",
        "line": "reading the prompt: 512 of 1,024 tokens · 50% · 3 s left",
        "label": "reading the prompt",
        "share": 0.5,
    }
    page.view.line("")
    assert page.sent[-1]["share"] is None


def test_what_fails_leaves_what_was_written(page: Page) -> None:
    stream = ReplyStream(page.view)
    stream.feed(Delta("one <b>", 1))
    stream.flush()
    assert page.order[-2:] == ["end", "shown"]
    assert page.shown[-1]["text/plain"] == "one <b>"


def test_what_fails_before_it_began_leaves_nothing(page: Page) -> None:
    stream = ReplyStream(page.view)
    stream.flush()
    assert page.shown == []
    stream = ReplyStream(page.view)
    stream.feed(Prefill(0, 100, 0, 2.0))
    stream.flush()
    assert page.shown[-1]["text/plain"] == ""


def test_a_replayed_answer_is_shown_at_once(page: Page) -> None:
    page.view.reply(REPLY)
    assert page.order == ["end", "shown"]


def test_two_thousand_tokens_are_under_two_megabytes(page: Page) -> None:
    frame = 700  # what a message costs beside its content
    text = ""
    for n in range(2000):
        text += "word, " if n % 60 else "\n\n- word "
        page.view.text(text, n)
    assert sum(frame + len(repr(message)) for message in page.sent) < 2e6


class Shell:
    """As much of a shell as `FrontEnd` looks at."""

    def __init__(self, header: Any, kernel: object | None = None) -> None:
        self.parent_header, self.kernel = header, kernel


@pytest.mark.parametrize("header", [None, {}, {"metadata": {}}, {"metadata": {"cellId": 3}}])
def test_no_cell_no_live_view(header: Any) -> None:
    shell = Shell(header, kernel=object())
    assert running_cell(shell) is None
    assert not FrontEnd(shell).can_show
    assert not FrontEnd(Shell({"metadata": {"cellId": "a"}})).can_show  # a terminal
