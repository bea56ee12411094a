"""How an answer is sampled: one frozen dataclass, checked when it is made."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from typing import Any, Final, Literal, Self

from ipyllama.errors import BadOption

MAX_SEED: Final = 2**32 - 2
"""The largest seed; llama.cpp takes the next number, the last that 32 bits hold, as "random"."""


@dataclass(frozen=True, slots=True)
class _Range:
    low: float
    high: float
    whole: bool = False


_RANGES: Final = {
    "max_tokens": _Range(1, math.inf, whole=True),
    "temperature": _Range(0, 2),
    "top_p": _Range(0, 1),
    "top_k": _Range(0, math.inf, whole=True),
    "min_p": _Range(0, 1),
    "repeat_penalty": _Range(0.1, 10),
    "seed": _Range(0, MAX_SEED, whole=True),
}


@dataclass(frozen=True, slots=True)
class GenerateOptions:
    """Sampling options. The fixed seed makes the same prompt give the same answer.

    Raises `BadOption`, in one line with the allowed range, for a value that cannot be used.
    """

    max_tokens: int = 512
    """stop after this many tokens; at least 1"""
    temperature: float = 0.2
    """0 always takes the likeliest token, higher is more varied; 0 to 2"""
    top_p: float = 0.95
    """sample from the likeliest tokens that together have this probability; 0 to 1, 1 is off"""
    top_k: int = 40
    """sample from this many of the likeliest tokens; 0 is off"""
    min_p: float = 0.05
    """drop tokens less likely than this share of the likeliest one; 0 to 1, 0 is off"""
    repeat_penalty: float = 1.0
    """divide the logits of recent tokens by this; 0.1 to 10, 1 is off"""
    seed: int | Literal["random"] = 42
    """0 to 4,294,967,294, or "random" for another sample each time"""
    stop: tuple[str, ...] = ()
    """end the answer before any of these texts; a single text or any iterable of texts is accepted"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", _stop_texts(self.stop))
        self.validate()

    def validate(self) -> None:
        """Raise `BadOption` if a value is of the wrong kind or out of range."""
        for name, allowed in _RANGES.items():
            value = getattr(self, name)
            if not (name == "seed" and value == "random"):
                _check(name, value, allowed)

    def replace_from(self, changes: Mapping[str, Any]) -> Self:
        """A copy with these options changed; None leaves an option as it is.

        Raises `BadOption` for an unknown name, with the name that was probably meant, and for a bad value.
        """
        known = option_names()
        for name in changes:
            if name not in known:
                hint = did_you_mean(name, known) or f"known are {', '.join(known)}"
                raise BadOption(f"unknown option '{name}': {hint}")
        return replace(self, **{name: value for name, value in changes.items() if value is not None})

    def with_concrete_seed(self) -> Self:
        """The same options, a "random" seed drawn now, so that it can be reported and used again."""
        return replace(self, seed=secrets.randbelow(MAX_SEED + 1)) if self.seed == "random" else self


def option_names() -> tuple[str, ...]:
    """The names of all sampling options."""
    return tuple(field.name for field in fields(GenerateOptions))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`did you mean 'x'?` for the known word closest to this one; empty where none is close."""
    import difflib  # only needed once something went wrong

    close = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean '{close[0]}'?" if close else ""


def _check(name: str, value: Any, allowed: _Range) -> None:
    kind: Any = Integral if allowed.whole else Real  # numpy numbers are welcome
    if isinstance(value, bool) or not isinstance(value, kind):
        also = ' or "random"' if name == "seed" else ""
        raise BadOption(f"{name} must be a {'whole ' if allowed.whole else ''}number{also}: got {value!r}")
    if not allowed.low <= value <= allowed.high or math.isinf(value):  # NaN fails the comparison
        low, high = f"{allowed.low:,}", f"{allowed.high:,}"
        bounds = f"at least {low}" if math.isinf(allowed.high) else f"between {low} and {high}"
        raise BadOption(f"{name} must be {bounds}: got {value}")


def _stop_texts(stop: object) -> tuple[str, ...]:
    texts = (stop,) if isinstance(stop, str) else stop
    if not isinstance(texts, Iterable):
        raise BadOption(f"stop must be a text or several: got {stop!r}")
    texts = tuple(texts)
    for text in texts:
        if not isinstance(text, str) or not text:
            raise BadOption(f"stop must be texts of at least one character: got {text!r}")
    return texts
