"""The conversation tree: which turns there are, which cell owns which, and where the next one goes."""

from __future__ import annotations

import threading
from types import EllipsisType

from ipyllama.chat.turn import Turn


class Tree:
    """The current turns of one conversation. Turns are immutable; the tree only says which of them count."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # turns are added on the model's worker thread
        self._turns: tuple[Turn, ...] = ()
        self._head: Turn | None = None

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Every turn that was not replaced, in the order of running."""
        return self._turns

    @property
    def head(self) -> Turn | None:
        """The turn that ran last."""
        return self._head

    def owned_by(self, cell: str | None) -> Turn | None:
        """The turn of a cell."""
        return next((turn for turn in self._turns if cell is not None and turn.cell == cell), None)

    def newest(self, turn: Turn) -> Turn:
        """What the cell of `turn` answered last; the turn itself where no cell owns it."""
        return self.owned_by(turn.cell) or turn

    def parent_for(self, cell: str | None, after: Turn | EllipsisType | None = ...) -> Turn | None:
        """What a turn of `cell` continues: `after` if given, else the same point as before, else the head."""
        if after is ...:
            owned = self.owned_by(cell)
            after = owned.parent if owned else self._head
        return self.newest(after) if after else None

    def is_stale(self, turn: Turn) -> bool:
        """True if a turn before it was answered again, differently."""
        return any(self.newest(earlier).ledger != earlier.ledger for earlier in turn.path[:-1])

    def add(self, turn: Turn) -> tuple[Turn, ...]:
        """Make `turn` the head, in place of what its cell owned. Returns the turns that became stale by it."""
        with self._lock:
            fresh = [other for other in self._turns if not self.is_stale(other)]
            replaced = self.owned_by(turn.cell)
            self._turns = (*(other for other in self._turns if other is not replaced), turn)
            self._head = turn
            return tuple(other for other in fresh if other is not replaced and self.is_stale(other))
