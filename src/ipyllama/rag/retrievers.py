"""Other people's retrievers as ours: a callable, those of LangChain and LlamaIndex, their indexes and vector stores."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
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


def found_by(retriever: Any, query: str, k: int, options: Mapping[str, Any] | None = None) -> list[Hit]:
    """What a search finds, at most k hits: of a retriever, or of anything that `as_retriever` takes.

    Raises `BadOption` where it knows no such option, or gives something else; what itself raises passes.
    """
    search, options = as_retriever(retriever).search, options or {}
    if not isinstance(options, Mapping):
        raise BadOption(f"search must be a dict of options such as {{'mode': 'text'}}: got {options!r:.80}")
    if options and not _takes(search, query, k, options):
        names = ", ".join(map(str, options))
        raise BadOption(f"the search of this retriever takes no {names}: leave it out, or search an index")
    return _hits(search(query, k, **options), k)


@dataclass(frozen=True, slots=True)
class _Foreign:
    find: Callable[[str], Iterable[Any]]

    def search(self, query: str, k: int = 4) -> Sequence[Hit]:
        """The first k of what is found, in its order."""
        return _hits(self.find(query), k)


def _takes(search: Callable[..., Any], query: str, k: int, options: Mapping[str, Any]) -> bool:
    """Whether a search can be called with these options, as far as that can be known."""
    try:
        inspect.signature(search).bind(query, k, **options)
    except TypeError:
        return False
    except ValueError:  # written in C, without a signature
        return True
    return True


def _hits(found: Any, k: int) -> list[Hit]:
    if isinstance(found, str | Mapping) or not isinstance(found, Iterable):
        raise BadOption(f"a retriever gives a list of texts: got {found!r:.80}")
    return [_hit(each, rank) for rank, each in enumerate(islice(found, k), 1)]


def _hit(found: Any, rank: int) -> Hit:
    if isinstance(found, Hit):
        return _checked(found)
    if isinstance(found, Chunk):
        return _checked(Hit(found, 1 / rank))
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
    return _checked(Hit(chunk, 1 / rank if score is None else score))


def _checked(hit: Hit) -> Hit:
    """Raises `BadOption` for one that could neither be read nor shown."""
    chunk, score = hit.chunk, hit.score
    texts = [getattr(chunk, name, None) for name in ("id", "text", "source", "title")]
    if not all(isinstance(text, str) for text in texts) or not isinstance(getattr(chunk, "start", None), int):
        raise BadOption(f"the chunk of a hit is a Chunk, its id, text, source and title are texts: got {chunk!r:.80}")
    try:
        return hit if isinstance(score, int | float) else replace(hit, score=float(score))
    except (TypeError, ValueError):
        raise BadOption(f"the score of a hit is a number: got {score!r:.80}") from None


def _named(metadata: Mapping[str, Any], rank: int) -> str:
    return next((str(metadata[name]) for name in _NAMES if metadata.get(name)), f"text {rank}")


def _chunk(source: str, text: str, metadata: Mapping[str, Any]) -> Chunk:
    source, text = clean(source), clean(text)
    return Chunk(chunk_id(source, text), text, source, metadata={str(key): plain(metadata[key]) for key in metadata})
