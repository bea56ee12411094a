"""What a loader makes of a file: sections of text under their headings."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

Form = Literal["text", "markdown"]
"""How a text is to be cut: at blank lines and sentences, or at what Markdown holds together."""


@dataclass(frozen=True, slots=True)
class Section:
    """A stretch of a document under one heading."""

    text: str
    title: str = ""
    """all headings that it stands under, joined by " > " """
    start: int = 0
    """where it begins in the document's text, in characters"""
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Document:
    """A document as text."""

    sections: Sequence[Section]
    form: Form = "text"
    notice: str = ""
    """what a reader should know of how it was read"""


def clean(text: str) -> str:
    """A text that every part of the machinery can hold: one kind of line end, no NUL, no halves of characters."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
    return text.encode("utf-8", "replace").decode() if _has_halves(text) else text


def markdown_document(text: str, title: str = "", notice: str = "") -> Document:
    """A Markdown text by its headings. `title` stands above all of them."""
    return Document(tuple(_by_headings(text, [title] if title else [])), "markdown", notice)


def by_lines(text: str, starts: Sequence[tuple[int, str]]) -> list[Section]:
    """Sections of a text that begin at these lines (from 0), each with its title; the first begins at line 0."""
    offsets = _line_offsets(text)
    ends = [*(line for line, _ in starts[1:]), len(offsets) - 1]
    return [
        Section(text[offsets[line] : offsets[end]], title, offsets[line])
        for (line, title), end in zip(starts, ends, strict=True)
        if offsets[line] < offsets[end]
    ]


def _by_headings(text: str, above: list[str]) -> Iterator[Section]:
    offsets, begin = _line_offsets(text), 0
    levels: list[tuple[int, str]] = []
    for first, after, level, title in _headings(text):
        yield from _section(text, offsets[begin], offsets[first], [*above, *(name for _, name in levels)])
        levels = [*((n, name) for n, name in levels if n < level), (level, title)]
        begin = after
    yield from _section(text, offsets[begin], len(text), [*above, *(name for _, name in levels)])


def _section(text: str, begin: int, end: int, titles: list[str]) -> Iterator[Section]:
    body = text[begin:end]
    if body.strip():
        yield Section(body, " > ".join(filter(None, dict.fromkeys(titles))), begin)


def _headings(text: str) -> Iterator[tuple[int, int, int, str]]:
    """First line, line after, level and text of each heading, and the front matter as a heading without text."""
    tokens = _parser().parse(text)
    for token, following in itertools.pairwise([*tokens, None]):
        if token is None or token.map is None or token.level:
            continue
        if token.type == "front_matter":
            yield token.map[0], token.map[1], 9, ""
        elif token.type == "heading_open" and following is not None:
            yield token.map[0], token.map[1], int(token.tag[1]), _plain(following)


def _plain(inline: Token) -> str:
    children = inline.children or []
    return " ".join("".join(child.content or " " for child in children if child.type != "html_inline").split())


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt
    from mdit_py_plugins.front_matter import front_matter_plugin

    return MarkdownIt("commonmark").use(front_matter_plugin)


def _line_offsets(text: str) -> list[int]:
    """Where each line begins, and the end of the text."""
    lengths = (len(line) + 1 for line in text.split("\n"))
    offsets = list(itertools.accumulate(lengths, initial=0))
    offsets[-1] = len(text)
    return offsets


def _has_halves(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
