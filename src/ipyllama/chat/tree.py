"""The conversation tree: which turns there are, which cell owns which, and where the next one goes.

A turn that is answered again is replaced: it no longer counts, though turns that continue it still know it as their
parent. Those are stale until they are answered again.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from types import EllipsisType
from typing import Final

from ipyllama.chat.parents import linked, with_all_before
from ipyllama.chat.turn import Place, Turn
from ipyllama.errors import BadOption, UnknownTurn
from ipyllama.options import did_you_mean

_State = tuple[object, tuple[Turn, ...], Turn | None, dict[str, str]]
UNDO_STEPS: Final = 50
SHORTEST: Final = 4
"""Characters of an id that tell which turn is meant."""


class Ask:
    """What one question gives, be it several answers: one number without a cell, one step of `undo`."""


class Tree:
    """The current turns of one conversation. Turns are immutable; the tree only says which of them count."""

    def __init__(self, changed: Callable[[Tree], None] = lambda tree: None) -> None:
        """`changed` is called after every change, on the thread that made it."""
        self._changed = changed
        self._lock = threading.RLock()  # turns are added on the model's worker thread
        self._turns: tuple[Turn, ...] = ()
        self._head: Turn | None = None
        self._newest: dict[str, str] = {}  # of a replaced turn, what came in its place
        self._earlier: list[_State] = []
        self._runs: weakref.WeakKeyDictionary[Ask, int] = weakref.WeakKeyDictionary()
        self.begun = False
        """whether anything was ever said here, be it taken back again"""

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Every turn that was not replaced, in the order of their first running."""
        return self._turns

    @property
    def head(self) -> Turn | None:
        """The turn that the next one continues from: the one that ran last, unless `go_to` chose another."""
        head = self._head
        return next((turn for turn in self._turns if head is not None and turn.id == head.id), head)

    @property
    def replaced(self) -> dict[str, str]:
        """Of turns that current ones continue and that were replaced, by id, which current one is in their place."""
        current = {turn.id for turn in self._turns}
        newest = {turn.id: self._latest(turn.id) for turn in with_all_before(self._turns) if turn.id not in current}
        return {old: new for old, new in newest.items() if new in current}

    # -- finding ------------------------------------------------------------------------------------------

    def owned_by(self, cell: str | None, name: str | None = None, sample: int = 0) -> Turn | None:
        """The turn of a cell; without one, the turn of that name which no cell owns."""
        if cell is not None:
            return next((turn for turn in self._turns if (turn.cell, turn.sample) == (cell, sample)), None)
        return next((turn for turn in self._turns if name is not None and turn.name == name and not turn.cell), None)

    def named(self, name: str) -> Turn:
        """A turn by its name, its number (from 1, in the order of running), its cell, or the first characters of its id
        or its cell's, at least 4.

        Raises `UnknownTurn`, with what was probably meant.
        """
        turns = self._turns
        for found in (
            [turn for turn in turns if turn.name == name],
            [turn for number, turn in enumerate(turns, start=1) if name.lstrip("#") == str(number)],
            [turn for turn in turns if turn.cell == name],
            [turn for turn in turns if len(name) >= SHORTEST and _starts(name, turn)],
        ):
            if len(found) > 1:
                raise UnknownTurn(f"'{name}' may be {', '.join(turn.id for turn in found)}: write more of it")
            if found:
                return found[0]
        names = [turn.name for turn in turns if turn.name]
        known = (f"there are turns 1 to {len(turns)}" if len(turns) > 1 else "there is turn 1") + (
            f", and {', '.join(names)}" if names else ""
        )
        hint = did_you_mean(name, names) or (known if turns else "nothing was said yet")
        raise UnknownTurn(f"no turn is called '{name}': {hint}")

    def newest(self, turn: Turn) -> Turn:
        """What has come in place of a turn; the turn itself where nothing has."""
        latest = self._latest(turn.id)
        return next((other for other in self._turns if other.id == latest), turn)

    def standing(self, turn: Turn | None) -> Turn | None:
        """What has come in place of a turn; where it was removed, of the nearest before it that was not."""
        current = {other.id: other for other in self._turns}
        while turn is not None and (latest := self._latest(turn.id)) not in current:
            turn = turn.parent
        return current[latest] if turn is not None else None

    def parent_for(self, owned: Turn | None, after: Turn | EllipsisType | None = ...) -> Turn | None:
        """What a turn continues: `after` if given, else what `owned`, the one that it replaces, did, else the head.

        Raises `BadOption` where that continues `owned` itself.
        """
        if after is ...:
            after = owned.parent if owned else self._head
        parent = self.standing(after)
        if owned is not None and parent is not None and self._continues(parent, owned):
            called = f"'{parent.name}'" if parent.name else "that turn"
            raise BadOption(f"{called} continues what was answered here before: ask in a new cell, or under a new name")
        return parent

    def stale(self) -> tuple[Turn, ...]:
        """Turns that continue one which was answered again since, or was removed."""
        current, known = {turn.id for turn in self._turns}, dict[str, bool]()
        return tuple(turn for turn in self._turns if _is_stale(turn, current, known))

    def counted(self, place: Place, ask: Ask) -> Place:
        """A place with its `run`, for a turn that no cell owns: that of the same question, or that of the turn whose
        name it has, or another than all others have."""
        if place.cell is not None:
            return place
        if ask not in self._runs:
            again = self.owned_by(None, place.name, place.sample)
            latest = max((turn.run for turn in self._turns if turn.cell is None), default=0)
            self._runs[ask] = again.run if again else latest + 1
        return replace(place, run=self._runs[ask])

    # -- changing -----------------------------------------------------------------------------------------

    def at_once(self) -> AbstractContextManager[object]:
        """What is done in this block is one change to other threads."""
        return self._lock

    def add(self, turn: Turn, ask: Ask | None = None) -> tuple[Turn, ...]:
        """Put a turn in the place of the one that its owner has, whose number it takes; make it the head if it is the
        first of its samples. Returns the turns that became stale."""
        with self._changing(ask):
            replaced = self.owned_by(turn.cell, turn.name, turn.sample)
            before = {other.id for other in self.stale()}
            gone = [other.id for other in self._turns if other is replaced or _is_left_over(other, turn, replaced)]
            others = [_without_name(other, turn.name) for other in self._turns if other.id not in (*gone, turn.id)]
            at = next((n for n, other in enumerate(self._turns) if other.id in (*gone, turn.id)), None)
            if at is None:  # samples are in their order, whichever ends first
                at = next((n for n, other in enumerate(others) if _is_later_sample(other, turn)), len(others))
            self._turns = linked((*others[:at], turn, *others[at:]))
            self._newest.pop(turn.id, None)
            self._newest |= {old: turn.id for old in gone if old != turn.id}
            if turn.sample == 0:
                self._head = turn
            return tuple(other for other in self.stale() if other.id not in (*before, turn.id))

    def amend(self, turn: Turn) -> None:
        """Put a turn in the place of the one with the same id."""
        with self._lock:
            self._turns = linked(turn if other.id == turn.id else other for other in self._turns)
            self._changed(self)

    def adopt(self, turns: tuple[Turn, ...], head: Turn | None, replaced: Mapping[str, str]) -> None:
        """Take over turns of another time, before those that are here; `head` becomes the head. A cell has the turn
        that it had then. `replaced` as the other tree told it."""
        with self._changing():
            known = {turn.id for turn in turns}
            owners: dict[tuple[str | None, int], str]
            owners = {(turn.cell, turn.sample): turn.id for turn in turns if turn.cell is not None}
            names = {turn.name for turn in turns}
            gone = {turn.id: owners.get((turn.cell, turn.sample), turn.id) for turn in self._turns}
            here = [turn for turn in self._turns if gone[turn.id] == turn.id and turn.id not in known]
            here = [turn.with_name(None) if turn.name in names else turn for turn in here]
            self._turns, self._head = linked((*turns, *here)), head
            self._newest |= {**replaced, **{old: new for old, new in gone.items() if old not in known}}
            self._newest = {old: new for old, new in self._newest.items() if old != new and old not in known}

    def go_to(self, turn: Turn | None) -> None:
        """The next turn continues from this one; None is the beginning. No step of `undo` where it does already."""
        with self._lock:
            if _id(turn) == _id(self._head):
                return
            with self._changing():
                self._head = turn

    def remove(self, turn: Turn) -> tuple[Turn, ...]:
        """Forget a turn and all that continue it, or an earlier answer in its place; returns them. The head, if it was
        among them, becomes its parent."""
        with self._changing():
            was = {turn.id, *(old for old in self._newest if self._latest(old) == turn.id)}
            gone = tuple(other for other in self._turns if any(each.id in was for each in other.path))
            self._turns = tuple(other for other in self._turns if other not in gone)
            if self._head is not None and any(self._head.id == other.id for other in gone):
                self._head = self.standing(turn.parent)
            return gone

    def rename(self, turn: Turn, name: str | None) -> Turn:
        """The same turn under another name, which no other turn has then. No step of `undo` where it has it already."""
        with self._lock:
            if self.newest(turn).name != name:
                with self._changing():
                    others = (_without_name(other, name) for other in self._turns)
                    self._turns = linked(other.with_name(name) if other.id == turn.id else other for other in others)
            return self.newest(turn)

    def undo(self) -> bool:
        """Take the last change back, up to 50 of them; False if there is none. All answers to one question are one."""
        with self._lock:
            if not self._earlier:
                return False
            _, self._turns, self._head, self._newest = self._earlier.pop()
            self._changed(self)
            return True

    def undoable(self) -> set[str]:
        """Ids of all turns that `undo` can bring back, with those before them."""
        with self._lock:
            return {turn.id for turn in with_all_before(turn for _, turns, *_ in self._earlier for turn in turns)}

    def settle(self) -> None:
        """What was done so far cannot be undone any more."""
        with self._lock:
            self._earlier = []

    def _continues(self, turn: Turn, other: Turn) -> bool:
        """Whether the newest answers on the way to `turn` include `other`, or one from its cell."""
        at: Turn | None = turn
        while at is not None:
            if at.id == other.id or (other.cell is not None and at.cell == other.cell):
                return True
            at = self.newest(at.parent) if at.parent else None
        return False

    def _latest(self, turn_id: str) -> str:
        while turn_id in self._newest:
            turn_id = self._newest[turn_id]
        return turn_id

    @contextmanager
    def _changing(self, ask: Ask | None = None) -> Iterator[None]:
        """All of a change, or none of it; a step of `undo`, unless the last one was for the same question."""
        with self._lock:
            earlier, before = self._earlier, (ask, self._turns, self._head, dict(self._newest))
            try:
                if ask is None or not earlier or earlier[-1][0] is not ask:
                    self._earlier = [*earlier[-UNDO_STEPS + 1 :], before]
                yield
            except BaseException:
                _, self._turns, self._head, self._newest = before
                self._earlier = earlier
                raise
            self.begun = True
            self._changed(self)


