"""A turn as JSON, only the difference to the turn before it, and back. Nothing that is read is trusted."""

from __future__ import annotations

from dataclasses import asdict, fields
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from ipyllama.chat.turn import Place, Turn
from ipyllama.ledger import Ledger, Segment, common_prefix
from ipyllama.options import GenerateOptions
from ipyllama.reply import Reply, Timings, Usage

if TYPE_CHECKING:
    from ipyllama.chat.chat import Chat

_PLACE: Final = (
    "message",
    "cuts",
    "system",
    "cell",
    "run",
    "sample",
    "n_samples",
    "think",
    "dropped",
    "summary",
    "moved",
)


def of_turn(turn: Turn) -> dict[str, Any]:
    parent = turn.parent
    before = parent.ledger if parent else Ledger()
    kept = _kept(before, turn.ledger)
    n_prompt = common_prefix(parent.prompt, turn.prompt) if parent else 0
    return {
        "parent": parent.id if parent else None,
        "kept": kept,
        "segments": [[s.sampled, s.together, s.tokens] for s in _after(turn.ledger, kept)],
        "prompt": [n_prompt, turn.prompt[n_prompt:]],
        "place": {key: getattr(turn, key) for key in _PLACE},
        "options": asdict(turn.options),
        "reply": {
            field.name: getattr(turn, field.name)
            for field in fields(Reply)
            if field.name not in ("usage", "timings", "why", "replayed", "logprobs")
        },
        "usage": asdict(turn.usage),
        "timings": asdict(turn.timings),
    }


def to_turn(turn_id: str, content: dict[str, Any], parent: Turn | None, chat: Chat) -> Turn:
    ledger = (parent.ledger if parent else Ledger()).head(content["kept"])
    segments = [
        Segment(_ids(tokens), bool(sampled), bool(together)) for sampled, together, tokens in content["segments"]
    ]
    n, rest = content["prompt"]
    options = content["options"]
    reply = content["reply"] | {"tokens": _ids(content["reply"]["tokens"]), "notes": tuple(content["reply"]["notes"])}
    known: dict[str, Any] = content["place"]
    place = Place(
        parent=parent,
        chat=chat,
        prompt=(parent.prompt[:n] if parent else "") + str(rest),
        options=GenerateOptions().replace_from(options),
        **(known | {"summary": tuple(known["summary"]) if known["summary"] else None, "cuts": _cuts(known)}),
    )
    made = Turn.of(
        Reply(usage=Usage(**content["usage"]), timings=Timings(**content["timings"]), **reply),
        place,
        Ledger((*ledger.segments, *segments)),
    )
    if made.id != turn_id:
        raise ValueError("its id is not that of its content")
    return made


def _kept(before: Ledger, ledger: Ledger) -> int:
    """How many leading tokens both have, cut into the same segments."""
    kept = 0
    for one, other in zip(before.segments, ledger.segments, strict=False):
        if one != other:
            break
        kept += len(one.tokens)
    return kept


def _after(ledger: Ledger, kept: int) -> list[Segment]:
    found, at = [], 0
    for segment in ledger.segments:
        if at >= kept:
            found.append(segment)
        at += len(segment.tokens)
    return found


def _cuts(place: dict[str, Any]) -> tuple[int, ...]:
    """Conversations of old have none."""
    cuts = tuple(place.get("cuts", ()))
    places = (0, *cuts, len(place["message"])) if cuts else ()
    if not all(type(cut) is int for cut in cuts) or not all(a < b for a, b in pairwise(places)):
        raise ValueError("parts of a message end inside it, one after the other")
    return cuts


def _ids(tokens: list[Any]) -> tuple[int, ...]:
    if not all(isinstance(token, int) and token >= 0 for token in tokens):
        raise ValueError("token ids are whole numbers")
    return tuple(tokens)


def checked(turn_id: str) -> str:
    if not is_id(turn_id):
        raise ValueError(f"{turn_id!r} is not the id of a turn")
    return turn_id


def is_id(text: str) -> bool:
    """Whether it is written as the id of a turn."""
    return len(text) == 16 and set(text) <= set("0123456789abcdef")
