"""From a finished reply to a turn in the tree."""

from __future__ import annotations

from dataclasses import replace
from textwrap import shorten

from ipyllama.chat.ledger import Loss
from ipyllama.chat.tree import Tree
from ipyllama.chat.turn import Place, Turn
from ipyllama.ledger import Ledger
from ipyllama.reply import Reply


def record(tree: Tree, place: Place, loss: Loss | None, reply: Reply, ledger: Ledger) -> Turn:
    """The turn of a finished reply, put into the tree unless nothing was said. Runs on the model's worker thread."""
    if loss is not None and reply.why is not None:
        reply = replace(reply, why=replace(reply.why, cause=loss.cause, detail=loss.note))
    turn = Turn.of(reply, tree.counted(place), ledger)
    if not reply.tokens or reply.finish_reason == "error":
        return turn
    stale = tree.add(turn)
    if stale:
        names = ", ".join(f'"{shorten(other.message, 40, placeholder="…")}"' for other in stale)
        note = f"these built on the earlier answer, run them again to bring them up to date: {names}"
        turn = replace(turn, notes=(*turn.notes, note))
        tree.amend(turn)
    return turn
