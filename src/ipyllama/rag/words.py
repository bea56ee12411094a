"""What a search by words goes by. Scripts that part no words are taken in pairs of characters, as is usual: the pairs
of a question stand in whatever text has its words."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final

_UNPARTED: Final = re.compile(
    "["
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f"  # kana
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Han
    "\uac00-\ud7af"  # Hangul, whose words have endings
    "]+"
)


def words_in(text: str) -> str:
    """A document's text for the index of words: single characters as well, for who asks for one."""
    return _UNPARTED.sub(lambda run: f" {' '.join([*_pairs(run[0]), *run[0]])} ", text)


def words_asked(text: str) -> str:
    """A question's text."""
    return _UNPARTED.sub(lambda run: f" {' '.join(_pairs(run[0])) or run[0]} ", text)


def _pairs(run: str) -> list[str]:
    return [a + b for a, b in pairwise(run)]
