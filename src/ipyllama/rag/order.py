"""In which order documents are read, and what another order would spare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ipyllama.layout import Layout
    from ipyllama.llm import LLM
    from ipyllama.rag.types import Hit
    from ipyllama.vocab import Tokenizer

LOOKS: Final = 24
"""Beginnings that are looked for, at most."""
WORTH: Final = 32
"""Tokens that another order has to spare to be told of."""


def stable(hits: Sequence[Hit]) -> tuple[Hit, ...]:
    """By document and place in it: whatever the question, the same documents come in the same order, so that prompts
    share the most."""
    return tuple(sorted(hits, key=lambda hit: (hit.chunk.source, hit.chunk.start, hit.chunk.id)))


def better_order(llm: LLM, layout: Layout, vocab: Tokenizer) -> str:
    """What order of the chunks would spare more than theirs, in a sentence; empty where none would.

    It is looked for among what is in memory and on disk now; no block is read. `vocab` is the model's, and had best
    remember: the same chunks are tokenized for each order.
    """
    search = _Search(llm, layout, vocab)
    now, (n_best, order) = search.at_hand(layout.chunks), search.best(())
    if n_best < now + WORTH:
        return ""
    whole = [*order, *(n for n in range(len(layout.chunks)) if n not in order)]
    names = " ".join(f"[{number + 1}]" for number in whole)
    return f"in the order {names} {n_best:,} tokens of frame and documents would have been at hand, {now:,} in this one"


class _Search:
    """Every order whose beginning is at hand, up to `LOOKS` of them."""

    def __init__(self, llm: LLM, layout: Layout, vocab: Tokenizer) -> None:
        self._llm, self._layout, self._vocab, self._left = llm, layout, vocab, LOOKS

    def at_hand(self, chunks: Sequence[str]) -> int:
        """How many tokens of a prompt with these chunks are at hand."""
        return self._look(chunks)[0]

    def best(self, chosen: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        """The most tokens that an order with this beginning has at hand, and that order as far as it matters."""
        found = (0, chosen)
        for number in range(len(self._layout.chunks)):
            if number in chosen or self._left <= 0:
                continue
            order = (*chosen, number)
            n, whole = self._look([self._layout.chunks[each] for each in order])
            longer = self.best(order) if whole else (n, order)
            found = max(found, (n, order), longer, key=lambda pair: pair[0])
        return found

    def _look(self, chunks: Sequence[str]) -> tuple[int, bool]:
        """Tokens at hand of a prompt with these chunks alone, and whether that is all of it."""
        self._left -= 1
        ledger, _ = replace(self._layout, chunks=tuple(chunks), question="").read(self._vocab)
        where = self._llm.where([ledger])[0]
        n = max(where.live, where.ram, where.disk)
        return n, n >= len(ledger) - 1
