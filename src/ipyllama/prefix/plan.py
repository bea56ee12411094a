"""The way to a prompt's state that takes the least time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ipyllama.prefix.memory import PrefixMemory
from ipyllama.prefix.records import Found

INSTANT: Final = 0.02
"""Seconds that nobody notices: within them the plan that computes least wins."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Keep the first `keep` live tokens, then put `found` after them."""

    keep: int
    found: tuple[Found, ...]
    seconds: float
    """predicted, with computing the rest of the prompt"""

    @property
    def end(self) -> int:
        return self.found[-1].end if self.found else self.keep


def choose(memory: PrefixMemory, n_prompt: int, live: int, found: Sequence[Found], *, can_cut: bool) -> Plan:
    """The plan with the least predicted time; of nearly equal ones, the one that computes least.

    `live` of the live tokens may stay; with `can_cut` fewer may. `found` are blocks from position 0 on.
    """
    compute = memory.rates.prefill.seconds
    plans = [Plan(live, (), compute(n_prompt - live))]
    joints = {0} | {block.end for block in found if block.end <= live}
    for keep in {0, max(joints)} if can_cut or live in joints else {0}:
        blocks = tuple(block for block in found if block.link.start >= keep)
        if blocks:
            rest = compute(n_prompt - blocks[-1].end)
            plans.append(Plan(keep, blocks, memory.restore_seconds(blocks) + rest))
    limit = min(plan.seconds for plan in plans) + INSTANT
    return max((plan for plan in plans if plan.seconds <= limit), key=lambda plan: (plan.end, -plan.seconds))
