"""Reads llama.cpp's own account of its cells out of the bytes of Context.save()."""

from __future__ import annotations

import struct
from typing import NamedTuple

from numpy.typing import NDArray


class Cell(NamedTuple):
    pos: int
    sequences: frozenset[int]


class _Cursor:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def read(self, form: str) -> int:
        value: int = struct.unpack_from("<" + form, self.data, self.at)[0]
        self.at += struct.calcsize("<" + form)
        return value

    def cells(self) -> list[Cell]:
        cells = []
        for _ in range(self.read("I")):
            pos, n = self.read("i"), self.read("I")
            cells.append(Cell(pos, frozenset(self.read("i") for _ in range(n))))
        return cells

    def skip_layers(self, n_cells: int) -> None:
        transposed, n_layer = self.read("I"), self.read("I")
        for turned in (False, bool(transposed)):  # K, then V
            for _ in range(n_layer):
                self.read("i")
                row = self.read("I") * self.read("I") if turned else self.read("Q")
                self.at += row * n_cells


def parts(state: NDArray, attention: bool, windowed: bool) -> list[list[Cell]]:
    """The cells of attention, or of recurrent state where there is no attention; and of windowed layers."""
    cursor = _Cursor(state.tobytes())
    cursor.at = 4 + cursor.read("I")  # the architecture
    streams = cursor.read("I") if attention else 1
    assert streams == 1
    found = [cursor.cells()]
    if windowed:
        if found[0]:
            cursor.skip_layers(len(found[0]))
        assert cursor.read("I") == 1
        found.append(cursor.cells())
    return found
