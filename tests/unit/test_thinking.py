"""Thinking is told from the answer by its tags, at the beginning only, and folded where answers are shown."""

from __future__ import annotations

import pytest
from unit.chat_samples import CHATML, THINK, template

from ipyllama.display.reply import reply_bundle, streaming_bundle
from ipyllama.reply import Reply
from ipyllama.thinking import Parts, split_thinking


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("plain", ("", "plain", True)),
        ("", ("", "", True)),
        ("<think>\nhm, 2\n</think>\n\nFour.", ("hm, 2", "Four.", True)),
        ("\n<think>hm</think>Four.", ("hm", "Four.", True)),
        ("<think>\n\n</think>\n\nFour.", ("", "Four.", True)),
        ("<think>\nstill at", ("still at", "", False)),
        ("[THINK]a[/THINK]b", ("a", "b", True)),
        ("<seed:think>a</seed:think>b", ("a", "b", True)),
        ("<think>a</think>b</think>c", ("a", "b</think>c", True)),
        ("HTML knows no <think>, nor </think>.", ("", "HTML knows no <think>, nor </think>.", True)),
        ("no opening </think> here", ("", "no opening </think> here", True)),
    ],
)
def test_split(text: str, parts: tuple[str, str, bool]) -> None:
    assert split_thinking(text) == Parts(*parts)


def test_a_template_may_open_it() -> None:
    assert split_thinking("hm</think>\n\nFour.", "assistant\n<think>\n") == Parts("hm", "Four.", True)
    assert split_thinking("hm", "assistant\n<think>\n") == Parts("hm", "", False)


def test_a_reply_has_both() -> None:
    reply = Reply("<think>\nhm\n</think>\n\nFour.")
    assert (reply.thinking, reply.answer, str(reply)) == ("hm", "Four.", reply.text)


def test_it_is_folded_and_escaped() -> None:
    bundle = reply_bundle(Reply("<think>\na <b>bold</b>\n\nplan\n</think>\n\nFour *is* it."))
    assert bundle["text/plain"].startswith("(thought for 3 words: reply.thinking)\n\nFour *is* it.")
    for form in ("text/html", "text/markdown"):
        assert "<details" in bundle[form]
        assert "a &lt;b&gt;bold&lt;/b&gt;<br><br>plan" in bundle[form]
        assert "</think>" not in bundle[form]
    assert "<em>is</em>" in bundle["text/html"]


def test_an_answer_that_never_came_is_told() -> None:
    stopped = reply_bundle(Reply("<think>\nhm, and", finish_reason="interrupted"))
    assert "(stopped while thinking)" in stopped["text/plain"]
    assert "hm, and" in stopped["text/html"]
    assert "(no answer after thinking)" in reply_bundle(Reply("<think>\nhm\n</think>\n"))["text/plain"]


def test_while_it_is_written_only_the_end_is_shown() -> None:
    text = "<think>\n" + "\n".join(f"line {n}" for n in range(40))
    shown = streaming_bundle(text)["text/markdown"]
    assert "thinking: 80 words" in shown
    assert "line 39" in shown
    assert "line 3\n" not in shown
    assert streaming_bundle(text + "\n</think>\n\nFour")["text/markdown"] == "*thought for 80 words*\n\nFour"


def test_which_switch_a_template_has() -> None:
    assert template(THINK).thinking_switch == "enable_thinking"
    assert template("{% if thinking %}a{% endif %}").thinking_switch == "thinking"
    assert template("{% set enable_thinking = 1 %}{{ enable_thinking }}").thinking_switch is None
    assert template(CHATML).thinking_switch is None
    assert template("{% if %}").thinking_switch is None
