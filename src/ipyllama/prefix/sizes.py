"""Sizes and ages as people write them."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import Final

from ipyllama.errors import BadOption

_SIZE: Final = re.compile(r"\s*(\d+(?:\.\d*)?)\s*([kmgt]?)(?:i?b)?\s*", re.IGNORECASE)
_AGE: Final = re.compile(r"\s*(\d+(?:\.\d*)?)\s*([smhdw])\s*", re.IGNORECASE)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def parse_bytes(size: int | float | str) -> int:
    """`"10G"`, `"500 MB"` or a number of bytes. Raises `BadOption`."""
    if isinstance(size, str):
        match = _SIZE.fullmatch(size)
        if match is None:
            raise BadOption(f"a size is a number of bytes, or a text like '500M' or '10G': got {size!r}")
        return int(float(match[1]) * 1024 ** " kmgt".index(match[2].lower() or " "))
    if isinstance(size, bool) or not isinstance(size, int | float) or not 0 <= size < math.inf:
        raise BadOption(f"a size is a number of bytes, or a text like '500M' or '10G': got {size!r}")
    return int(size)


def parse_seconds(age: float | str | timedelta | None) -> float | None:
    """`"30d"`, `"12h"`, a timedelta or a number of seconds; None is no limit. Raises `BadOption`."""
    if age is None:
        return None
    if isinstance(age, timedelta):
        return age.total_seconds()
    if isinstance(age, str):
        match = _AGE.fullmatch(age)
        if match is None:
            raise BadOption(f"an age is written like '12h' or '30d': got {age!r}")
        return float(match[1]) * _SECONDS[match[2].lower()]
    if isinstance(age, bool) or not isinstance(age, int | float) or not 0 <= age < math.inf:
        raise BadOption(f"an age is a number of seconds, or a text like '12h' or '30d': got {age!r}")
    return float(age)
