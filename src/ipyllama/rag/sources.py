"""What people give as documents: files, folders, globs, texts, columns of tables."""

from __future__ import annotations

import glob
import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ipyllama.errors import BadSource
from ipyllama.rag.documents import Document, Section, clean
from ipyllama.rag.loaders import MAX_BYTES, VERSION, check_size, load

_SKIPPED: Final = frozenset({"node_modules", "__pycache__", "site-packages"})
_ANY_DEPTH: Final = re.compile(r"(^|/)\*\*(?:/+|$)")
_NOTHING: Final = ("NaT", "<NA>")
"""What pandas calls a value that is not there."""
_LONG: Final = 256
"""A text of so many characters is no path."""


@dataclass(frozen=True, slots=True)
class Source:
    """A document that can be read."""

    name: str
    size: int
    """bytes of the file or of the text"""
    read: Callable[[], bytes]
    parse: Callable[[bytes], Document]
    metadata: Mapping[str, Any]
    root: str = ""
    """the folder or glob that it was found by; what is no longer found by it is no longer in the index"""
    modified: int = 0
    """of a file, when it was changed: nanoseconds"""

    def digest(self, content: bytes) -> str:
        """Of everything that its chunks depend on."""
        head = json.dumps([VERSION, self.metadata], sort_keys=True, default=str).encode()
        return hashlib.sha256(hashlib.sha256(head).digest() + content).hexdigest()


