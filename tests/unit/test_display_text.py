"""Units, the footer, tables as text."""

from __future__ import annotations

import re
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipyllama.display import Table, footer, reply_bundle
from ipyllama.display.progress import Progress, progress_line, progress_text
from ipyllama.display.reply import reply_markdown
from ipyllama.display.table import table_text, text_width
from ipyllama.display.units import format_ago, format_bytes, format_limit, format_rate, format_seconds, plural
from ipyllama.reply import FinishReason, Reply, Timings, Usage


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (99_949, "99.9 kB"),
        (99_951, "100 kB"),
        (999_499, "999 kB"),
        (999_501, "1.0 MB"),
        (93_012_345, "93.0 MB"),
        (42_520_000_000, "42.5 GB"),
        (5_000_000_000_000_000, "5000 TB"),
    ],
)
def test_bytes(n: int, text: str) -> None:
    assert format_bytes(n) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 ms"),
        (0.0412, "41 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (125, "2 min 5 s"),
        (3599.6, "1 h 0 min"),
        (4000, "1 h 7 min"),
    ],
)
def test_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (10 << 30, "10 GiB"),
        (1 << 40, "1 TiB"),
        (1536 << 20, "1,536 MiB"),
        (1 << 10, "1 KiB"),
        (1023, "1.0 kB"),
        (2_000_000_000, "2.0 GB"),
        (0, "0 B"),
    ],
)
def test_limits_read_as_they_are_written(n: int, text: str) -> None:
    assert format_limit(n) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "just now"),
        (29, "just now"),
        (31, "1 min ago"),
        (59 * 60 + 29, "59 min ago"),
        (3600, "1 h ago"),
        (47 * 3600, "47 h ago"),
        (48 * 3600, "2 days ago"),
        (40 * 86400, "40 days ago"),
    ],
)
def test_how_long_ago(seconds: float, text: str) -> None:
    assert format_ago(seconds) == text


def test_rates_and_counts() -> None:
    assert [format_rate(rate) for rate in (0.44, 9.94, 9.96, 48.4, 1234)] == [
        "0.4/s",
        "9.9/s",
        "10/s",
        "48/s",
        "1,234/s",
    ]
    assert [plural(n, "token") for n in (0, 1, 1024)] == ["0 tokens", "1 token", "1,024 tokens"]


def test_the_footer_of_the_design() -> None:
    reply = Reply("x", usage=Usage(780, 0, 32, 120), timings=Timings(first_token=0.041, decode=119 / 48))
    assert footer(reply) == (
        "812 prompt tokens: 780 reused, 0 restored, 32 computed · first token 41 ms · 120 tokens at 48/s"
    )


counts = st.integers(0, 10**7)


@given(st.builds(Usage, counts, counts, counts, counts), st.sampled_from(get_args(FinishReason)), st.floats(0, 1e4))
def test_the_counts_in_the_footer_add_up(usage: Usage, reason: FinishReason, decode: float) -> None:
    line = footer(Reply("x", finish_reason=reason, usage=usage, timings=Timings(first_token=0.1, decode=decode)))
    match = re.match(r"([\d,]+) prompt tokens?: ([\d,]+) reused, ([\d,]+) restored, ([\d,]+) computed · ", line)
    assert match is not None
    prompt, *parts = (int(number.replace(",", "")) for number in match.groups())
    assert prompt == sum(parts)
    assert "\n" not in line
    assert ("[interrupted]" in line) == (reason == "interrupted")


@given(st.lists(st.text(), max_size=4))
def test_each_note_has_one_line(notes: list[str]) -> None:
    assert len(footer(Reply("x", notes=tuple(notes))).split("\n")) == 1 + len(notes)


@pytest.mark.parametrize("mime", ["text/plain", "text/html"])
def test_interrupted_is_marked_everywhere(mime: str) -> None:
    assert "[interrupted]" in reply_bundle(Reply("x", finish_reason="interrupted"))[mime]


@pytest.mark.parametrize(
    ("text", "closing"),
    [
        ("```\nx", "\n```"),
        ("````md\n```\nx\n```", "\n````"),
        ("~~~\n```", "\n~~~"),
        ("```\nx\n```", ""),
        ("``` a`b", ""),
        ("```\nx\n``` y", "\n```"),
        ("plain", ""),
    ],
)
def test_the_markdown_footer_never_falls_into_a_code_block(text: str, closing: str) -> None:
    from markdown_it import MarkdownIt

    markdown = reply_markdown(Reply(text))
    assert markdown.startswith(f"{text}{closing}\n\n<sub>")
    last = MarkdownIt("commonmark").parse(markdown)[-2]
    assert last.content.startswith("<sub>")


def test_wide_characters_line_up() -> None:
    assert [text_width(text) for text in ("abc", "日本", "🦙", "e\u0301", "a\u200b")] == [3, 4, 2, 1, 1]
    lines = table_text(Table(("name", "n"), (("日本", "1"), ("abcdef", "22")), right=frozenset({1}))).split("\n")
    assert len({text_width(line) for line in lines}) == 1


def test_a_cell_cannot_break_its_line() -> None:
    assert table_text(Table(("", ""), (("a", "b\nc"),))) == "a  b c"


def test_progress_stays_within_its_bar() -> None:
    assert progress_text(Progress("x", 0, 10), width=4).startswith("[····] ")
    assert progress_text(Progress("x", 10, 10), width=4).startswith("[████] ")
    assert progress_text(Progress("x", 30, 10), width=4).startswith("[████] ")
    assert progress_line(Progress("x", 1, 2, eta=0.2)) == "x: 1 of 2 tokens · 50% · 1 s left"
    assert progress_line(Progress("x", 1, 2, eta=75.4)) == "x: 1 of 2 tokens · 50% · 1 min 15 s left"
