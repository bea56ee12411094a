"""Bringing an index up to date: what changed is read, cut and embedded, and the rest costs nothing.

A document is noted as complete after its chunks are on disk. Whoever is killed in between leaves chunks without that
note: the next `add` finds their vectors there, computes what is missing, and deletes what no longer belongs there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from ipyllama.errors import BadSource, MissingPackage
from ipyllama.models.progress import Progress
from ipyllama.rag.documents import Document
from ipyllama.rag.embedding import MOST, ends_batch
from ipyllama.rag.sources import Root, Source, Unusable, expand
from ipyllama.rag.store import Known, Store, Stored
from ipyllama.rag.types import Chunk

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ipyllama.rag.split import Splitter

_MAX_TITLE: Final = 160
"""Characters of headings that are embedded with a chunk: the last ones."""


@dataclass(slots=True)
class Added:
    """What an `add` did: documents by what became of them, and chunks."""

    added: int = 0
    changed: int = 0
    unchanged: int = 0
    removed: int = 0
    """documents that are no longer in the folder or glob that they were found by"""
    embedded: int = 0
    """chunks whose vectors were not in the index"""
    problems: dict[str, str] = field(default_factory=dict)
    """document -> why it was left out, or what is odd about it"""

    def __str__(self) -> str:
        counts = {"added": self.added, "changed": self.changed, "unchanged": self.unchanged, "removed": self.removed}
        from ipyllama.display.units import plural

        said = ", ".join(f"{n:,} {word}" for word, n in counts.items() if n)
        said = said or ("none added" if self.problems else "nothing given")
        odd = f"; {plural(len(self.problems), 'document')} with problems" if self.problems else ""
        return f"documents: {said}; {plural(self.embedded, 'chunk')} embedded{odd}"


class Build:
    """One `add`."""

    def __init__(
        self,
        store: Store,
        splitter: Splitter,
        embed: Callable[[Sequence[str]], NDArray[np.float32]],
        report: Progress,
        label: str,
    ) -> None:
        self._store, self._splitter, self._embed = store, splitter, embed
        self._report, self._label = report, label
        self.result = Added()
        self._known, self._begun = store.sources(), store.begun()
        self._given: dict[str, set[str]] = {}  # root -> documents found by it
        self._seen: dict[str, str] = {}  # documents, with the digest of what is no file
        self._fresh: list[Chunk] = []
        self._moved: list[Stored] = []  # chunks with their vectors, which only stand elsewhere now
        self._complete: list[tuple[Known, set[str]]] = []  # with the chunks that no longer belong to it
        self._replaced = False  # whether one of the fresh ones was there with other headings
        self._done = self._within = 0
        self._total: int | None = None

    def run(self, sources: object) -> Added:
        """Take in all sources. Raises `BadSource` for what can be none; a file that cannot be read is a problem."""
        found: Iterable[Source | Unusable | Root] = expand(sources)
        if not isinstance(sources, Iterator):  # all of it is there: how much is known
            found = list(found)
            self._total = sum(each.size for each in found if isinstance(each, Source))
        for each in found:
            match each:
                case Unusable(name, why):
                    self.result.problems[name] = why
                case Root(name):
                    self._remove_vanished(name)
                case Source():
                    self._take(each)
        self._flush()
        return self.result

    def _take(self, source: Source) -> None:
        self._given.setdefault(source.root, set()).add(source.name)
        if source.name in self._seen:
            self._take_again(source)
            return
        known = self._known.get(source.name)
        self._seen[source.name] = known.digest if known else ""
        try:
            read = self._read(source, known)
        except (BadSource, MissingPackage, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            self._leave_out(source.name, reason)
        else:
            if read is not None:
                self._seen[source.name] = read[1].digest
                self._index(source, *read, known)
        self._done, self._within = self._done + source.size, 0
        self._report(self._done, self._total, self._label)

    def _take_again(self, source: Source) -> None:
        """A file may well be found by several folders and globs, but two texts of one name are two documents."""
        if not source.modified and source.digest(source.read()) != self._seen[source.name]:
            self.result.problems[source.name] = "two documents have this name: only the first is taken"

    def _leave_out(self, name: str, why: str) -> None:
        self.result.problems[name] = why
        if name in self._known or name in self._begun:  # what was there is there no more
            self._store.forget([name])

    def _read(self, source: Source, known: Known | None) -> tuple[Document, Known] | None:
        """The document and the note that will be true of it; None where it is in the index as it is."""
        root = source.root or (known.root if known else "")
        if known is not None and source.modified and (known.size, known.modified) == (source.size, source.modified):
            self._count_unchanged(known)
            return None
        content = source.read()
        note = Known(source.name, source.digest(content), source.size, source.modified, root)
        if known is not None and known.digest == note.digest:
            same = replace(note, n_chunks=known.n_chunks, notice=known.notice)
            if same != known:  # touched, or found by another folder or glob
                self._complete.append((same, set()))
            self._count_unchanged(known)
            return None
        return source.parse(content), note

    def _count_unchanged(self, known: Known) -> None:
        self.result.unchanged += 1
        if known.notice:
            self.result.problems[known.name] = known.notice

    def _index(self, source: Source, document: Document, note: Known, known: Known | None) -> None:
        if known is None:
            self.result.added += 1
        else:
            self.result.changed += 1
            self._store.unmark([source.name])  # until it is complete again, it is not taken for what it was
        before = self._store.of_source(source.name) if source.name in self._begun else {}
        length = document.sections[-1].start + len(document.sections[-1].text)
        kept: set[str] = set()
        for chunk in self._splitter.split(source.name, document, source.metadata):
            kept.add(chunk.id)
            self._within = source.size * chunk.start // length
            self._place(chunk, before.get(chunk.id))
        if document.notice:
            self.result.problems[source.name] = document.notice
        self._complete.append((replace(note, n_chunks=len(kept), notice=document.notice), set(before) - kept))

    def _place(self, chunk: Chunk, before: Stored | None) -> None:
        if before is None or before.chunk.title != chunk.title:  # headings are embedded, too
            self._fresh.append(chunk)
            self._replaced |= before is not None
            if ends_batch(chunk.text, len(self._fresh)):
                self._flush()
        elif before.chunk != chunk:
            self._moved.append(Stored(chunk, before.vector))
            if len(self._moved) >= MOST:
                self._flush()

    def _flush(self) -> None:
        """Chunks first, then what they complete."""
        if self._fresh:
            vectors = self._embed([embedded_text(chunk) for chunk in self._fresh])
            rows = [Stored(chunk, vector) for chunk, vector in zip(self._fresh, vectors, strict=True)]
            self._store.put(rows, replace=self._replaced)
        if self._moved:
            self._store.put(self._moved, replace=True)
        self.result.embedded += len(self._fresh)
        self._fresh, self._moved, self._replaced = [], [], False
        self._store.delete(chunk for _, stale in self._complete for chunk in stale)
        self._store.mark([note for note, _ in self._complete])
        self._complete = []
        self._report(self._done + self._within, self._total, self._label)

    def _remove_vanished(self, root: str) -> None:
        given = self._given.get(root, set())
        vanished = [name for name, known in self._known.items() if known.root == root and name not in given]
        self._store.forget(vanished)
        self.result.removed += len(vanished)


def embedded_text(chunk: Chunk) -> str:
    """What of a chunk is embedded: its text under its headings."""
    return f"{chunk.title[-_MAX_TITLE:]}\n{chunk.text}" if chunk.title else chunk.text
