"""How an answer is generated: one frozen dataclass, checked when it is made."""

from __future__ import annotations

import itertools
import math
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal, Self, get_args

from ipyllama.errors import BadOption
from ipyllama.logprobs import MOST
from ipyllama.sampling import MAX_SEED, Range, SamplingOptions, as_texts, check_ranges

Reuse = Literal["exact", "token", "fused"]
"""What of an earlier prompt counts: what a cold run would compute bit for bit; everything up to the last common token,
where logits may differ a little (docs/prefix-memory.md has measured figures); or, of a prompt with documents, also
those that stood elsewhere: approximate (docs/retrieval.md)."""
MOST_ANSWERS: Final = 256
"""To one question: each is a turn, and a column where they are shown."""
_RANGES: Final = {"max_tokens": Range(1, math.inf, whole=True), "recompute": Range(0, math.inf, whole=True)}
_LOGPROBS: Final = {"logprobs": Range(0, MOST, whole=True)}


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateOptions(SamplingOptions):
    """Where an answer ends, and how its tokens are chosen (`SamplingOptions`).

    Raises `BadOption`, in one line with the allowed range, for a value that cannot be used.
    """

    max_tokens: int = 512
    """stop after this many tokens; at least 1"""
    stop: tuple[str, ...] = ()
    """end the answer before any of these texts; a single text or any iterable of texts is accepted"""
    reuse: Reuse = "exact"
    """"exact": the answer equals one computed from nothing, bit for bit; "token" computes less after an edit, and may
    differ; "fused" computes each document of a `Layout` once, wherever it stands: approximate, and marked so"""
    recompute: int = 16
    """under reuse="fused", how many tokens at the beginning of each moved document are computed anew in their place"""
    logprobs: int | None = None
    """tell how likely each token was, and this many of the likeliest in its place; 0 to 20, None is off. It changes
    nothing of what is sampled"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", as_texts("stop", self.stop))
        SamplingOptions.__post_init__(self)  # super() does not know a class with slots

    def validate(self) -> None:
        """Raise `BadOption` if a value is of the wrong kind or out of range."""
        check_ranges(self, _RANGES if self.logprobs is None else _RANGES | _LOGPROBS)
        if self.reuse not in get_args(Reuse):
            raise BadOption(f"reuse must be one of {', '.join(get_args(Reuse))}: got {self.reuse!r}")
        SamplingOptions.validate(self)

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

    def with_seed(self, offset: int) -> Self:
        """The same options, the seed this many further on."""
        return replace(self, seed=(int(self.seed) + offset) % (MAX_SEED + 1))


def samples(options: GenerateOptions, n: int) -> list[GenerateOptions]:
    """The same `n` times, each with the next seed. Raises `BadOption`."""
    _check_answers(n)
    first = options.with_concrete_seed()
    return [first.with_seed(number) for number in range(n)]


def combinations(options: Mapping[str, Any]) -> list[GenerateOptions]:
    """Every combination of the options that are given as lists or ranges, the last one varying fastest. Raises
    `BadOption`."""
    lists = {name: value if isinstance(value, list | range) else [value] for name, value in options.items()}
    _check_answers(math.prod(map(len, lists.values())))
    first = GenerateOptions()
    return [
        first.replace_from(dict(zip(lists, values, strict=True))).with_concrete_seed()
        for values in itertools.product(*lists.values())
    ]


def _check_answers(n: int) -> None:
    if not 0 < n <= MOST_ANSWERS:
        raise BadOption(f"a question has 1 to {MOST_ANSWERS} answers at once, not {n:,}: llm.map takes more prompts")


def option_names() -> tuple[str, ...]:
    """The names of all sampling options."""
    return tuple(field.name for field in fields(GenerateOptions))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`did you mean 'x'?` for the known word closest to this one; empty where none is close."""
    import difflib  # only needed once something went wrong

    close = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean '{close[0]}'?" if close else ""
