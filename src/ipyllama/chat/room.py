"""When the context is full: what a prompt leaves out, so that there is room for it and its answer."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

from ipyllama.chat.ledger import PromptPlan
from ipyllama.chat.turn import Place, Turn
from ipyllama.engine import Shift
from ipyllama.errors import BadOption
from ipyllama.ledger import Ledger
from ipyllama.options import did_you_mean

How = Literal["error", "shift", "drop-oldest", "summarise-by"]
MOST_FOR_ANSWER: Final = 1 / 4
"""Of the context, that is kept free for an answer at most; less, where `max_tokens` is less."""
FREED: Final = 1 / 4
"""Of the context, that is free besides once turns were left out: the next ones then need not leave out more."""

Plan = Callable[[Place], PromptPlan]
"""The prompt that a turn at this place would have."""
Summarise = Callable[[Place], str]
"""The model's answer to a message at this place, which becomes no turn."""


@dataclass(frozen=True, slots=True)
class OnFull:
    """What to do when a conversation and an answer do not fit in the context.

    "error" refuses the message. "drop-oldest" leaves the oldest turns out of the prompt and computes what follows anew.
    "shift" leaves them out and moves the KV of what follows: quick, but that KV still knows of what is gone.
    "summarise-by TURN" asks the message of that turn about the oldest turns, and puts it and the answer in their place.
    """

    how: How = "error"
    by: str = ""

    @classmethod
    def read(cls, text: str | None) -> OnFull:
        """As it is written; None is the default. Raises `BadOption`."""
        if text is None:
            return cls()
        how, _, by = str(text).strip().partition(" ")
        if how not in get_args(How):
            hint = did_you_mean(how, get_args(How)) or f"there are {', '.join(get_args(How))}"
            raise BadOption(f"unknown way '{how}' for a full context: {hint}")
        if bool(by.strip()) != (how == "summarise-by"):
            raise BadOption("summarise-by needs the turn whose message asks for a summary, as in 'summarise-by recap'")
        return cls(how, by.strip())  # type: ignore[arg-type]  # it is one of How


@dataclass(frozen=True, slots=True)
class Room:
    """`n_ctx` tokens, `answer` of which are kept for the answer."""

    n_ctx: int
    answer: int

    @classmethod
    def of(cls, n_ctx: int, max_tokens: int) -> Room:
        return cls(n_ctx, max(1, min(max_tokens, int(n_ctx * MOST_FOR_ANSWER))))

    def fits(self, ledger: Ledger, spare: float = 0.0) -> bool:
        """Whether there is room for a prompt and its answer, with this part of the context to spare."""
        return len(ledger) + self.answer <= self.n_ctx * (1 - spare)


def leave_out(plan: Plan, place: Place, room: Room) -> Place:
    """The place with the fewest of the oldest turns left out that give room; all of them where nothing does."""
    assert place.parent is not None
    n = len(place.parent.path)
    roomy = bisect_left(
        range(n), True, lo=place.dropped, key=lambda k: room.fits(plan(replace(place, dropped=k)).ledger, FREED)
    )
    return replace(place, dropped=roomy)


def summarised(plan: Plan, place: Place, room: Room, by: Turn, summarise: Summarise) -> Place:
    """The place with a summary of what `leave_out` left out, as far as that and the question for it have room."""
    # A summary is as long as an answer at most, and has to fit beside what is kept.
    place = leave_out(plan, place, Room(room.n_ctx, 2 * room.answer))
    assert place.parent is not None
    parent = place.parent
    path, first = parent.path, parent.dropped + 1

    def asked(k: int) -> Place:
        at = replace(place, message=by.message, cuts=by.cuts, parent=path[k - 1])
        return replace(at, dropped=parent.dropped, summary=parent.summary)

    too_many = bisect_left(range(place.dropped + 1), True, lo=first, key=lambda k: not room.fits(plan(asked(k)).ledger))
    if too_many <= first:
        raise BadOption("there is no room for a summary: one turn fills the context. Try --on-full drop-oldest")
    return replace(place, summary=(by.message, summarise(asked(too_many - 1))))


def shift_between(live: Ledger, whole: Ledger, left: Ledger) -> Shift | None:
    """What of the KV of `live`, with which `whole` begins, is to be cut out so that the rest serves `left`, which is
    `whole` without some turns. None where the template wrote more than that in other tokens."""
    delta, kept = len(whole) - len(left), whole.common_prefix(left)
    same = all(token == other for token, other in zip(left.tokens[kept:], whole.tokens[kept + delta :], strict=True))
    usable = live.common_prefix(whole)
    return Shift(live, kept, kept + delta) if same and delta > 0 and kept > 0 and kept + delta < usable else None
