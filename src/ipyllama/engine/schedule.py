"""The evaluation schedule: how a ledger is cut into the batches that llama.cpp evaluates.

Floating-point sums depend on how a prompt is cut into batches, so the cut is a function of the ledger alone:
prompt tokens in pieces that end at fixed multiples from position 0 and at turn ends, the last token of each
prompt alone, sampled tokens one by one. A run that starts from live KV and a run that starts from nothing then
evaluate the same batches, and their logits are equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ipyllama.ledger import Ledger

PIECE: Final = 256
"""Tokens in a full piece. Larger ones prefill no faster on a CPU, and an edit loses at most one piece."""


def piece_ends(ledger: Ledger, piece: int = PIECE) -> list[int]:
    """The end position of every piece, ascending; the last is the ledger's length."""
    ends: list[int] = []
    start = 0
    for segment in ledger.segments:
        end = start + len(segment.tokens)
        if segment.stepwise:
            ends.extend(range(start + 1, end + 1))
        else:
            ends.extend(range((start // piece + 1) * piece, end - 1, piece))
            if start < end - 1:
                ends.append(end - 1)
            ends.append(end)
        start = end
    return ends


def shared_end(a: Sequence[int], a_ends: Sequence[int], b: Sequence[int], b_ends: Sequence[int]) -> int:
    """The last position up to which both runs have the same tokens cut into the same pieces; 0 if none."""
    shared = 0
    for end, other in zip(a_ends, b_ends, strict=False):
        if end != other or a[shared:end] != b[shared:end]:
            break
        shared = end
    return shared
