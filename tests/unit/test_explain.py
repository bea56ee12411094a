"""Both sides of the place where two prompts part, as text."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ipyllama.chat import Turn
from ipyllama.explain import BEFORE, Span, explain
from ipyllama.ledger import Ledger
from ipyllama.reply import Reply
from ipyllama.why import Why


class Bytes:
    """A vocabulary of single bytes."""

    def piece(self, token: int, special: bool = False) -> bytes:
        return bytes([token])


def sides(here: str, there: str, common: str = "") -> tuple[tuple[Span, ...], tuple[Span, ...]]:
    a, b, before = here.encode(), there.encode(), common.encode()
    why = Why("text changed", len(before + a), 0, len(before), tuple(a), tuple(b))
    ledger = Ledger().append_prompt(before + a)
    explanation = explain(Turn(text="", message="", ledger=ledger, why=why), Bytes())
    assert explanation is not None
    assert explanation.why is why
    return explanation.here, explanation.there


def marked(spans: Sequence[Span]) -> str:
    return "".join(f"<{span.text}>" if span.changed else span.text for span in spans)


@pytest.mark.parametrize(
    ("here", "there", "shown_here", "shown_there"),
    [
        ("chatty one.", "terse one.", "<chatty> on", "<terse> on"),
        ("a then b", "c then d", "<a> then <b>", "<c> then <d>"),
        ("new and old", "old", "<new and >old", "old"),
        ("same tail but longer", "XYsame tail", "sam", "<XY>sam"),
        ("abcd", "wxyz", "<abcd>", "<wxyz>"),
        ("axxb", "ayyyb", "<axxb>", "<ayyyb>"),
        ("", "gone", "", "<gone>"),
    ],
)
def test_what_differs_is_marked(here: str, there: str, shown_here: str, shown_there: str) -> None:
    assert tuple(map(marked, sides(here, there))) == (shown_here, shown_there)


def test_a_little_of_what_both_have_in_common_stands_before() -> None:
    here, there = sides("X", "Y", common="0123456789" * 3)
    assert here[0] == there[0] == Span("…" + ("0123456789" * 3)[-BEFORE:], False)
    here, there = sides("X", "Y", common="012")
    assert here[0] == there[0] == Span("012", False)


def test_a_character_of_several_tokens_stays_whole() -> None:
    here, there = sides("日本", "日東", common="語")
    assert marked(here) == "語日<本>"
    assert marked(there) == "語日<東>"


def test_half_a_character_is_shown_as_such() -> None:
    why = Why("text changed", 3, 0, 0, (0xE6, 0x97), (0x41,))
    explanation = explain(Reply("", why=why), Bytes())
    assert explanation is not None
    assert explanation.here == (Span("\ufffd", True),)


def test_where_nothing_differs_there_is_nothing_to_show() -> None:
    explanation = explain(Reply("", why=Why("continued", 5, 4)), Bytes())
    assert explanation is not None
    assert (explanation.here, explanation.there) == ((), ())
    assert explain(Reply(""), Bytes()) is None
