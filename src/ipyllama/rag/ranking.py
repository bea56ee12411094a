"""Hits in a better order: a model that reads question and chunk together, or a callable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np

from ipyllama.errors import BadOption
from ipyllama.rag.lasting import Lasting
from ipyllama.rag.types import Hit


class Ranking:
    """Scores hits anew. A model is loaded when it is first needed."""

    def __init__(self, rerank: Any) -> None:
        self._rerank = rerank
        self._lasting = None if self.is_callable else Lasting(rerank)

    @classmethod
    def of(cls, rerank: Any) -> Self | None:
        """None for none. Raises `BadOption` for what cannot rank."""
        if rerank is None:
            return None
        if not isinstance(rerank, str) and not callable(rerank) and not hasattr(rerank, "rerank"):
            raise BadOption(f"rerank must be a ranking model or a callable: got {rerank!r:.80}")
        return cls(rerank)

    @property
    def is_callable(self) -> bool:
        return not isinstance(self._rerank, str) and not hasattr(self._rerank, "rerank")

    @property
    def name(self) -> str:
        """A model's name, or the callable's."""
        if isinstance(self._rerank, str):
            return self._rerank
        return str(getattr(self._rerank, "name" if hasattr(self._rerank, "rerank") else "__qualname__", "a callable"))

    def sorted(self, query: str, hits: Sequence[Hit]) -> list[Hit]:
        """Best first, with the new scores. Raises `BadOption` where a callable does not give one for each."""
        if not hits:
            return []
        given = self._scores(query, [hit.chunk.text for hit in hits])
        try:
            scores = np.asarray(given, np.float32)
        except (TypeError, ValueError):  # texts, or rows of several lengths
            scores = np.empty((), np.float32)
        if scores.shape != (len(hits),) or not np.isfinite(scores).all():
            raise BadOption(f"rerank must give a number for each of {len(hits)} texts: got {given!r:.80}")
        scored = [replace(hit, score=float(score)) for hit, score in zip(hits, scores, strict=True)]
        return sorted(scored, key=lambda hit: -hit.score)

    def _scores(self, query: str, texts: list[str]) -> Any:
        rank: Callable[[str, list[str]], Any] = self._rerank if self._lasting is None else self._lasting().rerank
        return rank(query, texts)
