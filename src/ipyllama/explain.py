"""Why a prompt cost what it did, in words: `Why` holds token ids, here they are text."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from ipyllama.reply import Reply
    from ipyllama.why import Why

BEFORE: Final = 16
"""Tokens that are shown of what both prompts have in common."""
ALIKE: Final = 3
"""Tokens in a row that both sides have, behind the place where they part, from which on they count as the same."""
Marked = tuple[int, bool]
"""A token, and whether it is changed."""


class Vocabulary(Protocol):
    """What is asked of a model's vocabulary."""

    def piece(self, token: int, special: bool = False) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Span:
    """A run of text that the other side has as well, or that it has not."""

    text: str
    changed: bool


@dataclass(frozen=True, slots=True)
class Explanation:
    """A reply's `why`, and the text on both sides of where its prompt parts from an earlier one.

    `here` is this prompt's text from a little before that place on, `there` the earlier prompt's; both are empty where
    no token differs.
    """

    why: Why
    here: tuple[Span, ...] = ()
    there: tuple[Span, ...] = ()

    def __str__(self) -> str:
        from ipyllama.display.why import explanation_text

        return explanation_text(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        from ipyllama.display.why import explanation_bundle

        return explanation_bundle(self)


def explain(reply: Reply, vocab: Vocabulary) -> Explanation | None:
    """The explanation of a reply, None where nothing was read for it (it was stopped before, or replayed).

    Only a turn knows its ledger, and so the text before the place where the prompts part.
    """
    why = reply.why
    if why is None or why.broke is None:
        return Explanation(why) if why else None
    ledger = getattr(reply, "ledger", None)
    before = ledger.tokens[max(0, why.broke - BEFORE) : why.broke] if ledger is not None else ()
    here, there = _compared(why.here, why.there)
    unchanged = [(token, False) for token in before]
    cut = len(before) < why.broke
    return Explanation(why, _spans(vocab, [*unchanged, *here], cut), _spans(vocab, [*unchanged, *there], cut))


def _compared(here: Sequence[int], there: Sequence[int]) -> tuple[list[Marked], list[Marked]]:
    """The tokens of both sides, each with whether the other side lacks it.

    Few tokens in common between others are taken as changed: chance puts them there. Where the sides run alike up to
    the end of one, no more is shown than a few tokens of that.
    """
    found = SequenceMatcher(None, here, there, autojunk=False).get_matching_blocks()
    alike = [block for block in found if block.size >= ALIKE]
    ends = len(here), len(there)
    if alike and (alike[-1].a + alike[-1].size == ends[0] or alike[-1].b + alike[-1].size == ends[1]):
        ends = alike[-1].a + ALIKE, alike[-1].b + ALIKE
    common_here = {n for block in alike for n in range(block.a, block.a + block.size)}
    common_there = {n for block in alike for n in range(block.b, block.b + block.size)}
    return (
        [(token, n not in common_here) for n, token in enumerate(here[: ends[0]])],
        [(token, n not in common_there) for n, token in enumerate(there[: ends[1]])],
    )


def _spans(vocab: Vocabulary, tokens: Iterable[Marked], cut: bool) -> tuple[Span, ...]:
    """Text of tokens, neighbours of one kind as one; `cut`: more stands before them. A character belongs to the token
    that completes it."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    spans = [Span("…", False)] if cut else []
    for token, mark in tokens:
        text = decoder.decode(vocab.piece(token, special=True))
        if spans and spans[-1].changed == mark:
            spans[-1] = Span(spans[-1].text + text, mark)
        else:
            spans.append(Span(text, mark))
    if spans and (rest := decoder.decode(b"", final=True)):
        spans[-1] = Span(spans[-1].text + rest, spans[-1].changed)
    return tuple(span for span in spans if span.text)
