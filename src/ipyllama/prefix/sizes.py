"""Sizes and ages as people write them."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final, TypeGuard

from ipyllama.errors import BadOption

LARGEST: Final = 1 << 63
"""No size and no age reaches it."""
_SIZE: Final = re.compile(r"\s*(\d+(?:\.\d*)?)\s*([kmgt]?)(?:i?b)?\s*", re.IGNORECASE)
_AGE: Final = re.compile(r"\s*(\d+(?:\.\d*)?)\s*([smhdw])\s*", re.IGNORECASE)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def parse_bytes(size: int | float | str) -> int:
    """`"10G"`, `"500 MB"` or a number of bytes. Raises `BadOption`."""
    match = _SIZE.fullmatch(size) if isinstance(size, str) else None
    nbytes = float(match[1]) * 1024 ** " kmgt".index(match[2].lower() or " ") if match else size
    if not _is_amount(nbytes):
        raise BadOption(f"a size is a number of bytes, or a text like '500M' or '10G': got {repr(size)[:60]}")
    return int(nbytes)


def parse_seconds(age: float | str | timedelta | None) -> float | None:
    """`"30d"`, `"12h"`, a timedelta or a number of seconds; None is no limit. Raises `BadOption`."""
    if age is None:
        return None
    if isinstance(age, timedelta):
        age = age.total_seconds()
    match = _AGE.fullmatch(age) if isinstance(age, str) else None
    seconds = float(match[1]) * _SECONDS[match[2].lower()] if match else age
    if not _is_amount(seconds):
        written = "an age is" if isinstance(age, str) else "an age is a number of seconds, or"
        raise BadOption(f"{written} written like '12h' or '30d': got {repr(age)[:60]}")
    return float(seconds)


def _is_amount(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < LARGEST