@dataclass(frozen=True, slots=True)
class Unusable:
    """Something that was given as a document and is none."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Root:
    """Says that all files of a folder or glob have been given out."""

    name: str


def expand(sources: object) -> Iterator[Source | Unusable | Root]:
    """All documents of what was given; nothing is read yet. Raises `BadSource` for what can be no document."""
    if isinstance(sources, str | os.PathLike | Mapping) or _is_table(sources):
        yield from _one(sources)
    elif isinstance(sources, Iterable):
        for source in sources:
            yield from _one(source)
    else:
        raise BadSource(f"sources are paths, texts, (name, text) pairs or columns: got {type(sources).__name__}")


def _one(source: Any) -> Iterator[Source | Unusable | Root]:
    match source:
        case str() if "\n" in source or len(source) > _LONG:
            text = clean(source)
            yield _text_source(f"text {hashlib.sha256(text.encode()).hexdigest()[:8]}", text, {})
        case str() | os.PathLike():
            yield from _files(os.path.expanduser(os.fspath(source)))
        case Mapping():
            for name, text in source.items():
                yield from _named(name, text, {})
        case tuple((name, text)):
            yield from _named(name, text, {})
        case tuple((name, text, metadata)):
            yield from _named(name, text, metadata)
        case _ if _is_table(source):
            yield from _cells(source)
        case _:
            raise BadSource(f"a path, a text, (name, text) or (name, text, metadata) is needed: got {source!r:.80}")


def _named(name: object, text: object, metadata: object) -> Iterator[Source]:
    if not isinstance(text, str):
        raise BadSource(f"the text of {name!r:.80} must be a str: got {type(text).__name__}")
    if metadata is None:
        metadata = {}
    if not isinstance(metadata, Mapping) or not all(isinstance(key, str) for key in metadata):
        raise BadSource(f"the metadata of {name!r:.80} must be a dict whose keys are texts: got {metadata!r:.80}")
    yield _text_source(clean(str(name)), clean(text), {clean(key): plain(value) for key, value in metadata.items()})


def _text_source(name: str, text: str, metadata: Mapping[str, Any]) -> Source:
    content = text.encode()
    return Source(name, len(content), lambda: content, _parse_text, metadata)


def _parse_text(content: bytes) -> Document:
    if not content.strip():
        raise BadSource("there is no text in it")
    return Document([Section(content.decode())])


def _files(path: str) -> Iterator[Source | Unusable | Root]:
    if os.path.isdir(path):
        yield from _below(path, _walk(path), "an empty folder: there is no file in it")
    elif os.path.exists(path):
        yield _file(path)
    elif glob.has_magic(path):
        found = sorted({file for file in _globbed(path) if os.path.isfile(file)})
        yield from _below(path, found, "no file has such a name")
    else:
        hint = "" if os.sep in path else ". To index a text itself give (name, text)"
        yield Unusable(path, f"there is no such file or folder{hint}")


def _below(path: str, files: Iterable[str], if_none: str) -> Iterator[Source | Unusable | Root]:
    root, n = shown_path(path), 0
    for file in files:
        n += 1
        yield _file(file, root)
    if not n:
        yield Unusable(root, if_none)
    yield Root(root)


def _walk(folder: str) -> Iterator[str]:
    """The files below a folder in a stable order, without hidden ones. Links to folders are not followed."""
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _SKIPPED)
        yield from (os.path.join(place, name) for name in sorted(files) if not name.startswith("."))


def _globbed(pattern: str) -> Iterator[str]:
    """What `glob` finds, with `**` for folders of any depth, but none through links, which may lead in a circle."""
    match = _ANY_DEPTH.search(pattern)
    if match is None:
        yield from glob.iglob(pattern)
        return
    before, after = pattern[: match.start()] + match[1], pattern[match.end() :] or "*"
    for top in glob.iglob(before) if glob.has_magic(before) else [before]:
        for place, folders, _ in os.walk(top or os.curdir):
            folders[:] = [name for name in folders if not name.startswith(".")]
            yield from _globbed(os.path.join(glob.escape(place), after))


def _file(path: str, root: str = "") -> Source | Unusable:
    name = shown_path(path)
    try:
        info = os.stat(path)
        if not os.path.isfile(path):
            return Unusable(name, "neither a file nor a folder")
    except OSError as error:
        return Unusable(name, error.strerror or str(error))

    def read() -> bytes:
        with open(path, "rb") as file:
            return file.read(MAX_BYTES + 1)

    def parse(content: bytes) -> Document:
        check_size(info.st_size)  # not all of a larger file was read
        return load(path, content)

    return Source(name, info.st_size, read, parse, {}, root, info.st_mtime_ns)


def shown_path(path: str) -> str:
    """A path as the name of a document: relative where it lies below the current folder, with slashes."""
    full = Path(os.path.abspath(path))
    shown = full.relative_to(Path.cwd()) if full.is_relative_to(Path.cwd()) else full
    return clean(shown.as_posix())


def _is_table(source: object) -> bool:
    """A column (Series) or table (DataFrame) of pandas, which need not be installed."""
    return hasattr(source, "index") and hasattr(source, "items") and hasattr(source, "dtypes")


def _cells(table: Any) -> Iterator[Source | Unusable]:
    """A column: a document for each row. A table: the text is in the column "text", all others are metadata."""
    empty = []
    for name, text, metadata in _rows(table):
        if isinstance(text, str) and text.strip():
            yield from _named(name, text, metadata)
        else:
            empty.append(name)
    if empty:
        more = f", nor in {len(empty) - 1:,} more" if len(empty) > 1 else ""
        yield Unusable(clean(empty[0]), f"there is no text in it{more}")


def _rows(table: Any) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Name, text and metadata."""
    if not hasattr(table, "columns"):
        column = clean(str(table.name if table.name is not None else "text"))
        yield from ((f"{column}[{key}]", text, {}) for key, text in table.items())
        return
    if list(table.columns).count("text") != 1:
        raise BadSource("a table needs a column 'text'; or give one column: df['notes']")
    for key, row in table.iterrows():
        yield f"text[{key}]", row["text"], {str(name): plain(value) for name, value in row.items() if name != "text"}


def simple(value: Any) -> Any:
    """A number of numpy or pandas without its type, a date as ISO text, a text without what cannot be kept; anything
    else as it is."""
    if hasattr(value, "item") and not getattr(value, "shape", ()):
        value = value.item()
    if hasattr(value, "isoformat"):
        value = value.isoformat()
    return clean(value) if isinstance(value, str) else value


def plain(value: Any) -> Any:
    """A value of metadata as JSON has it, see `simple`."""
    value = simple(value)
    if getattr(value, "shape", ()) and hasattr(value, "tolist"):
        value = value.tolist()
    match value:
        case float() if not math.isfinite(value):
            return None
        case None | bool() | int() | float():
            return value
        case list() | tuple() | set():
            return [plain(each) for each in value]
        case Mapping():
            return {clean(str(key)): plain(each) for key, each in value.items()}
    text = clean(str(value))
    return None if text in _NOTHING else text
