"""Turns and what they continue."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ipyllama.chat.turn import Turn


def with_all_before(turns: Iterable[Turn]) -> list[Turn]:
    """The turns and all that they continue, each once and after its parent."""
    found: dict[str, Turn] = {}
    for turn in turns:
        way: list[Turn] = []
        at: Turn | None = turn
        while at is not None and at.id not in found:
            way.append(at)
            at = at.parent
        found |= {each.id: each for each in reversed(way)}
    return list(found.values())


def linked(turns: Iterable[Turn]) -> tuple[Turn, ...]:
    """The turns, each after its parent as that is among them: with the name that it has now."""
    current = {turn.id: turn for turn in turns}
    made: dict[str, Turn] = {}
    for known in with_all_before(current.values()):
        turn = current.get(known.id, known)
        parent = made[turn.parent.id] if turn.parent else None
        made[turn.id] = turn if turn.parent is parent else replace(turn, parent=parent)
    return tuple(made[each] for each in current)
