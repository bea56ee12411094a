"""Retrieval: documents to chunks, chunks to vectors in a folder, a question to the chunks that answer it.

    from ipyllama.rag import Index
    index = Index.create("handbook", ["docs/", "notes.md"])
    index.search("How do I reset my password?")

It needs more packages than the rest: `pip install 'ipyllama[rag]'`. Submodules load at first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ipyllama.rag.answer import ask as ask
    from ipyllama.rag.evaluate import Evaluation as Evaluation
    from ipyllama.rag.index import Index as Index
    from ipyllama.rag.reply import RagReply as RagReply
    from ipyllama.rag.retrievers import as_retriever as as_retriever
    from ipyllama.rag.types import Chunk as Chunk
    from ipyllama.rag.types import Hit as Hit
    from ipyllama.rag.types import Retriever as Retriever

_HOME = {
    "Chunk": "types",
    "Evaluation": "evaluate",
    "Hit": "types",
    "Index": "index",
    "RagReply": "reply",
    "Retriever": "types",
    "as_retriever": "retrievers",
    "ask": "answer",
}

__all__ = ["Chunk", "Evaluation", "Hit", "Index", "RagReply", "Retriever", "as_retriever", "ask"]


def __getattr__(name: str) -> Any:
    """Public names are imported when they are first used."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
