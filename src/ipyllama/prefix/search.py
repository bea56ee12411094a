"""What is at hand for a prompt to the token: under `reuse="token"` a block that matches in part counts, too."""

from __future__ import annotations

from typing import Final

from ipyllama.ledger import Ledger
from ipyllama.prefix.keys import Link, link_after
from ipyllama.prefix.memory import PrefixMemory
from ipyllama.prefix.records import Found

_BACK: Final = 4
"""Blocks to go back for another way on: the same tokens may have been cut into blocks at other places."""


def find_to_the_token(memory: PrefixMemory, ledger: Ledger, n_ctx: int) -> list[Found]:
    """Blocks that together hold the longest beginning of this prompt, its last token excepted; the last in part."""
    tokens = ledger.tokens[:-1]
    found = _by_name(memory, ledger)
    best = found
    for n in range(len(found), max(-1, len(found) - _BACK), -1):
        before = found[:n]
        tried = [*before, *_by_likeness(memory, before, tokens, n_ctx)]
        if _end(tried) > _end(best):
            best = tried
    return best


def nearest_stored(memory: PrefixMemory, ledger: Ledger, n_ctx: int) -> tuple[int, tuple[int, ...]]:
    """Of what is stored, the tokens of the chain that is most like this prompt, and how many it has in common."""
    tokens = ledger.tokens
    found = memory.find(link for link in memory.links(ledger) if link.end < len(ledger))
    found += _by_likeness(memory, found, tokens, n_ctx, last=True)
    if not found:
        return 0, ()
    link = found[-1].link
    return _end(found), tokens[: link.start] + link.tokens


def _by_name(memory: PrefixMemory, ledger: Ledger) -> list[Found]:
    """Exact blocks, then token-level ones, cut as this prompt's are."""
    found: list[Found] = []
    exact, parent = True, memory.binding.root
    for link in memory.links(ledger):
        if link.end >= len(ledger):
            break
        at_hand = memory.find([link]) if exact else []
        if not at_hand:
            exact = False
            at_hand = memory.find([_token_level(link, parent)])
        if not at_hand:
            break
        found += at_hand
        parent = at_hand[0].link.key
    return found


def _by_likeness(
    memory: PrefixMemory, before: list[Found], tokens: tuple[int, ...], n_ctx: int, *, last: bool = False
) -> list[Found]:
    """What follows the blocks `before`, however it was cut. With `last` a block that has nothing in common ends it."""
    found: list[Found] = []
    parent = before[-1].link.key if before else memory.binding.root
    at = _end(before)
    while (child := memory.child(parent, at, tokens, n_ctx)) is not None and (child.n_tokens or last):
        found.append(child)
        if child.take is not None:
            break
        parent, at = child.link.key, child.end
    return found


def _token_level(link: Link, parent: bytes) -> Link:
    return link_after(parent, link.tokens, link.start, (), exact=False)


def _end(found: list[Found]) -> int:
    return found[-1].end if found else 0
