"""Text out of token bytes: however tokens cut it, whole characters come out and stop texts never do."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from ipyllama.engine.text import TextAssembler

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\ufffd"), max_size=40)
STOP_TEXTS = st.lists(st.text("abé🎉", min_size=1, max_size=4), max_size=3)


@st.composite
def pieces(draw: st.DrawFn, texts: st.SearchStrategy[str] = TEXTS) -> tuple[str, list[bytes]]:
    """A text, and its bytes cut anywhere, also inside characters."""
    text = draw(texts)
    data = text.encode()
    cuts = sorted({0, len(data), *draw(st.lists(st.integers(0, len(data)), max_size=20))})
    return text, [data[a:b] for a, b in pairwise(cuts)]


def feed(assembler: TextAssembler, parts: list[bytes]) -> list[str]:
    """What is shown after each part, and at the end; nothing more is fed once a stop text was found."""
    shown = []
    for part in parts:
        shown.append(assembler.add(part))
        if assembler.stopped:
            break
    return [*shown, assembler.flush()]


@given(pieces())
def test_any_cut_gives_the_same_text_in_whole_characters(case: tuple[str, list[bytes]]) -> None:
    text, parts = case
    assembler = TextAssembler()
    shown = feed(assembler, parts)
    assert "".join(shown) == assembler.text == text
    assert all("\ufffd" not in piece for piece in shown)


@given(pieces(st.text("abé🎉", max_size=30)), STOP_TEXTS)
@example(("aab", [b"a", b"a", b"b"]), ["ab"])
@example(("aaab", [b"aa", b"ab"]), ["aab", "ab"])
@example(("abab🎉", [b"abab", "🎉".encode()]), ["aba🎉", "ab🎉"])
def test_text_ends_before_the_stop_text_that_is_complete_first(case: tuple[str, list[bytes]], stop: list[str]) -> None:
    text, parts = case
    assembler = TextAssembler(stop)
    shown = feed(assembler, parts)
    assert "".join(shown) == assembler.text
    expected, stopped = text, False
    for n in range(1, len(parts) + 1):  # the definition: search everything so far after each part
        so_far = b"".join(parts[:n]).decode("utf-8", "ignore")
        found = [at for word in stop if (at := so_far.find(word)) >= 0]
        if found:
            expected, stopped = text[: min(found)], True
            break
    assert (assembler.text, assembler.stopped) == (expected, stopped)
    assert not any(word in assembler.text for word in stop)


def test_what_may_begin_a_stop_text_is_held_back_and_given_out_at_the_end() -> None:
    assembler = TextAssembler(["<end>"])
    assert assembler.add(b"hello <en") == "hello "
    assert assembler.add(b"d") == ""
    assert assembler.flush() == "<end"
    assert assembler.text == "hello <end"
    assert not assembler.stopped


def test_what_turns_out_not_to_be_one_comes_with_the_next_piece() -> None:
    assembler = TextAssembler(["<end>"])
    assert assembler.add(b"a <e") == "a "
    assert assembler.add(b"gg>") == "<egg>"


def test_nothing_comes_after_a_stop_text() -> None:
    assembler = TextAssembler(["stop", "st"])
    assert assembler.add(b"one stop two") == "one "
    assert assembler.stopped
    assert assembler.add(b"three") == assembler.flush() == ""
    assert assembler.text == "one "


def test_bytes_that_are_no_utf8_are_shown_as_such_and_an_unfinished_character_is_not() -> None:
    assembler = TextAssembler()
    assert assembler.add(b"a\xffb") == "a\ufffdb"
    assert assembler.add("é".encode()[:1]) == ""
    assert assembler.flush() == ""
    assert assembler.text == "a\ufffdb"
