"""From a finished reply to a turn in the tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from textwrap import shorten
from typing import Final

from ipyllama.chat.ledger import Loss
from ipyllama.chat.tree import Ask, Tree
from ipyllama.chat.turn import Place, Turn
from ipyllama.ledger import Ledger
from ipyllama.reply import Reply

MOST_NAMED: Final = 6
"""Stale turns that a note names."""
BUILT_ON_EARLIER: Final = "these built on the earlier answer"
"""The beginning of that note, which is true when the answer is shown and may not be later."""


def record(
    tree: Tree, place: Place, loss: Loss | None, reply: Reply, ledger: Ledger, *, ask: Ask | None = None
) -> Turn:
    """The turn of a finished reply, put into the tree unless nothing was said. Runs on the model's worker thread, or
    where a reply is replayed on that of the caller. `ask` is given where one question has several answers."""
    if loss is not None and reply.why is not None:
        reply = replace(reply, why=replace(reply.why, cause=loss.cause, detail=loss.note))
    if not reply.tokens or reply.finish_reason == "error":
        return Turn.of(reply, place, ledger)
    ask = ask or Ask()
    with tree.at_once():
        turn = Turn.of(reply, tree.counted(place, ask), ledger)
        stale = tree.add(turn, ask)
        if stale:
            note = f"{BUILT_ON_EARLIER}, run them again to bring them up to date: {_named(stale)}"
            turn = replace(turn, notes=(*turn.notes, note))
            tree.amend(turn)
        return turn


def _named(turns: Sequence[Turn]) -> str:
    """Turns by their names, or what was asked; each question once."""
    names = list(dict.fromkeys(turn.name or f'"{shorten(turn.message, 40, placeholder="…")}"' for turn in turns))
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more
