"""Other people's retrievers as ours: a callable, those of LangChain and LlamaIndex, their indexes and vector stores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from ipyllama.errors import BadOption
from ipyllama.rag.documents import clean
from ipyllama.rag.sources import plain
from ipyllama.rag.types import Chunk, Hit, Retriever, chunk_id

_NAMES: Final = ("source", "file_path", "file_name", "url", "title")
"""Under which keys of their metadata others keep what a document is called."""


def as_retriever(anything: Any) -> Retriever:
    """Whatever finds texts, as a `Retriever`.

    Taken are: what has `search(query, k)`; retrievers of LangChain (`invoke`) and LlamaIndex (`retrieve`); what has
    `as_retriever()`, as their indexes and vector stores; and a callable from a query to texts, which may be `Hit`s,
    `Chunk`s, strings, (source, text) or (source, text, metadata). Raises `BadOption` for anything else.
    """
    if callable(getattr(anything, "as_retriever", None)):  # a vector store of LangChain has another kind of search
        return as_retriever(anything.as_retriever())
    if callable(getattr(anything, "search", None)):
        return anything  # type: ignore[no-any-return]
    if callable(getattr(anything, "retrieve", None)):
        return _Foreign(anything.retrieve)
    if callable(getattr(anything, "invoke", None)):
        return _Foreign(anything.invoke)
    if callable(anything):
        return _Foreign(anything)
    raise BadOption(f"a retriever has search(query, k), or is a callable from a query to texts: got {anything!r:.80}")


@dataclass(frozen=True, slots=True)
class _Foreign:
    find: Callable[[str], Iterable[Any]]

    def search(self, query: str, k: int = 4) -> Sequence[Hit]:
        """The first k of what is found, in its order."""
        found = self.find(query)
        if isinstance(found, str) or not isinstance(found, Iterable):
            raise BadOption(f"a retriever gives a list of texts: got {found!r:.80}")
        return [_hit(each, rank) for rank, each in enumerate(islice(found, k), 1)]


def _hit(found: Any, rank: int) -> Hit:
    if isinstance(found, Hit):
        return found
    if isinstance(found, Chunk):
        return Hit(found, 1 / rank)
    source, text = "", ""
    metadata: Mapping[str, Any] = {}
    match found:
        case str():
            text = found
        case tuple((source, str(text))):
            pass
        case tuple((source, str(text), Mapping() as metadata)):
            pass
        case object(page_content=text, metadata=metadata):  # a document of LangChain
            pass
        case object(node=object(metadata=metadata)):  # a node of LlamaIndex, with its score
            text = found.node.get_content()
        case _:
            raise BadOption(f"a retriever gives texts, (source, text) pairs or documents: got {found!r:.80}")
    score = getattr(found, "score", None)
    chunk = _chunk(str(source) or _named(metadata, rank), str(text), metadata)
    return Hit(chunk, 1 / rank if score is None else float(score))


def _named(metadata: Mapping[str, Any], rank: int) -> str:
    return next((str(metadata[name]) for name in _NAMES if metadata.get(name)), f"text {rank}")


def _chunk(source: str, text: str, metadata: Mapping[str, Any]) -> Chunk:
    source, text = clean(source), clean(text)
    return Chunk(chunk_id(source, text), text, source, metadata={str(key): plain(metadata[key]) for key in metadata})
