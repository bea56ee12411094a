"""The chat panel without a browser: what messages of a front end do to the conversation, and what it is told."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from native.jobs import endless

from ipyllama.chat import Chat
from ipyllama.errors import BadOption
from ipyllama.llm import LLM
from ipyllama.widgets.panel import ChatPanel

Load = Callable[..., LLM]
HOSTILE = """<img src=x onerror="alert(1)"> </script><script>alert(2)</script>"""


class Watched(ChatPanel):
    """Keeps what it sends."""

    def __init__(self, chat: Chat, **options: Any) -> None:
        self.sent: list[dict[str, Any]] = []
        super().__init__(chat, **options)

    def send(self, content: dict[str, Any], buffers: object = None) -> None:
        self.sent.append(content)

    def kinds(self) -> list[str]:
        return [each["kind"] for each in self.sent]


def wait(until: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not until():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.01)


def tell(panel: ChatPanel, **content: object) -> None:
    """What ipywidgets does with a message of the front end."""
    panel._handle_custom_msg(content, [])


def rest(panel: ChatPanel) -> None:
    """Wait until everything is done that was asked for."""
    ended: list[bool] = []
    panel.worker.do(lambda: ended.append(True))
    wait(lambda: ended)


def shown(panel: ChatPanel) -> list[str]:
    return [turn["message"] for turn in panel.turns]


@pytest.fixture
def chat(load: Load) -> Chat:
    return load("llama", n_ctx=16384).chat()


@pytest.fixture
def panel(chat: Chat) -> Watched:
    return Watched(chat, max_tokens=8, logit_bias=((chat.llm.vocab.eos, float("-inf")),))


def test_a_message_is_answered_as_in_a_cell(panel: Watched, chat: Chat) -> None:
    tell(panel, kind="ask", text=" Hello \n", after=None)
    rest(panel)
    (turn,) = chat.turns
    assert (turn.message, len(turn.tokens)) == ("Hello", 8)
    (drawn,) = panel.turns
    assert (drawn["id"], drawn["at"], drawn["of"], drawn["marks"]) == (turn.id, 0, 1, "turn 1")
    assert drawn["cost"].startswith(f"{turn.usage.prompt} prompt tokens: 0 reused")
    assert panel.running == {}
    assert panel.kinds()[:2] == ["heard", "begin"]
    cold = chat.llm.chat().ask("Hello", max_tokens=8, logit_bias=((chat.llm.vocab.eos, float("-inf")),))
    assert cold.tokens == turn.tokens


def test_who_comes_late_is_told_all_of_it(load: Load) -> None:
    panel = Watched(load("smollm2").chat(), max_tokens=400, temperature=0.0)
    tell(panel, kind="ask", text="Explain what rain is.", after=None)
    wait(lambda: panel.kinds().count("text") >= 3)
    tell(panel, kind="late")
    wait(lambda: panel.kinds().count("begin") == 2 and panel.kinds()[-1] == "text")
    panel.stop()
    rest(panel)
    first, second = (n for n, kind in enumerate(panel.kinds()) if kind == "begin")
    after = next(each for each in panel.sent[second:] if each["kind"] == "text")
    before = next(each for each in panel.sent[first:] if each["kind"] == "text")
    assert after["keep"] == 0
    assert (after["blocks"] + after["tail"]).startswith((before["blocks"] + before["tail"]).removesuffix("</p>"))
    assert len(after["blocks"] + after["tail"]) > len(before["blocks"] + before["tail"])


def test_a_reset_ends_what_is_being_written(panel: Watched, chat: Chat) -> None:
    chat.watch(panel._changed_elsewhere)
    panel.set(max_tokens=8000)
    panel.ask("One")
    wait(lambda: "text" in panel.kinds())
    job = panel._job
    assert job is not None
    chat.reset()
    rest(panel)
    assert job.result().finish_reason == "interrupted"
    assert (chat.all_turns, shown(panel), panel.running) == ((), [], {})


def test_regenerate_and_walk(panel: Watched, chat: Chat) -> None:
    panel.set(temperature=1.0)
    panel.ask("One")
    panel.ask("Two")
    rest(panel)
    first, second = chat.turns
    panel.again(first)
    rest(panel)
    other = chat.head
    assert (other.parent, other.message, other.seed) == (None, "One", first.seed + 1)
    assert other.tokens != first.tokens
    (drawn,) = panel.turns
    assert (drawn["at"], drawn["of"], drawn["before"], drawn["after"]) == (1, 2, second.id, None)
    tell(panel, kind="goto", turn=drawn["before"])  # back to where that branch ends
    rest(panel)
    assert chat.head.id == second.id
    assert shown(panel) == ["One", "Two"]
    assert (panel.turns[0]["before"], panel.turns[0]["after"]) == (None, other.id)
    tell(panel, kind="again", turn=first.id)
    rest(panel)
    assert chat.head.seed == first.seed + 2


def test_an_edit_is_a_branch(panel: Watched, chat: Chat) -> None:
    for text in ("One", "Two", "Three"):
        panel.ask(text)
    rest(panel)
    one, two, three = chat.turns
    tell(panel, kind="edit", turn=two.id, text="Two and a half")
    rest(panel)
    assert shown(panel) == ["One", "Two and a half"]
    assert chat.head.parent.id == one.id
    assert [turn.id for turn in chat.all_turns][:3] == [one.id, two.id, three.id]
    assert chat.head.usage.reused > 0
    assert panel.turns[1]["before"] == three.id


def test_stop_keeps_what_there_is(load: Load) -> None:
    chat = load("llama", n_ctx=32768).chat()
    panel = Watched(chat, max_tokens=30000, logit_bias=((chat.llm.vocab.eos, float("-inf")),))
    tell(panel, kind="ask", text="Go on", after=None)
    wait(lambda: "text" in panel.kinds())
    tell(panel, kind="stop")
    rest(panel)
    assert chat.head.finish_reason == "interrupted"
    assert 0 < len(chat.head.tokens) < 30000
    assert "[interrupted]" in panel.turns[0]["cost"]
    panel.ask("And now?")  # a stop is for what was asked before it
    panel.set(max_tokens=3)
    rest(panel)
    assert len(chat.turns) == 2


def test_stopped_before_it_began_the_message_comes_back(panel: Watched, chat: Chat) -> None:
    blocking = endless(chat.llm)
    try:
        tell(panel, kind="ask", text="Wait", after=None)
        wait(lambda: panel.running)
        tell(panel, kind="stop")
        rest(panel)
    finally:
        blocking.cancel()
    assert panel.sent[-1] == {"kind": "unsent", "text": "Wait"}
    assert (chat.turns, panel.turns, panel.running) == ((), [], {})


def test_what_happens_elsewhere_is_shown(panel: Watched, chat: Chat) -> None:
    panel._unwatch = chat.watch(lambda: panel.worker.do(panel._follow))  # as where it is live
    turn = chat.ask("From a cell", cell="a", max_tokens=3)
    rest(panel)
    assert shown(panel) == ["From a cell"]
    chat.ask("From another", cell="b", max_tokens=3)
    chat.rename(turn, "first")
    rest(panel)
    assert panel.turns[0]["marks"] == "turn 1 (first)"
    again = chat.ask("From a cell, again", cell="a", max_tokens=3)
    rest(panel)
    assert shown(panel) == ["From a cell, again"]
    chat.goto("2")
    rest(panel)
    assert [each["marks"] for each in panel.turns] == ["an earlier answer (first)", "turn 2 · stale"]
    chat.reset()
    rest(panel)
    assert panel.turns == []
    assert again.message in str(again.messages)


def test_two_panels_and_a_cell_at_once(chat: Chat) -> None:
    panels = [Watched(chat, max_tokens=30) for _ in range(2)]
    for panel in panels:
        panel._unwatch = chat.watch(lambda panel=panel: panel.worker.do(panel._follow, "follow"))
        panel.ask("From a panel")
    turn = chat.ask("From a cell", cell="a", max_tokens=30)
    for panel in panels:
        rest(panel)
    for panel in panels:
        rest(panel)
    assert sorted(each.message for each in chat.all_turns) == ["From a cell", "From a panel", "From a panel"]
    assert panels[0].turns == panels[1].turns
    cold = chat.llm.chat().ask("From a cell", max_tokens=30)
    assert cold.tokens == turn.tokens


def test_problems_are_told(panel: Watched, chat: Chat) -> None:
    tell(panel, kind="ask", text="  ", after=None)
    rest(panel)
    assert panel.problem == "there is nothing to ask: write a message"
    tell(panel, kind="set", options={"temperature": 7})
    rest(panel)
    assert "temperature must be" in panel.problem
    assert panel.sampling["temperature"] == 0.2
    tell(panel, kind="set", options={"top_k": 7})  # has no field
    tell(panel, kind="set", options={"temperature": 0.5, "seed": "random"})
    tell(panel, kind="goto", turn="nowhere")
    rest(panel)
    assert "no turn is called 'nowhere'" in panel.problem
    assert (panel.options.temperature, panel.options.top_k, panel.options.seed) == (0.5, 40, "random")
    panel.sent.clear()
    tell(panel, kind="ask", text="Hello", after="nowhere")
    tell(panel, kind="again", turn="nowhere")
    rest(panel)
    assert [each for each in panel.sent if each["kind"] == "unsent"] == [
        {"kind": "unsent", "text": "Hello"},
        {"kind": "unsent", "text": ""},
    ]
    tell(panel, kind="ask", text="word " * 9000, after=None)
    rest(panel)
    assert "tokens" in panel.problem
    assert panel.sent[-1]["kind"] == "unsent"
    with pytest.raises(BadOption):
        ChatPanel(chat, temprature=1)
    for content in ({}, {"kind": 3}, {"kind": "ask"}, {"kind": "ask", "text": 3}, {"kind": "edit", "turn": "x"}):
        tell(panel, **content)
    rest(panel)
    assert chat.turns == ()


def test_another_model_goes_on(panel: Watched, chat: Chat, load: Load) -> None:
    panel.ask("One")
    rest(panel)
    other = load("llama-bigram")
    panel.list_models()
    rest(panel)
    assert {each["path"] for each in panel.models} >= {str(chat.llm.path), str(other.path)}
    tell(panel, kind="use", model=str(other.path))
    rest(panel)
    assert (panel.problem, panel.model, chat.llm.path) == ("", str(other.path), other.path)
    panel.ask("Two")
    rest(panel)
    assert shown(panel) == ["One", "Two"]
    assert chat.head.model == other.name
    tell(panel, kind="use", model="/nowhere.gguf")
    rest(panel)
    assert "nowhere.gguf" in panel.problem
    assert (panel.model, panel.doing) == (str(other.path), "")


def test_a_model_that_answers_is_not_changed(panel: Watched, chat: Chat, load: Load) -> None:
    other = load("llama-bigram")
    running = endless(chat.llm)
    panel.use(str(other.path))
    rest(panel)
    assert "is writing an answer" in panel.problem
    running.cancel()


def test_static_forms_tell_what_was_said(panel: Watched, chat: Chat) -> None:
    assert str(panel).endswith("(nothing was said yet)")
    panel.ask(HOSTILE)
    rest(panel)
    panel.again(chat.head)
    rest(panel)
    bundle = panel.bundle()
    assert HOSTILE in bundle["text/plain"]
    assert "<img" not in bundle["text/html"]
    assert "<script" not in bundle["text/html"]
    for form in bundle.values():
        assert "turn 2 · branch 2 of 2" in form
        assert f"{chat.head.usage.prompt} prompt tokens" in form


def test_cells_ask_the_same(panel: Watched, chat: Chat) -> None:
    panel.ask("One {{two}}")
    rest(panel)
    tell(panel, kind="cells")
    rest(panel)
    assert panel.sent[-1] == {"kind": "cells", "cells": chat.cells()}
    assert chat.cells()[0].endswith("\nOne \\{{two}}")
