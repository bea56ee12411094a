"""The rules of conversations in notebooks, plainly: cells own turns, running one again replaces its turn, new ones
continue from the head. Written from the design, and knows nothing of trees, ledgers or files."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from types import EllipsisType
from typing import Final

Owner = str | int
"""A cell's id, or the number of an execution that no cell owns."""
_executions: Final = itertools.count(1)


@dataclass(frozen=True)
class Said:
    """A question with its answer. Two are the same where all of it is the same, and all before it."""

    owner: Owner
    question: str
    text: str
    tokens: tuple[int, ...]
    before: Said | None

    def path(self) -> Iterator[Said]:
        """From here back to the beginning."""
        at: Said | None = self
        while at is not None:
            yield at
            at = at.before

    def messages(self) -> list[dict[str, str]]:
        pairs = [((("user", said.question)), ("assistant", said.text)) for said in self.path()]
        return [{"role": role, "content": text} for pair in reversed(pairs) for role, text in pair]


@dataclass(frozen=True)
class State:
    """What counts now. `current` is in the order of first running: the place is the number."""

    current: dict[Owner, Said] = field(default_factory=dict)
    names: dict[Owner, str] = field(default_factory=dict)
    head: Owner | None = None


class Refused(Exception):
    """It cannot be done, and nothing changes."""


class Rules:
    """One notebook. `saved` is what the next kernel finds."""

    def __init__(self) -> None:
        self.now, self.saved = State(), State()
        self._earlier: list[State] = []
        self.resumable = False
        """nothing but cells has run in this kernel yet, so that what is saved can be told from it"""

    # -- questions ----------------------------------------------------------------------------------------

    def find(self, name: str) -> Owner:
        """By name or number."""
        for owner in self.now.current:
            if self.now.names.get(owner) == name:
                return owner
        if name.isdecimal() and 0 < int(name) <= len(self.now.current):
            return list(self.now.current)[int(name) - 1]
        raise Refused(name)

    def stale(self) -> list[Owner]:
        """Whoever continues an answer that is not the newest of its owner."""
        current = self.now.current
        return [owner for owner, said in current.items() if any(current[each.owner] != each for each in said.path())]

    def newest_path(self, said: Said | None) -> Iterator[Said]:
        """Back to the beginning, by the newest answer of each owner."""
        while said is not None:
            said = self.now.current[said.owner]
            yield said
            said = said.before

    def place(self, cell: str | None, name: str | None, after: str | EllipsisType) -> tuple[Owner, Said | None]:
        """Who will own the answer, and what it continues."""
        named = [owner for owner, called in self.now.names.items() if called == name and isinstance(owner, int)]
        owner: Owner = cell if cell is not None else named[0] if named else next(_executions)
        mine = self.now.current.get(owner)
        if after is not ...:
            before = None if after == "none" else self.now.current[self.find(after)]
        elif mine is not None:
            before = mine.before and self.now.current[mine.before.owner]
        else:
            before = None if self.now.head is None else self.now.current[self.now.head]
        if mine is not None and any(said.owner == owner for said in self.newest_path(before)):
            raise Refused("it would continue itself")
        return owner, before

    # -- changes ------------------------------------------------------------------------------------------

    def answered(self, said: Said, name: str | None) -> list[Owner]:
        """Returns the others that became stale."""
        stale = self.stale()
        self._change(current=self.now.current | {said.owner: said}, head=said.owner)
        if name is not None:
            self._call(said.owner, name)
        return [owner for owner in self.stale() if owner not in (*stale, said.owner)]

    def goto(self, owner: Owner | None) -> None:
        if owner != self.now.head:  # else there is nothing to undo
            self._change(head=owner)

    def rm(self, owner: Owner) -> None:
        gone = {other for other, said in self.now.current.items() if any(each.owner == owner for each in said.path())}
        head, before = self.now.head, self.now.current[owner].before
        self._change(
            current={other: said for other, said in self.now.current.items() if other not in gone},
            names={other: name for other, name in self.now.names.items() if other not in gone},
            head=(before and before.owner) if head in gone else head,
        )

    def rename(self, owner: Owner, name: str) -> None:
        if self.now.names.get(owner) != name:
            self._change()
            self._call(owner, name)

    def undo(self) -> None:
        if not self._earlier:
            raise Refused("nothing to undo")
        self.now = self._earlier.pop()

    def restart(self) -> None:
        if self._changed and self.now.current:
            self.saved = self.now
        self._changed = False
        self.now, self._earlier, self.resumable = State(), [], bool(self.saved.current)

    def resume(self) -> None:
        """What was left comes before what is here; a cell has the answer that it had then."""
        here, then, names = self.now, self.saved, set(self.saved.names.values())
        self._change(
            current={**then.current, **{who: said for who, said in here.current.items() if who not in then.current}},
            names={
                **{who: name for who, name in here.names.items() if name not in names and who not in then.current},
                **then.names,
            },
            head=then.head,
        )
        self.resumable = False

    # -- within -------------------------------------------------------------------------------------------

    _changed = False

    def _change(self, **new: object) -> None:
        self._earlier.append(self.now)
        self.now = replace(self.now, **new)
        self._changed = True

    def _call(self, owner: Owner, name: str) -> None:
        names = {other: called for other, called in self.now.names.items() if called != name}
        self.now = replace(self.now, names=names | {owner: name})
