"""Where indexes are, and what each was made with."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from ipyllama.errors import BadOption, StoreError, UnknownIndex
from ipyllama.options import did_you_mean
from ipyllama.prefix.location import file_name, rag_location
from ipyllama.prefix.store.local import LocalBackend

FORMAT: Final = 1
_MADE_WITH: Final = "index.json"
_LOCK: Final = ".lock"
_README: Final = "README.txt"
_SAYS: Final = b"An index of documents, made by ipyllama: ipyllama.rag.Index.open(NAME) opens it, drop() deletes it.\n"
_TABLES: Final = ("chunks.lance", "sources.lance")


@dataclass(frozen=True, slots=True)
class MadeWith:
    """What an index was made with and keeps to."""

    embed: str
    """the model's name, or the callable's"""
    is_callable: bool
    weights: str
    """the model's digest; "" where a callable embeds"""
    dimensions: int
    chunk_tokens: int
    overlap: int
    rerank: str = ""
    """name of the model or callable that ranks anew; "" for none"""
    rerank_is_callable: bool = False
    format: int = FORMAT


def root_of(location: str | os.PathLike[str] | None) -> Path:
    """The folder that holds indexes: the given one, or the usual one."""
    if location is None:
        return rag_location()
    if not isinstance(location, str | os.PathLike):
        raise BadOption(f"location must be the path of a folder: got {location!r:.80}")
    return Path(os.path.expanduser(os.fspath(location))).absolute()


def folder_of(name: str, root: Path) -> Path:
    """Raises `BadOption` for what cannot be a folder's name."""
    if not isinstance(name, str) or not name or file_name(name) != name:
        raise BadOption(f"an index is named by letters, digits, spaces, dots and dashes: got {name!r:.80}")
    return root / name


def is_index(folder: Path) -> bool:
    """Whether there is one, sound or not."""
    return os.path.isfile(folder / _MADE_WITH)


def known(name: str, root: Path) -> Path:
    """The folder of an index that is there, sound or not. Raises `UnknownIndex`, `BadOption`."""
    folder = folder_of(name, root)
    if not is_index(folder):
        raise _unknown(folder)
    return folder


def names_in(root: Path) -> list[str]:
    """The indexes there."""
    try:
        return sorted(entry.name for entry in os.scandir(root) if is_index(Path(entry.path)))
    except OSError:
        return []


def read(folder: Path) -> MadeWith:
    """Raises `UnknownIndex`, and `StoreError` for what is no index of this version."""
    try:
        content = json.loads((folder / _MADE_WITH).read_bytes())
    except FileNotFoundError:
        raise _unknown(folder) from None
    except (OSError, ValueError) as error:
        raise StoreError(f"the index in {folder} cannot be read: {error}. Delete the folder.") from None
    try:
        found = MadeWith(**content)
    except TypeError:
        found = None
    if found is None or found.format != FORMAT:
        raise StoreError(f"the index in {folder} is of another version: delete the folder and create it anew")
    return found


def write(folder: Path, made_with: MadeWith) -> None:
    """Last of all: a folder without it is no index."""
    _write(folder, _MADE_WITH, json.dumps(asdict(made_with), indent=1).encode())


def prepare(folder: Path) -> None:
    """The folder, for its owner alone; what is in it stays."""
    _write(folder, _README, _SAYS)


def clear(folder: Path) -> None:
    """Remove what a killed process left of an index that was being made."""
    import shutil

    for table in _TABLES:
        if os.path.lexists(folder / table):
            shutil.rmtree(folder / table)


def delete(folder: Path) -> None:
    """Delete an index; what others put there stays."""
    with alone(folder):
        (folder / _MADE_WITH).unlink(missing_ok=True)
        clear(folder)
    for name in (_LOCK, _README, ".gitignore"):
        (folder / name).unlink(missing_ok=True)
    for empty in (folder / "tmp", folder):
        with suppress(OSError):  # what somebody else put there stays
            empty.rmdir()


@contextmanager
def alone(folder: Path, seconds: float = 10.0) -> Iterator[None]:
    """Nobody else writes. Raises `StoreError` where another process does, for longer than that."""
    from filelock import FileLock, Timeout

    lock = FileLock(folder / _LOCK)
    try:
        lock.acquire(timeout=seconds)
    except Timeout:
        raise StoreError(f"another process writes to the index in {folder}: wait until it is done") from None
    except OSError as error:
        raise StoreError(f"the index in {folder} cannot be written to: {error.strerror or error}") from None
    try:
        yield
    finally:
        lock.release()


def _unknown(folder: Path) -> UnknownIndex:
    others = names_in(folder.parent)
    near = did_you_mean(folder.name, others) or (f"there are {', '.join(others)}." if others else "there is none.")
    return UnknownIndex(f"no index '{folder.name}' in {folder.parent}: {near} Index.create(name, sources) makes one.")


def _write(folder: Path, name: str, content: bytes) -> None:
    try:
        LocalBackend(folder).write(name, [memoryview(content)])
    except StoreError as error:
        if isinstance(cause := error.__cause__, OSError):  # what it advises is for prefixes
            why = f"{cause.strerror or cause}: make room there, or choose another folder: location=FOLDER"
            raise StoreError(f"the index in {folder} cannot be written: {why}") from cause
        raise
