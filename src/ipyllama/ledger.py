"""The ledger: the exact token ids of a sequence, and where each came from. Text is only its rendering."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress, count

from ipyllama.errors import BadOption


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of tokens of one origin: a prompt's, or what the model sampled."""

    tokens: tuple[int, ...]
    sampled: bool
    together: bool = False
    """sampled in one step with other answers: that state is not kept, so going on from it reads it like a prompt"""

    @property
    def stepwise(self) -> bool:
        """Whether each of its tokens is evaluated in a step of its own."""
        return self.sampled and not self.together


@dataclass(frozen=True)
class Ledger:
    """Segments in order, none empty. Immutable: appending gives a new ledger that shares the old segments.

    Two prompt segments stay apart where they meet, because the evaluation schedule is cut at the end of each;
    two sampled ones become one, because sampled tokens are evaluated one by one anyway.
    """

    segments: tuple[Segment, ...] = ()

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def tokens(self) -> tuple[int, ...]:
        """Every token id, first to last."""
        return tuple(token for segment in self.segments for token in segment.tokens)

    @cached_property
    def sampled(self) -> tuple[bool, ...]:
        """For every token, whether the model sampled it."""
        return tuple(segment.sampled for segment in self.segments for _ in segment.tokens)

    def append_prompt(self, tokens: Iterable[int]) -> Ledger:
        """This ledger and then a prompt segment; itself where `tokens` is empty."""
        new = tuple(tokens)
        return Ledger((*self.segments, Segment(new, sampled=False))) if new else self

    def append_sampled(self, tokens: Iterable[int], *, together: bool = False) -> Ledger:
        """This ledger and then sampled tokens; itself where `tokens` is empty. `together` as in `Segment`."""
        new = tuple(tokens)
        if not new:
            return self
        if self.segments and self.segments[-1].stepwise and not together:
            *before, last = self.segments
            return Ledger((*before, Segment(last.tokens + new, sampled=True)))
        return Ledger((*self.segments, Segment(new, sampled=True, together=together)))

    def common_prefix(self, other: Ledger) -> int:
        """How many leading token ids are the same in both, whatever their origin."""
        return common_prefix(self.tokens, other.tokens)

    def head(self, n: int) -> Ledger:
        """The first `n` tokens, origins and segment ends kept; the whole where it is no longer than that."""
        segments, left = [], n
        for segment in self.segments:
            if left <= 0:
                break
            segments.append(segment if len(segment.tokens) <= left else replace(segment, tokens=segment.tokens[:left]))
            left -= len(segment.tokens)
        return Ledger(tuple(segments))


def as_ledger(prompt: Ledger | Iterable[int]) -> Ledger:
    """A ledger, or token ids as the ledger of one prompt. Raises `BadOption` for anything else, such as text."""
    if isinstance(prompt, Ledger):
        return prompt
    if isinstance(prompt, str) or not isinstance(prompt, Iterable):
        found = type(prompt).__name__
        raise BadOption(f"token ids are needed, as in turn.ledger or llm.tokenize(TEXT): got {found}")
    return Ledger().append_prompt(prompt)


def common_prefix(a: Sequence[object], b: Sequence[object]) -> int:
    """How many leading items, token ids for example, are the same in both."""
    return next(compress(count(), map(operator.ne, a, b)), min(len(a), len(b)))  # a loop that runs in C