def _is_left_over(turn: Turn, new: Turn, replaced: Turn | None) -> bool:
    """Whether its cell, or the name that stands for one, was run again with fewer samples."""
    if turn.cell is None and (replaced is None or turn.run != replaced.run):
        return False
    return turn.cell == new.cell and turn.sample >= new.n_samples


def _is_later_sample(turn: Turn, new: Turn) -> bool:
    """Whether it is of the same question, and comes after."""
    return (turn.cell, turn.run, turn.message) == (new.cell, new.run, new.message) and turn.sample > new.sample


def _is_stale(turn: Turn, current: set[str], known: dict[str, bool]) -> bool:
    """`known` are the answers so far, by id: every turn is looked at once, however long the conversation is."""
    way, at = [turn], turn
    while at.parent is not None and at.id not in known:
        way.append(at := at.parent)
    known.setdefault(at.id, False)  # the beginning depends on nothing
    for each in reversed(way):
        if each.id not in known and each.parent is not None:
            known[each.id] = known[each.parent.id] or each.parent.id not in current
    return known[turn.id]


def _id(turn: Turn | None) -> str | None:
    return turn.id if turn is not None else None


def _starts(beginning: str, turn: Turn) -> bool:
    return turn.id.startswith(beginning) or (turn.cell or "").startswith(beginning)


def _without_name(turn: Turn, name: str | None) -> Turn:
    return turn.with_name(None) if name is not None and turn.name == name else turn
