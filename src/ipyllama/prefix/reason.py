"""Why a prompt's beginning was not at hand: compared with what was evaluated before, the cause by name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from ipyllama.engine import piece_ends, shared_end
from ipyllama.ledger import Ledger
from ipyllama.prefix.keys import chain
from ipyllama.prefix.memory import PrefixMemory
from ipyllama.prefix.records import Binding, legible
from ipyllama.prefix.search import nearest_stored
from ipyllama.prefix.seen import Prompt
from ipyllama.why import SHOWN, Cause, Why

ALIKE: Final = 16
"""Leading tokens in common from which on a prompt counts as an earlier one that was changed."""
OUTDATED: Final = "it was computed with another number of threads or build, whose sums differ in the last bits"


@dataclass(frozen=True, slots=True)
class Facts:
    """What happened while a prompt's beginning was brought together."""

    kept: int
    """its tokens that were at hand"""
    damaged: str = ""
    """what was quarantined, and why"""
    refused: bool = False
    """the sequence could not be cut where the prompts part"""


def explain(memory: PrefixMemory, ledger: Ledger, n_ctx: int, facts: Facts) -> Why:
    """Why no more than `facts.kept` tokens of this prompt were at hand."""
    why = Why("continued", len(ledger), facts.kept)
    if facts.kept >= len(ledger) - 1:
        return why
    n_common, other = memory.seen.nearest(memory.binding.root, ledger.tokens)
    if other is not None and other.root != memory.binding.root:
        n_common, other = 0, None
    if memory.outdated and any(link.end > facts.kept and link.key in memory.outdated for link in memory.links(ledger)):
        why = replace(why, cause="different settings", detail=OUTDATED)
    elif other is not None and n_common > facts.kept:
        why = _compared(why, ledger, n_common, other, refused=facts.refused)
    else:
        why = _compared_with_stored(memory, why, ledger, n_ctx)
    if memory.paused:
        return replace(why, cause="cache off", detail="%llama cache on looks prefixes up and saves them again")
    return replace(why, cause="damaged entry", detail=facts.damaged) if facts.damaged else why


def _compared(why: Why, ledger: Ledger, n_common: int, other: Prompt, *, refused: bool) -> Why:
    """With the most similar prompt of this process."""
    known = piece_ends(other.ledger)
    at_best = shared_end(ledger.tokens, piece_ends(ledger)[:-1], other.ledger.tokens, known)
    parts = n_common < min(len(ledger), len(other.ledger))
    if parts and n_common >= ALIKE:
        why = _parting(why, n_common, ledger.tokens, other.ledger.tokens)
    if why.kept >= at_best:
        cause: Cause = ("text changed" if n_common >= ALIKE else "first use") if parts else "continued"
        return replace(why, cause=cause)
    if refused:
        return replace(why, cause="trim refused", detail="this model can only go back to checkpoints")
    return replace(why, cause="evicted", detail=f"{at_best:,} of its tokens were there once")


def _compared_with_stored(memory: PrefixMemory, why: Why, ledger: Ledger, n_ctx: int) -> Why:
    """With what other processes have left, and with other models' prompts."""
    n_common, tokens = nearest_stored(memory, ledger, n_ctx)
    if ALIKE <= n_common < min(len(tokens), len(ledger)):
        return replace(_parting(why, n_common, ledger.tokens, tokens), cause="text changed")
    if why.kept:
        return why
    other = _same_words_elsewhere(memory, ledger)
    return _of_another(why, memory.binding, other) if other else replace(why, cause="first use")


def _same_words_elsewhere(memory: PrefixMemory, ledger: Ledger) -> Binding | None:
    """Another model, or the same one with other settings, that has read the beginning of this prompt."""
    bindings = memory.bindings
    for root, other in bindings.items():
        if root != memory.binding.root and memory.find(islice(chain(root, ledger, other.cut), 1)):
            return other
    n_common, prompt = memory.seen.nearest(memory.binding.root, ledger.tokens)
    return bindings.get(prompt.root) if prompt is not None and n_common >= ALIKE else None


def _of_another(why: Why, mine: Binding, other: Binding) -> Why:
    if mine.weights != other.weights:
        return replace(why, cause="different model", detail=f"{other.model} has read it, this is {mine.model}")
    changed = [name for name, value in mine.settings.items() if other.settings.get(name) != value]
    names = ", ".join(f"{name} was {legible(other.settings.get(name))}" for name in changed)
    return replace(why, cause="different settings", detail=names)


def _parting(why: Why, at: int, here: tuple[int, ...], there: tuple[int, ...]) -> Why:
    return replace(why, broke=at, here=here[at : at + SHOWN], there=there[at : at + SHOWN])
