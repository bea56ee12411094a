"""Why a prompt cost what it did: what was at hand, where it stopped being of use, and the cause by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Cause = Literal[
    "continued",
    "first use",
    "different model",
    "different settings",
    "template rewrote history",
    "system prompt changed",
    "text changed",
    "evicted",
    "context full",
    "trim refused",
    "damaged entry",
    "cache off",
]
"""`continued`: nothing was lost, only what is new was computed."""

SHOWN = 24
"""Tokens of both sides that are kept of a place where two prompts part."""


@dataclass(frozen=True, slots=True)
class Why:
    """What became of the beginning of a prompt, compared with the earlier prompt that is most like it."""

    cause: Cause
    n_prompt: int
    """tokens of the prompt"""
    kept: int
    """of them, how many were at hand, from the first on: reused and restored"""
    broke: int | None = None
    """the first token that is not the earlier prompt's; None where no token differs"""
    here: tuple[int, ...] = ()
    """this prompt's tokens from there on, the first few"""
    there: tuple[int, ...] = ()
    """the earlier prompt's tokens from there on"""
    detail: str = ""
    """what there is to say besides, in one sentence"""

    def __str__(self) -> str:
        said = f"{self.cause}: {self.kept:,} of {self.n_prompt:,} prompt tokens were at hand"
        if self.broke is not None:
            said += f"; the prompt differs from an earlier one from token {self.broke:,} on"
        return f"{said}; {self.detail}" if self.detail else said

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        from ipyllama.display.progress import line_bundle

        return line_bundle(str(self))
