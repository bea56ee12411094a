"""How well an index finds what answers a question."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ipyllama.errors import BadOption
from ipyllama.models.progress import Progress, reporting

if TYPE_CHECKING:
    from ipyllama.rag.index import Index, Mode
    from ipyllama.rag.types import Hit

MODES: Final[tuple[Mode, ...]] = ("vector", "text", "hybrid")
_MORE: Final = 4
"""Chunks that are looked at for each document: several may be of the same."""


@dataclass(frozen=True, slots=True)
class Found:
    """How well one mode finds the answers."""

    mode: str
    recall: tuple[float, ...]
    """at 1, 2, ... k: the share of questions for which a document that answers is among so many"""
    mrr: float
    """mean reciprocal rank: of the first document that answers 1 / its place, 0 after the first k"""
    seconds: float
    """median of one search"""
    slowest: float
    """seconds of the slowest of 20: the 95th percentile"""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A row for each mode. `missed` are the questions that the hybrid search does not answer, with what would."""

    name: str
    n_questions: int
    k: int
    found: tuple[Found, ...]
    missed: tuple[tuple[str, str], ...]

    def __getitem__(self, mode: str) -> Found:
        return next(found for found in self.found if found.mode == mode)

    def plot(self) -> Any:
        """Recall at 1 to k as a picture, in a notebook."""
        from ipyllama.display.recall import RecallPlot

        return RecallPlot({found.mode: found.recall for found in self.found})

    def __str__(self) -> str:
        return self._shown()["text/plain"]

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return self._shown()

    def _shown(self) -> dict[str, str]:
        from ipyllama.display.recall import evaluation_table

        return dict(evaluation_table(self)._repr_mimebundle_())


def evaluate(
    index: Index,
    pairs: Mapping[str, str | Iterable[str]] | Iterable[tuple[str, str | Iterable[str]]],
    k: int,
    progress: Progress | None,
) -> Evaluation:
    """See `Index.evaluate`."""
    if isinstance(pairs, Mapping):
        pairs = pairs.items()
    if not isinstance(pairs, Iterable):
        raise BadOption(f"pairs are (question, name of the document that answers it): got {pairs!r:.80}")
    asked = [_checked(pair) for pair in pairs]
    if not asked:
        raise BadOption("no pair to evaluate: give (question, name of the document that answers it)")
    if type(k) is not int or not 1 <= k <= 100:
        raise BadOption(f"k must be a whole number between 1 and 100: got {k!r}")
    _check_known(index, asked)
    index.search(asked[0][0])  # what is loaded at the first search is not measured
    places: dict[Mode, list[int]] = {mode: [] for mode in MODES}
    seconds: dict[Mode, list[float]] = {mode: [] for mode in MODES}
    with reporting(progress, unit="questions", delay=1.0) as report:
        for done, (question, answers) in enumerate(asked, 1):
            for mode in MODES:
                began = time.perf_counter()
                hits = index.search(question, _MORE * k, mode)
                seconds[mode].append(time.perf_counter() - began)
                places[mode].append(_place(hits, answers, k))
            report(done, len(asked), f"evaluating {index.name}")
    found = tuple(_found(mode, places[mode], seconds[mode], k) for mode in MODES)
    missed = tuple(
        (question, ", ".join(sorted(answers)))
        for (question, answers), place in zip(asked, places["hybrid"], strict=True)
        if not place
    )
    return Evaluation(index.name, len(asked), k, found, missed)


def _checked(pair: Any) -> tuple[str, frozenset[str]]:
    match pair:
        case (str(question), str() | os.PathLike() as answer):
            return question, frozenset({os.fspath(answer)})
        case (str(question), answers) if isinstance(answers, Iterable) and (found := frozenset(map(str, answers))):
            return question, found
    raise BadOption(f"a pair is (question, name of the document that answers it): got {pair!r:.80}")


def _check_known(index: Index, asked: Sequence[tuple[str, frozenset[str]]]) -> None:
    sources: Mapping[str, int] = index.sources()
    wanted = frozenset().union(*(answers for _, answers in asked))
    if unknown := index.without(wanted - set(sources)):
        some = ", ".join(sorted(unknown)[:3])
        raise BadOption(f"no document or chunk of the index is called {some}: sources() lists the documents")


def _place(hits: Sequence[Hit], answers: frozenset[str], k: int) -> int:
    """The place, from 1, of the first document that answers; 0 where none of the first k does."""
    documents: dict[str, bool] = {}
    for hit in hits:
        right = hit.chunk.source in answers or hit.chunk.id in answers
        documents[hit.chunk.source] = documents.get(hit.chunk.source, False) or right
    rights = list(documents.values())[:k]
    return rights.index(True) + 1 if any(rights) else 0


def _found(mode: str, places: Sequence[int], seconds: Sequence[float], k: int) -> Found:
    n = len(places)
    recall = tuple(sum(1 <= place <= at for place in places) / n for at in range(1, k + 1))
    mrr = sum(1 / place for place in places if place) / n
    ordered = sorted(seconds)
    return Found(mode, recall, mrr, ordered[n // 2], ordered[min(n - 1, n * 95 // 100)])
