"""What retrieval is made of: pieces of documents, the ones that a search found, and whatever searches."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a document. It says where it stands, and its id stays the same as long as source and text do."""

    id: str
    """a digest of source and text, see `chunk_id`"""
    text: str
    source: str
    """the document: a path, or the name that it was given"""
    title: str = ""
    """the headings that it stands under, joined by " > " """
    start: int = 0
    """where it begins in the document's text, in characters"""
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Hit:
    """A chunk that a search found. Hits are sorted, best first; scores compare within one search only."""

    chunk: Chunk
    score: float
    vector_rank: int | None = None
    """its place by meaning, from 1; None where it was not among those"""
    text_rank: int | None = None
    """its place by words, from 1"""


@runtime_checkable
class Retriever(Protocol):
    """Whatever finds chunks for a question: an `Index`, or what `as_retriever` makes of others."""

    def search(self, query: str, k: int = 4) -> Sequence[Hit]:
        """The k best hits at most, best first."""
        ...


def chunk_id(source: str, text: str) -> str:
    """32 hexadecimal digits of SHA-256 over source and text."""
    return digest((source, text))[:32]


def digest(texts: Iterable[str]) -> str:
    """SHA-256 over several texts, each after its length."""
    found = hashlib.sha256()
    for text in texts:
        content = text.encode("utf-8", "surrogatepass")
        found.update(len(content).to_bytes(8, "little") + content)
    return found.hexdigest()
