"""A notebook with a real shell, the magics, and a tiny model: what a front end does, without the processes."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from types import EllipsisType
from typing import Final

from IPython.core.interactiveshell import InteractiveShell
from native.scenarios.subject import Slow
from traitlets.config import Config

from ipyllama.chat import Chat, Turn
from ipyllama.llm import LLM
from ipyllama.magics import LlamaMagics
from ipyllama.prefix.location import VARIABLE
from ipyllama.prefix.store.writer import close_all

N_OUT: Final = 5
"""Tokens of an answer."""
_executions: Final = itertools.count(1)


@dataclass(frozen=True)
class Cell:
    """`id` None is a front end that gives none."""

    id: str | None
    text: str
    name: str | None = None
    after: str | EllipsisType = ...

    @property
    def line(self) -> str:
        name = f"--name {self.name}" if self.name else ""
        after = f"--after {self.after}" if isinstance(self.after, str) else ""
        return f"-q -n {N_OUT} {name} {after}"


class Notebook:
    """Cells in their order, and the kernel that runs them. `folder` outlives kernels."""

    def __init__(self, model: Path, folder: Path, *, replay: bool) -> None:
        self.model, self.folder, self.replay = model, folder, replay
        self.cells: list[Cell] = []
        self.counts: Counter[str] = Counter()
        self._ids = itertools.count(1)
        os.environ[VARIABLE] = str(folder)
        config = Config({"HistoryManager": {"enabled": False}, "Llama": {"replay": replay}})
        InteractiveShell.clear_instance()
        self.shell = InteractiveShell.instance(config=config)
        self._open()

    def close(self) -> None:
        self.llm.memory.flush()
        self.llm.memory.replies.flush()
        self.shell.run_line_magic("unload_ext", "ipyllama")
        close_all()

    def restart(self) -> None:
        self.close()
        self._open()

    def run(self, cell: Cell) -> Turn:
        """The turn of a cell's answer. Raises what the cell shows as an error."""
        metadata = {"cellId": cell.id} if cell.id else {}
        self.shell.parent_header = {"metadata": metadata, "header": {"msg_id": str(next(_executions))}}
        self.shell.run_cell_magic("llama", cell.line, cell.text)
        turn = self.magics.session.last
        assert isinstance(turn, Turn)
        return turn

    def command(self, line: str) -> None:
        """`%llama LINE`"""
        self.shell.run_line_magic("llama", line)

    @property
    def chat(self) -> Chat:
        return self.magics.session.begin(self.llm, None)

    @property
    def magics(self) -> LlamaMagics:
        found = self.shell.magics_manager.registry[LlamaMagics.__name__]
        assert isinstance(found, LlamaMagics)
        return found

    @property
    def llm(self) -> LLM:
        return self.magics.session.current

    # -- what people do to cells --------------------------------------------------------------------------

    def insert(self, at: int, cell: Cell) -> None:
        self.cells.insert(at % (len(self.cells) + 1), cell)

    def new_id(self) -> str:
        return f"cell-{next(self._ids)}-"

    def split(self, at: int) -> None:
        """The second half is a new cell; the option line stays with the first."""
        words = self.cells[at].text.split()
        first, second = words[: len(words) // 2] or words, words[len(words) // 2 :]
        self.cells[at] = replace(self.cells[at], text=" ".join(first))
        self.insert(at + 1, Cell(self.new_id(), " ".join(second)))

    def _open(self) -> None:
        self.shell.run_line_magic("load_ext", "ipyllama")
        self.command(f'load "{self.model}" --threads 1 --n-ctx 1024')
        self.llm.memory.rates.prefill = Slow(1.0)
