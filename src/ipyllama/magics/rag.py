"""`%llama index`, `%llama search` and `%%llama --rag`: documents, and answers that cite them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from ipyllama.display import ProgressLine, Table
from ipyllama.display.documents import problems_table
from ipyllama.display.rag import hits_bundle
from ipyllama.display.units import plural
from ipyllama.errors import BadOption, BadSource, UnknownIndex
from ipyllama.magics.body import insert_variables

if TYPE_CHECKING:
    from ipyllama.display import View
    from ipyllama.llm import LLM
    from ipyllama.magics.commands import RagArgs
    from ipyllama.magics.options import CellArgs
    from ipyllama.rag import Index, Retriever
    from ipyllama.rag.answer import Asked
    from ipyllama.reply import Reply

K: Final = 4
"""Chunks that an answer is written from."""
_VARIABLE: Final = re.compile(r"\{\{[ \t]*([^\W\d]\w*)[ \t]*\}\}")


def run_rag(variables: Mapping[str, Any], args: RagArgs, view: View) -> Any:
    """Run `index` or `search`; what is to be displayed. Raises a `LlamaError` for what cannot be done."""
    return (_search if args.command == "search" else _index)(variables, args, view)


def start_rag(
    llm: LLM, variables: Mapping[str, Any], args: CellArgs, question: str, options: dict[str, Any], view: View
) -> Asked:
    """Search, and ask about what was found."""
    from ipyllama.rag.answer import start

    assert args.rag is not None
    found = retriever(args.rag, variables, view)
    search = {"mode": args.mode} if args.mode else None
    return start(llm, found, question, args.k or K, check=args.check, search=search, **options)


def show_sources(asked: Asked, reply: Reply, *, quiet: bool) -> Reply:
    """The reply, compared with the exact one where that was asked for; its chunks are shown below it."""
    from IPython.display import display

    from ipyllama.rag.reply import RagReply

    assert isinstance(reply, RagReply)
    if reply.finish_reason != "interrupted":
        reply = asked.check(reply)
    if not quiet:
        display(reply.sources_bundle(), raw=True)  # type: ignore[no-untyped-call]
    return reply


def retriever(name: str, variables: Mapping[str, Any], view: View) -> Retriever:
    """An index by name, or whatever searches in a variable, written {{name}}. Raises `BadOption`, `UnknownIndex`."""
    if (match := _VARIABLE.fullmatch(name)) is not None:
        from ipyllama.rag import as_retriever

        found: Retriever = as_retriever(_value(match[1], variables))
        return found
    from ipyllama.rag import Index, places

    try:
        places.known(name, places.root_of(None))
        with _opening(view):
            return Index.open(name)
    except UnknownIndex as error:
        if name in variables:
            raise UnknownIndex(f"{error} The variable is written {{{{{name}}}}}.") from None
        raise


def index_names() -> list[str]:
    """The indexes of this notebook."""
    from ipyllama.rag import Index

    return Index.names()


def _index(variables: Mapping[str, Any], args: RagArgs, view: View) -> Any:
    from ipyllama.rag import Index, places

    if not args.words:
        return _indexes(Index.names())
    name, *sources = args.words
    if args.drop and (sources or args.remove):
        raise BadOption("--drop deletes the whole index: it goes alone. --remove SOURCE takes documents out")
    if args.drop:
        places.delete(places.known(name, places.root_of(None)))  # which need not be sound
        view.line(f"the index {name} is deleted, with all that was in it")
        return None
    given = [source(each, variables) for each in sources]
    known = name in Index.names()
    if not known and not sources:
        raise BadOption(f"there is no index {name}: %llama index {name} FILES... makes one")
    with _opening(view):
        index = Index.open(name) if known else Index.create(name, embed=args.embed or "minilm")
    if args.embed and args.embed != index.made_with.embed:
        made_with = f"the index {name} was made with {index.made_with.embed}"
        raise BadOption(f"{made_with}: leave out --embed, or take another name, or --drop it")
    if args.remove:
        view.line(f"{plural(sum(index.remove(each) for each in args.remove), 'document')} removed from {name}")
    if sources:
        try:
            return _add(index, given, view)
        except BadSource:
            index.drop_if_unused(not known)
            raise
    return None if args.remove else index


def _add(index: Index, sources: list[Any], view: View) -> Any:
    line: ProgressLine | None = None

    def progress(done: int, total: int | None, label: str) -> None:
        nonlocal line
        line = line or ProgressLine(label, view)
        line(done, total or 0)

    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what it warns of is in the table
        added = index.add(sources, progress=progress)
    view.line(f"{index.name}: {added}; {plural(len(index), 'chunk')} in all")
    return problems_table(added.problems) if added.problems else None


@contextmanager
def _opening(view: View) -> Iterator[None]:
    """Say what takes seconds where an index is opened for the first time in a kernel."""
    from ipyllama.rag.packages import takes_a_while

    if not takes_a_while():
        yield
        return
    view.line("loading LanceDB, once in each kernel")
    try:
        yield
    finally:
        view.line("")


def _search(variables: Mapping[str, Any], args: RagArgs, view: View) -> Any:
    from ipyllama.rag.retrievers import found_by

    name, *words = args.words
    if not words:
        raise BadOption(f"a question is needed: %llama search {name} WORDS...")
    query, options = " ".join(words), {"mode": args.mode} if args.mode else {}
    hits = found_by(retriever(name, variables, view), query, args.k or K, options)
    view.bundle(hits_bundle(query, hits), final=True)


def _indexes(names: list[str]) -> Table:
    rows = tuple((name,) for name in names)
    return Table(("index",), rows, empty="no index yet: %llama index NAME FILES... makes one")


def source(word: str, variables: Mapping[str, Any]) -> Any:
    """A path or glob, in which variables may stand, or what is in a variable. Raises `BadOption`."""
    if (match := _VARIABLE.fullmatch(word)) is not None:
        return _value(match[1], variables)
    path, notes = insert_variables(word, variables)  # {{folder}}/notes
    if notes:
        raise BadOption(notes[0].replace(": sent as written", ""))
    return path


def _value(name: str, variables: Mapping[str, Any]) -> Any:
    if name not in variables:
        raise BadOption(f"{{{{{name}}}}} is not a variable here")
    return variables[name]
