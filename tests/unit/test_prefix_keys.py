"""Keys and cuts: a function of the ledger alone, different for whatever has different bits."""

from __future__ import annotations

import hashlib
from itertools import accumulate

from blocks import ROOT
from hypothesis import given
from hypothesis import strategies as st

from ipyllama.engine import piece_ends
from ipyllama.ledger import Ledger
from ipyllama.prefix import Cut
from ipyllama.prefix.keys import chain, child_key, cut_points, root_key

TOKENS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=40)
CUTS = st.builds(Cut, st.integers(1, 20), st.booleans())


@st.composite
def ledgers(draw: st.DrawFn) -> Ledger:
    ledger = Ledger().append_prompt(draw(TOKENS))
    for tokens, sampled in draw(st.lists(st.tuples(TOKENS, st.booleans()), max_size=4)):
        ledger = ledger.append_sampled(tokens) if sampled else ledger.append_prompt(tokens)
    return ledger


def independent_key(parent: bytes, tokens: tuple[int, ...], start: int, ends: tuple[int, ...], exact: bool) -> bytes:
    """What the documentation says, written down once more."""
    content = parent + (b"" if exact else b"token-level")
    content += len(tokens).to_bytes(4, "little") + len(ends).to_bytes(4, "little")
    content += b"".join(token.to_bytes(4, "little") for token in tokens)
    content += b"".join((end - start).to_bytes(4, "little") for end in ends)
    return hashlib.sha256(content).digest()


@given(ledgers(), CUTS)
def test_blocks_follow_each_other_and_leave_the_last_token(ledger: Ledger, cut: Cut) -> None:
    links = list(chain(ROOT, ledger, cut))
    assert sum((link.tokens for link in links), ()) == ledger.tokens[: links[-1].end if links else 0]
    assert [link.start for link in links] == [0, *accumulate(len(link.tokens) for link in links)][: len(links)]
    assert [link.parent for link in links] == [ROOT, *(link.key for link in links)][: len(links)]
    assert max(cut_points(ledger, cut), default=len(ledger) - 1) >= len(ledger) - 1
    for link in links:
        assert link.key == independent_key(link.parent, link.tokens, link.start, link.ends, link.exact)


@given(ledgers(), TOKENS, CUTS)
def test_a_conversation_that_goes_on_keeps_its_blocks(ledger: Ledger, more: list[int], cut: Cut) -> None:
    before = [link for link in chain(ROOT, ledger, cut) if link.usable]
    after = {link.key for link in chain(ROOT, ledger.append_prompt(more), cut)}
    same = [link for link in before if all(end in piece_ends(ledger.append_prompt(more)) for end in link.ends)]
    assert {link.key for link in same} <= after


@given(ledgers(), CUTS, st.data())
def test_another_token_gives_other_keys_from_there_on(ledger: Ledger, cut: Cut, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(ledger) - 1))
    segments, left = [], at
    for segment in ledger.segments:
        tokens = list(segment.tokens)
        if 0 <= left < len(tokens):
            tokens[left] ^= 1
        left -= len(segment.tokens)
        segments.append(type(segment)(tuple(tokens), segment.sampled))
    ours, others = list(chain(ROOT, ledger, cut)), list(chain(ROOT, Ledger(tuple(segments)), cut))
    for here, there in zip(ours, others, strict=True):
        assert (here.key == there.key) is (here.end <= at)


@given(st.binary(min_size=32, max_size=32), TOKENS, st.data())
def test_all_that_changes_bits_changes_the_key(parent: bytes, tokens: list[int], data: st.DataObject) -> None:
    ends = sorted(data.draw(st.sets(st.integers(1, len(tokens)))))
    key = child_key(parent, tokens, 0, ends)
    others = {
        child_key(bytes(32) if any(parent) else bytes(31) + b"1", tokens, 0, ends),
        child_key(parent, [*tokens, 0], 0, ends),
        child_key(parent, tokens, 0, [*ends, len(tokens) + 1]),
        child_key(parent, tokens, 0, ends, exact=False),
    }
    assert key not in others
    assert len(others) == 4


def test_models_have_roots_of_their_own() -> None:
    assert len({root_key(bytes([n] * 32)) for n in range(50)}) == 50
    assert root_key(b"") != hashlib.sha256(b"").digest()
