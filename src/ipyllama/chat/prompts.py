"""From a message and its place to the prompt that the model reads, with room for the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ipyllama.chat.ledger import Loss, PromptPlan, next_prompt
from ipyllama.chat.messages import Messages
from ipyllama.chat.room import OnFull, Room, leave_out, shift_between, summarised
from ipyllama.chat.speaker import Speaker
from ipyllama.chat.turn import Place, Turn, summary_turn
from ipyllama.engine import Job
from ipyllama.errors import BadOption, Interrupted, PromptTooLong, TemplateError
from ipyllama.options import GenerateOptions
from ipyllama.reply import Reply
from ipyllama.thinking import split_thinking

if TYPE_CHECKING:
    from ipyllama.engine import Shift

Wait = Callable[[Job], Reply]
"""Waits for a job's reply."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be generated for a message, and where its turn will stand."""

    plan: PromptPlan
    place: Place
    shift: Shift | None = None
    """what of the parent's KV is cut out, so that the rest can be moved and used"""

    def options(self, chosen: GenerateOptions) -> GenerateOptions:
        """How to answer: KV that was moved is used to the token, or not at all."""
        return replace(chosen, reuse="token") if self.place.moved else chosen


class Prompts:
    """Prompts of one conversation. `llm` gives the model that answers now; `switches` are those of its template."""

    def __init__(self, llm: Callable[[], Speaker], switches: Mapping[str, Any]) -> None:
        self._llm, self._switches = llm, dict(switches)

    def ask(
        self,
        place: Place,
        options: GenerateOptions,
        on_full: OnFull,
        named: Callable[[str], Turn],
        wait: Wait = Job.result,
    ) -> Asked:
        """The prompt of a message. `named` finds the turn that tells how to summarise, `wait` waits for the summary.

        Raises `TemplateError`, `PromptTooLong`, `BadOption`, `UnknownTurn`, and `Interrupted` where the summary was.
        """
        plan, llm = self.plan(place), self._llm()
        room = Room.of(llm.n_ctx, options.max_tokens)
        if place.parent is None or on_full.how == "error" or room.fits(plan.ledger):
            if place.parent is not None and len(plan.ledger) >= llm.n_ctx:
                raise PromptTooLong(len(plan.ledger), llm.n_ctx, can_leave_out=True)
            return Asked(plan, replace(place, prompt=plan.text))
        if on_full.how == "shift":
            return self._shifted(place, plan, room)
        if on_full.how == "drop-oldest":
            return self._without(leave_out(self.plan, place, room), plan)
        place = summarised(self.plan, place, room, named(on_full.by), partial(self._summarise, room, wait))
        return self._without(place, plan, "; a summary stands for them")

    def plan(self, place: Place) -> PromptPlan:
        """The prompt of a turn that would stand there."""
        history: tuple[Turn, ...] = place.parent.path[place.dropped :] if place.parent else ()
        if place.summary:
            history = (summary_turn(*place.summary), *history)
        render = partial(self.render, think=place.think)
        return next_prompt(self._llm().vocab, render, place.parent, place.said, place.system, history)

    def render(self, messages: Messages, think: bool | None = None) -> str:
        """The text of a conversation, up to where the answer begins."""
        llm, switches = self._llm(), self._switches
        if llm.template is None:
            raise TemplateError(f"{llm.name} has no chat template: use --raw, or complete(), to continue a text.")
        if think is not None:
            switch = llm.template.thinking_switch
            if switch is None:
                raise BadOption(f"the chat template of {llm.name} has no switch for thinking: leave it out")
            switches = switches | {switch: think}
        return llm.template.render(messages, **switches)

    def _without(self, place: Place, whole: PromptPlan, more: str = "") -> Asked:
        """The prompt at a place that leaves turns out, which `whole` has not."""
        assert place.parent is not None
        plan = self.plan(place)
        n, fewer = place.dropped - place.parent.dropped, len(whole.ledger) - len(plan.ledger)
        left = "the oldest turn was" if n == 1 else f"the {n} oldest turns were"
        note = f"the context was full: {left} left out of the prompt, {fewer:,} tokens{more}"
        plan = replace(plan, loss=Loss("context full", note))
        return Asked(plan, replace(place, prompt=plan.text))

    def _shifted(self, place: Place, whole: PromptPlan, room: Room) -> Asked:
        llm = self._llm()
        if not llm.capability.can_shift:
            why = llm.capability.reason or "positions in its memory cannot be changed"
            raise BadOption(f"the KV of {llm.name} cannot be moved ({why}): use --on-full drop-oldest")
        place = leave_out(self.plan, place, room)
        assert place.parent is not None
        shift = shift_between(place.parent.ledger, whole.ledger, self.plan(place).ledger)
        if shift is None and place.dropped < len(place.parent.path):
            raise BadOption(
                "the template writes the rest in other tokens, no KV can be moved: use --on-full drop-oldest"
            )
        asked = self._without(replace(place, moved=place.moved or shift is not None), whole)
        return replace(asked, shift=shift)

    def _summarise(self, room: Room, wait: Wait, place: Place) -> str:
        options, plan = GenerateOptions(max_tokens=room.answer, temperature=0), self.plan(place)
        try:
            reply = wait(self._llm().generate(plan.ledger, options, caller=place.chat))
        except Interrupted:
            raise Interrupted from None  # what was written is no answer
        if reply.finish_reason == "interrupted":
            raise Interrupted
        return split_thinking(reply.text, plan.text).answer or reply.text
