"""Index: documents that can be searched by meaning and by words."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from ipyllama.errors import BadOption, BadSource, DocumentWarning, WrongModel
from ipyllama.models.progress import Progress, reporting
from ipyllama.rag import places
from ipyllama.rag.build import Added, Build
from ipyllama.rag.embedding import Embedding, Memo
from ipyllama.rag.fuse import fuse
from ipyllama.rag.places import MadeWith
from ipyllama.rag.ranking import Ranking
from ipyllama.rag.sources import shown_path
from ipyllama.rag.split import CHUNK_TOKENS, OVERLAP, Cut, Splitter
from ipyllama.rag.store import Store
from ipyllama.rag.types import Hit
from ipyllama.rag.where import Where, expression

if TYPE_CHECKING:
    from ipyllama.llm import LLM
    from ipyllama.rag.evaluate import Evaluation
    from ipyllama.rag.reply import RagReply

Mode = Literal["hybrid", "vector", "text"]
Location = str | os.PathLike[str] | None
WORDS_WEIGHT: Final = 0.25
"""How much words count beside meaning in a hybrid search, from 0 to 1."""
_CANDIDATES: Final = 50
"""Chunks that each way of searching gives to the other, at least."""
_RANKED_ANEW: Final = 20
"""Chunks that a reranker reads, at least."""


class Index:
    """Documents in a folder, cut into chunks, each with its vector and its words.

        index = Index.create("handbook", ["docs/", "notes.md", ("motd", "Be kind.")])
        index.search("how to reset a password")[0].chunk

    Searching takes no lock; one process at a time writes. `problems` says of the last `add` which documents were left
    out, and why.
    """

    def __init__(self, folder: Path, made_with: MadeWith, embedding: Embedding, ranking: Ranking | None) -> None:
        """Use `create` or `open`."""
        self.folder, self.made_with = folder, made_with
        self.problems: dict[str, str] = {}
        self._embedding, self._ranking = embedding, ranking
        embedding.dimensions = made_with.dimensions
        self._store = Store(folder)

    @classmethod
    def create(  # noqa: PLR0913 - what an index keeps to, all of it with defaults
        cls,
        name: str,
        sources: object = (),
        *,
        location: Location = None,
        embed: Any = "minilm",
        chunk_tokens: int = CHUNK_TOKENS,
        overlap: int = OVERLAP,
        rerank: Any = None,
        progress: Progress | None = None,
    ) -> Index:
        """A new index with these documents. One of this name, made with the same settings, is brought up to date.

        `sources`: paths of files and folders, globs, texts of several lines, `(name, text)`, `(name, text, metadata)`,
        dicts of texts by name, columns and tables of pandas. `location` is the folder that holds indexes; None is
        `.ipyllama/NOTEBOOK/rag/` beside the notebook. `embed` is an embedding model (name, path or loaded), or a
        callable that makes an array with a row for each text. Chunks have at most `chunk_tokens` tokens, of which the
        next repeats up to `overlap`. `rerank` is a ranking model, or a callable of a query and texts that gives scores.
        `progress` is called with (bytes done, all bytes, label); None shows a bar on stderr after a second.

        What is read only with a reservation, and what cannot be, is in `problems`; a `DocumentWarning` says so.
        Raises `BadOption`, `BadSource`, `MissingPackage`, `StoreError`.
        """
        root = places.root_of(location)
        folder, cut = places.folder_of(name, root), Cut(chunk_tokens, overlap)
        embedding, ranking = Embedding(embed, Memo(root / ".embeddings")), Ranking.of(rerank)
        if embedding.limit is not None and chunk_tokens > embedding.limit:
            raise BadOption(f"{embedding.name} embeds {embedding.limit} tokens at once: chunk_tokens is {chunk_tokens}")
        is_new = name not in places.names_in(root)
        if is_new:
            _make(folder, embedding, cut, ranking)
        made_with = places.read(folder)
        _check_same(made_with, embedding, cut, ranking)
        index = cls(folder, made_with, embedding, ranking)
        try:
            index._add(sources, progress)
        except BadSource:
            index.drop_if_unused(is_new)
            raise
        index._warn()
        return index

    @classmethod
    def open(cls, name: str, location: Location = None, *, embed: Any = None, rerank: Any = None) -> Index:
        """An index that is there. `embed` and `rerank` are needed where it was made with a callable.

        Raises `UnknownIndex`, `BadOption`, `StoreError`.
        """
        root = places.root_of(location)
        folder = places.folder_of(name, root)
        made_with = places.read(folder)
        if made_with.is_callable and embed is None:
            raise BadOption(f"{name} was made with the callable {made_with.embed}: open({name!r}, embed=...) needs it")
        if made_with.rerank_is_callable and rerank is None:
            raise BadOption(f"{name} ranks with the callable {made_with.rerank}: open({name!r}, rerank=...) needs it")
        ranking = Ranking.of(rerank if rerank is not None else made_with.rerank or None)
        embedding = Embedding(made_with.embed if embed is None else embed, Memo(root / ".embeddings"))
        return cls(folder, made_with, embedding, ranking)

    @classmethod
    def names(cls, location: Location = None) -> list[str]:
        """The indexes in a folder; None is the usual one."""
        return places.names_in(places.root_of(location))

    @property
    def name(self) -> str:
        return self.folder.name

    def add(self, sources: object, *, progress: Progress | None = None) -> Added:
        """Bring these documents up to date: an unchanged one costs nothing, of a changed one only what changed is
        embedded, and what a folder or glob no longer holds is removed. Arguments as in `create`.

        Ctrl-C and `kill -9` lose one batch of chunks at most; the next `add` goes on from there.
        """
        added = self._add(sources, progress)
        self._warn()
        return added

    def _add(self, sources: object, progress: Progress | None) -> Added:
        splitter = Splitter(Cut(self.made_with.chunk_tokens, self.made_with.overlap), self._checked.count)
        with places.alone(self.folder), reporting(progress, delay=1.0) as report:
            build = Build(self._store, splitter, self._checked.kept, report, f"indexing {self.name}")
            try:
                added = build.run(sources)
            finally:
                self.problems = build.result.problems
            if added.added or added.changed or added.removed:
                self._store.tidy()
                self._checked.reduce()
        return added

    def _warn(self) -> None:
        """Tell whoever called the method that calls this."""
        if self.problems:
            first, why = next(iter(self.problems.items()))
            more = f", and {len(self.problems) - 1:,} more: index.problems has all" if len(self.problems) > 1 else ""
            warnings.warn(f"{first}: {why}{more}", DocumentWarning, stacklevel=3)

    def remove(self, source: str | os.PathLike[str]) -> int:
        """Remove a document, or all in a folder or of a glob; gives their number. Raises `BadOption` for an unknown."""
        given = str(source)
        names = {given, given.rstrip("/"), shown_path(given)} - {""}  # "./docs" was found as "docs"
        with places.alone(self.folder):
            known = self._store.sources()
            gone = [
                each
                for each, note in known.items()
                if names & {each, note.root} or any(_is_below(each, name) for name in names)
            ]
            if not gone or not given:
                raise BadOption(f"there is no document {given!r} in the index {self.name}: sources() lists all")
            self._store.forget(gone)
            self._store.tidy()
        return len(gone)

    def search(self, query: str, k: int = 4, mode: Mode = "hybrid", where: Where | None = None) -> list[Hit]:
        """The k best chunks for a question, best first.

        `mode` "vector" goes by meaning (the score is the cosine of the angle), "text" by words (BM25), "hybrid" by the
        places in both. `where` takes only chunks with such metadata: `{"lang": "en", "year": {">=": 2020}}`; a list
        stands for any of its values, and "source" and "title" are keys, too. A reranker scores last.

        Raises `BadOption`.
        """
        if not isinstance(query, str) or not query.strip():
            raise BadOption("the query is empty: ask for something")
        if type(k) is not int or not 1 <= k <= 1000:
            raise BadOption(f"k must be a whole number between 1 and 1,000: got {k!r}")
        if mode not in get_args(Mode):
            raise BadOption(f"mode must be one of {', '.join(get_args(Mode))}: got {mode!r}")
        query = query.encode("utf-8", "replace").decode()
        n = max(k, _RANKED_ANEW) if self._ranking else k
        hits = self._found(query, n, mode, expression(where, self._store.columns) if where else None)
        if self._ranking:
            hits = self._ranking.sorted(query, hits)
        return hits[:k]

    def ask(self, question: str, k: int = 4, *, llm: LLM | None = None, **options: Any) -> RagReply:
        """The answer to a question from the k chunks that fit it best, with citations such as [1]. `llm` answers; None
        is the model that was loaded last. `options` as in `rag.ask`, such as `reuse="fused"`, `check`, `max_tokens`.

        Raises `NoModelLoaded`, and like `rag.ask`.
        """
        from ipyllama.rag.answer import ask, newest

        return ask(newest() if llm is None else llm, self, question, k, **options)

    def evaluate(
        self,
        pairs: Mapping[str, str | Iterable[str]] | Iterable[tuple[str, str | Iterable[str]]],
        k: int = 5,
        *,
        progress: Progress | None = None,
    ) -> Evaluation:
        """How well questions find their documents: pairs, or a dict, of a question and the source (or sources, or chunk
        ids) that answers it. Gives recall and mean reciprocal rank up to k, and latency, for each mode: a table, and
        `plot()`."""
        from ipyllama.rag.evaluate import evaluate

        return evaluate(self, pairs, k, progress)

    def sources(self) -> dict[str, int]:
        """The documents, each with its number of chunks."""
        return {name: known.n_chunks for name, known in self._store.sources().items()}

    def without(self, ids: Iterable[str]) -> set[str]:
        """Those of these ids that no chunk has."""
        return self._store.without(ids)

    def keys(self) -> list[str]:
        """What is in the metadata of chunks and `where` can ask for."""
        return self._store.keys

    def drop(self) -> None:
        """Delete the index with all that is in it."""
        places.delete(self.folder)

    def drop_if_unused(self, is_new: bool) -> None:
        """Delete an index that was made for documents of which there was none."""
        if is_new and not len(self):
            self.drop()

    def __len__(self) -> int:
        """Chunks."""
        return len(self._store)

    def __repr__(self) -> str:
        return f"<Index {self.name}: {len(self):,} chunks of {len(self.sources()):,} documents, {self.made_with.embed}>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        from ipyllama.display.documents import documents_table

        sources = self.sources()
        title = (
            f"Index {self.name}: {sum(sources.values()):,} chunks of {len(sources):,} documents, {self.made_with.embed}"
        )
        return dict(documents_table(title, sources, self.problems)._repr_mimebundle_())

    def _found(self, query: str, n: int, mode: Mode, where: str | None) -> list[Hit]:
        candidates = max(_CANDIDATES, 4 * n) if mode == "hybrid" else n
        by_vector = by_words = ()  # type: Any
        if mode != "text":
            by_vector = self._store.by_vector(self._checked([query])[0], candidates, where)
        if mode != "vector":
            by_words = self._store.by_words(query, candidates, where)
        if mode == "hybrid":
            return fuse(by_vector, by_words, WORDS_WEIGHT)
        if mode == "vector":
            return [Hit(chunk, score, vector_rank=rank) for rank, (chunk, score) in enumerate(by_vector, 1)]
        return [Hit(chunk, score, text_rank=rank) for rank, (chunk, score) in enumerate(by_words, 1)]

    @cached_property
    def _checked(self) -> Embedding:
        """What embeds, once it is known that it makes the vectors that are in the index."""
        if self._embedding.weights != self.made_with.weights:
            raise WrongModel(
                f"the index {self.name} was made with other weights of {self.made_with.embed}: give the same model, or "
                "drop() the index and create it anew"
            )
        return self._embedding


def _check_same(made_with: MadeWith, embedding: Embedding, cut: Cut, ranking: Ranking | None) -> None:
    now = {
        "embed": (made_with.weights or made_with.embed, embedding.weights or embedding.name),
        "chunk_tokens": (made_with.chunk_tokens, cut.chunk_tokens),
        "overlap": (made_with.overlap, cut.overlap),
        "rerank": (made_with.rerank or None, ranking.name if ranking else None),
    }
    for name, (before, after) in now.items():
        if before != after:
            told = (made_with.embed, embedding.name) if name == "embed" else (before, after)
            with_other = f"{name}={told[0]!r}, not {told[1]!r}" if told[0] != told[1] else f"other weights of {told[0]}"
            raise BadOption(f"there is an index of this name with {with_other}: drop() it, or take another name")


def _make(folder: Path, embedding: Embedding, cut: Cut, ranking: Ranking | None) -> None:
    """A new index without documents, unless somebody else is quicker."""
    dimensions = embedding(["dimensions"]).shape[1]
    made_with = MadeWith(
        embedding.name, embedding.is_callable, embedding.weights, dimensions, cut.chunk_tokens, cut.overlap
    )
    if ranking is not None:
        made_with = replace(made_with, rerank=ranking.name, rerank_is_callable=ranking.is_callable)
    places.prepare(folder)
    with places.alone(folder):
        if folder.name not in places.names_in(folder.parent):
            places.clear(folder)
            Store.make(folder, dimensions)
            places.write(folder, made_with)


def _is_below(name: str, folder: str) -> bool:
    return name.startswith(f"{folder.rstrip('/')}/")
