"""Chunks, vectors and words of an index in a folder: two tables of LanceDB."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ipyllama.errors import StoreError
from ipyllama.rag.packages import needed
from ipyllama.rag.places import is_index
from ipyllama.rag.types import Chunk
from ipyllama.rag.where import MOST_KEYS, TYPES, column, key_of, literal
from ipyllama.rag.words import words_asked, words_in

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_SOURCE_LINE: Final = re.compile(r",? ?/\S*\.rs:\d+(:\d+)?")
_SHOWN: Final = ["id", "text", "source", "title", "start", "metadata"]
_AT_A_TIME: Final = 500
"""Names in one statement."""
_MANY: Final = 1000
"""Chunks from which on vectors have an index."""
_ALL: Final = 1 << 16
"""Parts of that index which a search looks at: whatever LanceDB makes of it, all."""
_KEPT: Final = timedelta(minutes=10)
"""How long others can read what an index held before."""


@dataclass(frozen=True, slots=True)
class Known:
    """A document that is in the index, as it was when it was read."""

    name: str
    digest: str
    size: int = 0
    modified: int = 0
    root: str = ""
    n_chunks: int = 0
    notice: str = ""


@dataclass(frozen=True, slots=True)
class Stored:
    """A chunk with its vector."""

    chunk: Chunk
    vector: NDArray[np.float32]


class Store:
    """Reads and writes the tables. Whoever writes holds the index's lock."""

    def __init__(self, folder: Path) -> None:
        lancedb = needed("lancedb", "an index of documents")
        self._folder = folder
        with _told(folder):
            # what another process writes is seen at once
            self._db = lancedb.connect(str(folder), read_consistency_interval=timedelta(0))
            self._chunks = self._db.open_table("chunks")
            self._sources = self._db.open_table("sources")

    @staticmethod
    def make(folder: Path, dimensions: int) -> None:
        """The empty tables."""
        lancedb, pa = needed("lancedb", "an index of documents"), needed("pyarrow", "an index of documents")
        from lancedb.index import FTS

        texts = [pa.field(name, pa.string()) for name in ("id", "text", "words", "source", "title", "metadata")]
        vector = pa.field("vector", pa.list_(pa.float32(), dimensions))
        sources = [pa.field(name, pa.string()) for name in ("name", "digest", "root", "notice")]
        sources += [pa.field(name, pa.int64()) for name in ("size", "modified", "n_chunks")]
        with _told(folder, is_new=True):
            db = lancedb.connect(str(folder))
            chunks = db.create_table("chunks", schema=pa.schema([*texts, pa.field("start", pa.int64()), vector]))
            # stems of words and their accents make no difference to what is found
            chunks.create_index("words", config=FTS(stem=True, remove_stop_words=True, ascii_folding=True))
            db.create_table("sources", schema=pa.schema(sources))

    # -- reading ----------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        with _told(self._folder):
            return int(self._chunks.count_rows())

    @property
    def columns(self) -> list[str]:
        """Of the chunks."""
        with _told(self._folder):
            return list(self._chunks.schema.names)

    @property
    def keys(self) -> list[str]:
        """What stands in the metadata of chunks and can be filtered by."""
        return sorted({key for key in map(key_of, self.columns) if key is not None})

    def sources(self) -> dict[str, Known]:
        """The documents that are complete, by name."""
        with _told(self._folder):
            rows = self._sources.to_arrow().to_pylist()
        return {row["name"]: Known(**row) for row in sorted(rows, key=lambda row: str(row["name"]))}

    def begun(self) -> set[str]:
        """The names of all documents that have a chunk, complete or not."""
        with _told(self._folder):
            found = self._chunks.search().select(["source"]).to_arrow()["source"]
            return set(found.unique().to_pylist())

    def of_source(self, name: str) -> dict[str, Stored]:
        """The chunks of a document, by id."""
        with _told(self._folder):
            rows = self._chunks.search().where(f"source = {literal(name)}").select([*_SHOWN, "vector"]).to_arrow()
            vectors = rows["vector"].combine_chunks().values.to_numpy().reshape(len(rows), -1)
            chunks = _chunks(rows)
        return {chunk.id: Stored(chunk, vector) for chunk, vector in zip(chunks, vectors, strict=True)}

    def without(self, ids: Iterable[str]) -> set[str]:
        """Those of these ids that no chunk has."""
        left = set(ids)
        for some in _in_pieces(left):
            with _told(self._folder):
                found = self._chunks.search().where(f"id IN ({some})").select(["id"]).to_arrow()
                left = left - set(found["id"].to_pylist())
        return left

    def by_vector(self, vector: NDArray[np.float32], n: int, where: str | None) -> list[tuple[Chunk, float]]:
        """The n chunks nearest in meaning, with the cosine of the angle."""
        with _told(self._folder):
            query = self._chunks.search(vector, vector_column_name="vector").distance_type("cosine").nprobes(_ALL)
            rows = _filtered(query, where).limit(n).select([*_SHOWN, "_distance"]).to_arrow()
            scores = [1 - distance for distance in rows["_distance"].to_pylist()]
        return list(zip(_chunks(rows), scores, strict=True))

    def by_words(self, text: str, n: int, where: str | None) -> list[tuple[Chunk, float]]:
        """The n chunks with the most telling words of a text, with their BM25 score."""
        # not its query language: any text can be asked
        match = needed("lancedb.query", "an index of documents").MatchQuery(words_asked(text), "words")
        with _told(self._folder):
            query = self._chunks.search(match, query_type="fts")
            rows = _filtered(query, where).limit(n).select([*_SHOWN, "_score"]).to_arrow()
            scores = rows["_score"].to_pylist()
        return list(zip(_chunks(rows), scores, strict=True))

    # -- writing ----------------------------------------------------------------------------------------------

    def put(self, rows: Sequence[Stored], *, replace: bool) -> None:
        """Add chunks; with `replace` there may be some with the same ids."""
        with _told(self._folder):
            new = self._with_columns(rows)
            content = _table(rows, self._chunks.schema, new)
            if replace:
                self._chunks.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(content)
            else:
                self._chunks.add(content)

    def delete(self, ids: Iterable[str]) -> None:
        """Delete chunks."""
        for some in _in_pieces(ids):
            with _told(self._folder):
                self._chunks.delete(f"id IN ({some})")

    def mark(self, known: Sequence[Known]) -> None:
        """Note documents as complete, whose chunks are all there."""
        pa = needed("pyarrow", "an index of documents")
        if not known:
            return
        with _told(self._folder):
            names = self._sources.schema.names
            table = pa.table({name: [getattr(each, name) for each in known] for name in names}, self._sources.schema)
            self._sources.merge_insert("name").when_matched_update_all().when_not_matched_insert_all().execute(table)

    def unmark(self, names: Iterable[str]) -> None:
        """Take back that documents are complete."""
        for some in _in_pieces(names):
            with _told(self._folder):
                self._sources.delete(f"name IN ({some})")

    def forget(self, names: Iterable[str]) -> None:
        """Delete documents: first the note that they are complete, then their chunks."""
        listed = list(names)
        self.unmark(listed)
        for some in _in_pieces(listed):
            with _told(self._folder):
                self._chunks.delete(f"source IN ({some})")

    def tidy(self) -> None:
        """Join small files, bring the index of words up to date, free what nobody can read any more."""
        with _told(self._folder):
            has_vectors = any("vector" in index.columns for index in self._chunks.list_indices())
            if not has_vectors and self._chunks.count_rows() >= _MANY:
                from lancedb.index import IvfFlat

                # one part, all of which is looked at: as exact as without, but held in memory between searches
                self._chunks.create_index("vector", config=IvfFlat(distance_type="cosine", num_partitions=1))
            for table in (self._chunks, self._sources):
                table.optimize(cleanup_older_than=_KEPT)

    def _with_columns(self, rows: Sequence[Stored]) -> list[str]:
        """The columns of metadata, made where they are new."""
        have = [name for name in self._chunks.schema.names if key_of(name) is not None]
        wanted = {column(key, value) for row in rows for key, value in row.chunk.metadata.items()}
        new = sorted(name for name in wanted if name is not None and name not in have)[: MOST_KEYS - len(have)]
        if new:
            self._chunks.add_columns({name: f"cast(NULL as {TYPES[name[-1]]})" for name in new})
        return have + new


