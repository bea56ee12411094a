"""The tree of a conversation: lines, dots, marks, and texts that are cut to fit."""

from __future__ import annotations

from itertools import pairwise

from ipyllama.display.tree import ConversationTree, TreeRow

ROWS = (
    TreeRow(4, None, "Other beginning", "yes", depth=1, first=True),
    TreeRow(1, "village", "Tell <b>me</b>", "A village."),
    TreeRow(2, "storm", "A storm", "It raged.", depth=1, first=True, stale=True),
    TreeRow(5, None, "And then?", "Calm.", depth=1, stale=True),
    TreeRow(3, "feast", "A feast", "", head=True),
)


def test_the_text_form() -> None:
    assert str(ConversationTree("Chat", ROWS)).split("\n") == [
        "Chat",
        "┌─○ 4        Other beginning → yes",
        "○ 1 village  Tell <b>me</b> → A village.",
        "├─○ 2 storm  A storm → It raged.  [stale]",
        "│ ○ 5        And then? → Calm.  [stale]",
        "● 3 feast    A feast → (nothing)  [head]",
    ]


def test_a_line_fits_in_a_terminal_however_long_its_texts_are() -> None:
    long = "wort " * 1000
    lines = str(ConversationTree("Chat", [TreeRow(1, None, long, "x" * 5000)])).split("\n")
    assert all(len(line) <= 80 for line in lines)
    assert lines[1].count("…") == 2


def test_html_is_escaped_and_says_the_same() -> None:
    html = ConversationTree("Chat", ROWS)._repr_mimebundle_()["text/html"]
    assert "<b>me</b>" not in html
    places = [html.index(said) for said in ("Other beginning", "Tell &lt;b&gt;me", "A storm", "And then?", "A feast")]
    assert all(before < after for before, after in pairwise(places))
    assert html.count(">stale</span>") == 2
    assert html.count(">head</span>") == 1


def test_nothing_said() -> None:
    assert str(ConversationTree("Chat", [])) == "Chat\n(nothing was said yet)"
