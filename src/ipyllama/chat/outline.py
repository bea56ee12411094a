"""A tree in the order of reading: a turn, then what continues it; the branch of the head stays at the margin."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ipyllama.chat.tree import Tree
from ipyllama.chat.turn import Turn

if TYPE_CHECKING:
    from ipyllama.chat.conversation import Conversation
    from ipyllama.display.tree import TreeRow


def tree_rows(tree: Tree) -> list[TreeRow]:
    """The rows of `display.tree.ConversationTree`. A stale turn stands below the newest answer of its parent."""
    from ipyllama.display.tree import TreeRow

    turns, head = tree.turns, tree.head
    numbers = {turn.id: number for number, turn in enumerate(turns, start=1)}
    children = children_of(tree)
    stale = {turn.id for turn in tree.stale()}
    of_head = {tree.newest(turn).id for turn in head.path} if head else set()
    rows: list[TreeRow] = []
    waiting = _in_order(children.get(None, []), of_head, 0)
    while waiting:
        turn, depth, first = waiting.pop()
        is_head = head is not None and turn.id == head.id
        number, is_stale = numbers[turn.id], turn.id in stale
        rows.append(TreeRow(number, turn.name, turn.message, turn.text, depth, first, is_head, is_stale, turn.id))
        waiting += _in_order(children.get(turn.id, []), of_head, depth)
    return rows


def children_of(tree: Tree) -> dict[str | None, list[Turn]]:
    """By the id of a turn, those that continue it, in the order of their first running; under None those at the
    beginning, or after a turn that is gone. A stale turn continues the newest answer of its parent."""
    turns = tree.turns
    known, found = {turn.id for turn in turns}, dict[str | None, list[Turn]]()
    for turn in turns:
        parent = tree.newest(turn.parent) if turn.parent else None
        found.setdefault(parent.id if parent and parent.id in known else None, []).append(turn)
    return found


def located(rows: list[TreeRow], chat: Conversation) -> list[TreeRow]:
    """The rows with where their prefixes are kept now."""
    turns = {turn.id: turn for turn in chat.all_turns}
    here = [turns[row.id] for row in rows if row.id in turns]
    found = dict(zip((turn.id for turn in here), chat.llm.where([turn.ledger for turn in here]), strict=True))
    return [replace(row, where=found[row.id].places) if row.id in found else row for row in rows]


def _in_order(siblings: list[Turn], of_head: set[str], depth: int) -> list[tuple[Turn, int, bool]]:
    """What to show after their parent, last first: forks are indented and come before the branch that goes on."""
    if not siblings:
        return []
    main = next((turn for turn in siblings if turn.id in of_head), siblings[0])
    forks = [(turn, depth + 1, True) for turn in siblings if turn is not main]
    return [(main, depth, False), *reversed(forks)]