def _table(rows: Sequence[Stored], schema: Any, filtered_by: Sequence[str]) -> Any:
    """Rows as LanceDB takes them."""
    import numpy as np
    import pyarrow as pa

    chunks = [row.chunk for row in rows]
    flat = pa.array(np.concatenate([row.vector for row in rows]).astype(np.float32))
    data: dict[str, Any] = {
        **{name: [getattr(chunk, name) for chunk in chunks] for name in ("id", "text", "source", "title", "start")},
        "words": [words_in(f"{chunk.title}\n{chunk.text}") for chunk in chunks],
        "metadata": [json.dumps(dict(chunk.metadata)) for chunk in chunks],
        "vector": pa.FixedSizeListArray.from_arrays(flat, len(rows[0].vector)),
    }
    for name in filtered_by:
        key = str(key_of(name))
        values = [chunk.metadata.get(key) for chunk in chunks]
        fitting = [value if column(key, value) == name else None for value in values]
        is_number = name.endswith("_n")  # of which Arrow refuses those that no double is equal to
        data[name] = [float(value) if is_number and value is not None else value for value in fitting]
    return pa.table({name: data[name] for name in schema.names}, schema)


def _chunks(rows: Any) -> list[Chunk]:
    found = rows.select(_SHOWN).to_pylist()
    return [Chunk(**{**row, "metadata": json.loads(row["metadata"])}) for row in found]


def _filtered(query: Any, where: str | None) -> Any:
    return query.where(where, prefilter=True) if where else query


def _in_pieces(names: Iterable[str]) -> Iterator[str]:
    """Lists of names for statements of bounded length."""
    listed = sorted(set(names))
    for start in range(0, len(listed), _AT_A_TIME):
        yield ", ".join(map(literal, listed[start : start + _AT_A_TIME]))


@contextmanager
def _told(folder: Path, *, is_new: bool = False) -> Iterator[None]:
    """LanceDB's errors in one line, without the lines of its source."""
    try:
        yield
    except (RuntimeError, ValueError, OSError, KeyError) as error:
        if not is_new and not is_index(folder):
            raise StoreError(f"the index in {folder} is there no more: Index.create(name, sources) makes it") from error
        said = _SOURCE_LINE.sub("", " ".join(str(error).split())).removeprefix("lance error: ")[:200]
        advice = "Try again; if it is damaged, delete that folder and create it anew."
        raise StoreError(f"the index in {folder} cannot be used: {said}. {advice}") from error
