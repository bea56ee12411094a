"""Kinds of stores: a handful of primitives that every kind of place can offer, and the names they are chosen by."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import BinaryIO, Final, Protocol

from ipyllama.errors import BadOption


@dataclass(frozen=True, slots=True)
class Item:
    """A run of bytes with a name, as a listing shows it."""

    name: str
    nbytes: int
    used: float
    """when it was last written or touched, seconds since the epoch"""


class StoreBackend(Protocol):
    """The primitives of a place: items under names like "blocks/0f/NAME.kv". Processes share it, threads too.

    Every method may raise `OSError`, and `StoreError` with what to do where the place can never be used.
    """

    def open(self, name: str) -> BinaryIO:
        """An item to read and seek in. `FileNotFoundError` where there is none."""
        ...

    def write(self, name: str, parts: Sequence[memoryview], durable: bool = True) -> None:
        """Make or replace an item: readers see all of it or nothing. `durable`: it outlives a power cut."""
        ...

    def exists(self, name: str) -> bool:
        """True if there is an item of that name."""
        ...

    def delete(self, name: str) -> None:
        """Remove an item; one that is gone already is no error."""
        ...

    def move(self, name: str, to: str) -> None:
        """Give an item another name."""
        ...

    def touch(self, name: str) -> None:
        """The item was used now."""
        ...

    def items(self, folder: str) -> Iterator[Item]:
        """Every item below a folder, in no order; none where there is no such folder."""
        ...

    def lock(self) -> AbstractContextManager[None]:
        """One process and thread at a time inside; nothing where the place has no locks. `StoreBusy` if the others do
        not get done."""
        ...


PRIMITIVES: Final = ("open", "write", "exists", "delete", "move", "touch", "items", "lock")
_backends: Final[dict[str, type[StoreBackend]]] = {}


def register_store_backend(name: str, cls: type[StoreBackend]) -> None:
    """Make `PrefixMemory(location, backend=name)` keep blocks by `cls(location)`.

    Raises `BadOption` where the name is taken or a primitive of `StoreBackend` is missing.
    """
    missing = [primitive for primitive in PRIMITIVES if not callable(getattr(cls, primitive, None))]
    if missing:
        raise BadOption(f"{cls.__name__} cannot be a store: it has no {', no '.join(missing)}")
    if _backends.get(name, cls) is not cls:
        raise BadOption(f"there is a store backend {name!r} already: choose another name")
    _backends[name] = cls


def make_backend(name: str, location: str | os.PathLike[str]) -> StoreBackend:
    """A backend that is registered, at a place. Raises `BadOption`."""
    if name not in _backends:
        raise BadOption(f"there is no store backend {name!r}: known are {', '.join(sorted(_backends))}")
    return _backends[name](location)  # type: ignore[call-arg]  # how one is made is no primitive
