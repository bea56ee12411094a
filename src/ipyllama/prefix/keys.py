"""Keys: which blocks a ledger is made of, and what each is called.

A ledger is cut into blocks at points that are a function of the ledger alone: at a grid from position 0, and before
the last token of each segment, where a run of its own stood once. A block's key is a SHA-256 chain over the blocks
before it, rooted in the fingerprint of the model and its settings. It covers token ids and how they were cut for
evaluation, so that two ledgers with the same key hold the same bits. It never covers text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ipyllama.engine.schedule import piece_ends
from ipyllama.ledger import Ledger

KEY_BYTES: Final = 32
_DOMAIN: Final = b"ipyllama prefix block 1\0"


@dataclass(frozen=True, slots=True)
class Link:
    """One block of a chain: the tokens at positions [start, start + len(tokens))."""

    key: bytes
    parent: bytes
    start: int
    tokens: tuple[int, ...]
    ends: tuple[int, ...]
    """ends of the pieces of the evaluation schedule that these tokens were evaluated in: those in (start, end] and,
    where the block ends inside a piece, the end of that piece, because the bits depend on its length"""
    exact: bool = True
    """False: computed after a cut inside a piece, so its bits are not a cold run's; it has no ends then"""

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    @property
    def usable(self) -> bool:
        """True if evaluation can go on after it: a piece ends where the block ends."""
        return bool(self.ends) and self.ends[-1] == self.end


def root_key(fingerprint: bytes) -> bytes:
    """The parent of first blocks."""
    return hashlib.sha256(_DOMAIN + fingerprint).digest()


def child_key(parent: bytes, tokens: Sequence[int], start: int, ends: Sequence[int], exact: bool = True) -> bytes:
    """Key of the block of `tokens` from position `start` after the block `parent`; `ends` and `exact` as in `Link`."""
    digest = hashlib.sha256(parent)
    if not exact:
        digest.update(b"token-level")
    digest.update(np.array([len(tokens), len(ends)], "<u4").tobytes())
    digest.update(np.asarray(tokens, "<i4").tobytes())
    digest.update((np.asarray(ends, "<i8") - start).astype("<u4").tobytes())
    return digest.digest()


@dataclass(frozen=True, slots=True)
class Cut:
    """How ledgers are cut into blocks."""

    grid: int
    """a block ends at every multiple of this"""
    sampled: bool = True
    """in what the model wrote as well: for memory of which any part can be copied at any time"""


def cut_points(ledger: Ledger, cut: Cut) -> list[int]:
    """Where blocks of this ledger end, ascending."""
    points: set[int] = set()
    start = 0
    for segment in ledger.segments:
        end = start + len(segment.tokens)
        if cut.sampled or not segment.sampled:
            points.update(range((start // cut.grid + 1) * cut.grid, end + 1, cut.grid))
        points.add(end - 1)
        start = end
    return sorted(points - {0})


def chain(root: bytes, ledger: Ledger, cut: Cut, exact: int | None = None) -> Iterator[Link]:
    """The blocks of a ledger, first to last; tokens after the last point belong to none. Those that end after the
    position `exact` are token-level ones; None: there are none."""
    tokens, ends = ledger.tokens, piece_ends(ledger)
    parent, start, at = root, 0, 0
    for point in cut_points(ledger, cut):
        last = at
        while last < len(ends) and ends[last] <= point:
            last += 1
        is_exact = exact is None or point <= exact
        whole = last > at and ends[last - 1] == point
        own = tuple(ends[at : last if whole else last + 1]) if is_exact else ()
        link = link_after(parent, tokens[start:point], start, own, is_exact)
        yield link
        parent, start, at = link.key, point, last


def link_after(parent: bytes, tokens: tuple[int, ...], start: int, ends: tuple[int, ...], exact: bool = True) -> Link:
    """The block of `tokens` from position `start` after the block `parent`."""
    return Link(child_key(parent, tokens, start, ends, exact), parent, start, tokens, ends, exact)
