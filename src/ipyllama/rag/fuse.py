"""Two rankings as one: reciprocal rank fusion (Cormack, Clarke, Büttcher: SIGIR 2009)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ipyllama.rag.types import Chunk, Hit

Ranking = Sequence[tuple[Chunk, float]]
"""Chunks with their scores, best first."""
RANK_CONSTANT: Final = 10
"""How much the first places count above the next: the less, the more. The paper's 60 is for rankings that are equally
good; measured on questions of FAQs (benchmarks/rag.py), where meaning ranks better than words, 10 finds more."""


def fuse(by_vector: Ranking, by_words: Ranking, words_weight: float) -> list[Hit]:
    """Best first, each with its place in both; `words_weight`, from 0 to 1, is how much words count beside meaning."""
    chunks = {chunk.id: chunk for chunk, _ in (*by_vector, *by_words)}
    vector_ranks = {chunk.id: rank for rank, (chunk, _) in enumerate(by_vector, 1)}
    text_ranks = {chunk.id: rank for rank, (chunk, _) in enumerate(by_words, 1)}
    hits = [
        Hit(
            chunk,
            (1 - words_weight) * _share(vector_ranks.get(key)) + words_weight * _share(text_ranks.get(key)),
            vector_ranks.get(key),
            text_ranks.get(key),
        )
        for key, chunk in chunks.items()
    ]
    return sorted(hits, key=lambda hit: (-hit.score, hit.vector_rank or len(hits) + 1, hit.chunk.id))


def _share(rank: int | None) -> float:
    return 0.0 if rank is None else (RANK_CONSTANT + 1) / (RANK_CONSTANT + rank)  # 1 for the first place
