"""An answer that grows: what is sent piece by piece is what the whole text gives."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.test_display_golden import ANSWER

from ipyllama.display.growing import GrowingHTML
from ipyllama.display.markdown import markdown_html


def drawn(text: str, cuts: list[int]) -> tuple[str, int]:
    """What a front end shows that gets the text up to each cut, and then all; and how much was sent."""
    growing, blocks, tail, sent = GrowingHTML(), "", "", 0
    for cut in [*cuts, len(text)]:
        growth = growing.grow(text[:cut])
        blocks += growth.blocks
        units = tail.encode("utf-16-le")[: 2 * growth.keep].decode("utf-16-le")
        tail = units + growth.tail
        sent += len(growth.blocks) + len(growth.tail)
    return blocks + tail, sent


@pytest.mark.parametrize("step", [1, 3, 17])
def test_the_end_is_what_the_whole_text_gives(step: int) -> None:
    assert drawn(ANSWER, list(range(0, len(ANSWER), step)))[0] == markdown_html(ANSWER)


PIECES = [
    "a ",
    "**b** ",
    "🦙",
    "\n",
    "\n\n",
    "- c\n",
    "    d\n",
    "1. e\n",
    "```\n",
    "> f\n",
    "# g\n",
    "| h | i |\n|---|---|\n",
]


@given(st.lists(st.sampled_from(PIECES), max_size=25), st.integers(0, 99))
def test_any_text_in_any_pieces(pieces: list[str], seed: int) -> None:
    text = "".join(pieces)
    cuts = sorted(random.Random(seed).choices(range(len(text) + 1), k=8))
    assert drawn(text, cuts)[0] == markdown_html(text)


def test_a_long_answer_is_sent_about_once() -> None:
    text = "\n\n".join(
        [*["Some words of a story that goes on. " * 20] * 20, "```python\n" + "x = [1, 2]\n" * 200 + "```"]
    )
    html, sent = drawn(text, list(range(0, len(text), 5)))
    assert sent < 4 * len(html)


def test_thinking_shows_its_end_and_folds() -> None:
    growing = GrowingHTML()
    first = growing.grow("<think>\none <b>two")
    assert "thinking: 2 words" in first.tail
    assert "<b>" not in first.tail
    growth = growing.grow("<think>\none <b>two</think>\n\nYes **and** no")
    assert growth.blocks.startswith("<details")
    assert (growth.keep, growth.tail) == (0, "<p>Yes <strong>and</strong> no</p>")
    assert growing.grow("<think>\none <b>two</think>\n\nYes **and** no.").blocks == ""
