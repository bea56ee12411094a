"""What may happen to the files of a store behind its back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final


def block_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("blocks/*/*.kv"))


def _flip(files: list[Path], which: int, where: int) -> None:
    file = files[which % len(files)]
    data = bytearray(file.read_bytes())
    if data:
        data[where % len(data)] ^= 1 << where % 8
    file.write_bytes(data)


def _rot(files: list[Path], which: int, where: int) -> None:
    """A bit in each."""
    for number in range(len(files)):
        _flip(files, number, where)


def _truncate(files: list[Path], which: int, where: int) -> None:
    file = files[which % len(files)]
    data = file.read_bytes()
    file.write_bytes(data[: where % (len(data) + 1)])


def _extend(files: list[Path], which: int, where: int) -> None:
    with files[which % len(files)].open("ab") as file:
        file.write(bytes(1 + where % 64))


def _delete(files: list[Path], which: int, where: int) -> None:
    files[which % len(files)].unlink()


def _swap(files: list[Path], which: int, where: int) -> None:
    """Two files take each other's place, whole and undamaged."""
    one, other = files[which % len(files)], files[where % len(files)]
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def _replace(files: list[Path], which: int, where: int) -> None:
    """One is another's copy."""
    files[which % len(files)].write_bytes(files[where % len(files)].read_bytes())


def _graft(files: list[Path], which: int, where: int) -> None:
    """The beginning of one and the rest of another."""
    one, other = files[which % len(files)], files[(which + 1) % len(files)]
    head, rest = one.read_bytes(), other.read_bytes()
    at = where % (len(head) + 1)
    one.write_bytes(head[:at] + rest[at:])


def _junk(files: list[Path], which: int, where: int) -> None:
    files[which % len(files)].write_bytes(bytes((where + 31 * n) % 256 for n in range(where % 5000)))


DAMAGES: Final[dict[str, Callable[[list[Path], int, int], None]]] = {
    "flip": _flip,
    "rot": _rot,
    "truncate": _truncate,
    "extend": _extend,
    "delete": _delete,
    "swap": _swap,
    "replace": _replace,
    "graft": _graft,
    "junk": _junk,
}


def damage(folder: Path, how: str, which: int, where: int) -> None:
    """`which` and `where` are taken modulo what there is; nothing happens to an empty store."""
    if files := block_files(folder):
        DAMAGES[how](files, which, where)


def plant(folder: Path, foreign: list[bytes], which: int, where: int) -> None:
    """A whole block of another model takes a block's place."""
    if (files := block_files(folder)) and foreign:
        files[which % len(files)].write_bytes(foreign[where % len(foreign)])
