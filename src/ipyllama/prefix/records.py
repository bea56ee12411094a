"""What the prefix memory says: which model it is asked about, what it found, what it holds."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from ipyllama.prefix.keys import KEY_BYTES, Cut, Link, root_key
from ipyllama.prefix.store.block import Origin

SHOWN: Final = 120
"""Characters of a name or setting that a file tells."""
Place = Literal["RAM", "disk", "remote"]


@dataclass(frozen=True, slots=True)
class Binding:
    """A model in use, as far as its states depend on it."""

    fingerprint: bytes
    """of everything that changes a state: weights, KV types, attention, adapters, upstream's format"""
    cut: Cut
    origin: Origin
    model: str = ""
    """its name, for people"""
    weights: str = ""
    """digest of its file"""
    settings: Mapping[str, object] = field(default_factory=dict)
    """what else the fingerprint covers"""

    @property
    def root(self) -> bytes:
        """The key that its first blocks follow."""
        return root_key(self.fingerprint)

    def as_note(self) -> dict[str, Any]:
        """What later processes are told of it."""
        return {
            "fingerprint": self.fingerprint.hex(),
            "cut": asdict(self.cut),
            "origin": asdict(self.origin),
            "model": self.model,
            "weights": self.weights,
            "settings": dict(self.settings),
        }

    @classmethod
    def of_note(cls, note: Mapping[str, Any]) -> Binding | None:
        """The reverse of `as_note`; None for anything else."""
        match note:
            case {
                "fingerprint": str(fingerprint),
                "cut": {"grid": int(grid), "sampled": bool(sampled)},
                "origin": {"build": str(build), "n_threads": int(n_threads)},
                "model": str(model),
                "weights": str(weights),
                "settings": dict(settings),
            } if grid > 0 and len(fingerprint) == 2 * KEY_BYTES:
                with contextlib.suppress(ValueError):
                    key = bytes.fromhex(fingerprint)
                    return cls(key, Cut(grid, sampled), Origin(build, n_threads), legible(model), weights, settings)
        return None


def legible(text: object) -> str:
    """What a file says, fit to be shown: a short line without control characters and halves of characters."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in str(text)[:SHOWN])


@dataclass(frozen=True, slots=True)
class Found:
    """A block that is at hand."""

    link: Link
    place: Place
    take: int | None = None
    """only its first `take` tokens are wanted; None: all"""

    @property
    def n_tokens(self) -> int:
        return len(self.link.tokens) if self.take is None else self.take

    @property
    def end(self) -> int:
        return self.link.start + self.n_tokens


@dataclass(frozen=True, slots=True)
class Check:
    """What a prompt would find: how many of its tokens are at hand, where, and what the rest is predicted to cost."""

    n_tokens: int
    n_found: int
    places: dict[Place, int]
    restore_seconds: float
    compute_seconds: float

    def __str__(self) -> str:
        found = ", ".join(f"{n:,} in {place}" for place, n in self.places.items())
        return (
            f"{self.n_found:,} of {self.n_tokens:,} tokens are at hand{f' ({found})' if found else ''}: restoring them "
            f"takes about {self.restore_seconds:.2f} s, computing the rest {self.compute_seconds:.2f} s"
        )


@dataclass(slots=True)
class Counts:
    """What happened since the memory was made."""

    hits: int = 0
    """blocks restored"""
    saved: int = 0
    """blocks handed to the writer"""
    seconds: float = 0.0
    """of computing that restoring has spared"""
    by_key: Counter[bytes] = field(default_factory=Counter, repr=False)
    """how often each block was restored"""
    damaged: list[str] = field(default_factory=list)
    """what was quarantined when a prompt wanted it, and why"""
    unsound: list[str] = field(default_factory=list)
    """what `verify` has quarantined, and why"""


@dataclass(frozen=True, slots=True)
class Stats:
    """`nbytes` and `blocks` on disk, in RAM, and what was spared."""

    location: Path | None
    remote: str
    """where else blocks are looked for; empty where nowhere"""
    disk_bytes: int
    disk_blocks: int
    bytes_limit: int
    ram_bytes: int
    ram_blocks: int
    ram_limit: int
    counts: Counts
    problem: str
    """why nothing is saved, or the remote is not used; empty where all is well"""
