"""What a generation asks of whoever keeps the context's contents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ipyllama import _core
from ipyllama.engine.kv import KVBoard
from ipyllama.ledger import Ledger
from ipyllama.options import Reuse
from ipyllama.why import Why


@dataclass(frozen=True, slots=True)
class Shift:
    """KV that a prompt can use although it stands elsewhere: of `before`, positions [start, end) are to be cut out and
    what follows them moved down."""

    before: Ledger
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Moved:
    """KV that was computed in another prompt: the last `n` tokens of `source` stand at `start` in this one."""

    source: Ledger
    start: int
    n: int

    @property
    def end(self) -> int:
        return self.start + self.n

    @property
    def distance(self) -> int:
        """How many positions they move up."""
        return self.end - len(self.source)


@dataclass(frozen=True, slots=True)
class Fusing:
    """How a prompt is put together of parts whose KV is computed once, each by itself. It is approximate: a part does
    not know of those before it. `parts` are in the prompt's order."""

    parts: tuple[Moved, ...]
    recompute: int
    """so many tokens at the beginning of each moved part are evaluated in their place"""


@dataclass(frozen=True, slots=True)
class Start:
    """Where a prompt's evaluation starts, and where the KV before it came from."""

    reused: int = 0
    restored: int = 0
    exact: bool = True
    """what is evaluated from here on equals a cold run bit for bit"""
    why: Why | None = field(default=None, compare=False)
    moved: int = 0
    """of what was at hand, how many tokens had stood elsewhere"""
    computed: int = 0
    """tokens that were evaluated on the way, where parts of other prompts were fused"""

    @property
    def position(self) -> int:
        return self.reused + self.restored + self.computed


class States(Protocol):
    """The active sequence, and how a prompt's beginning gets into it. Only the worker thread touches it."""

    board: KVBoard
    """tells others what is in the context"""

    @property
    def sequence(self) -> _core.Sequence: ...

    def __len__(self) -> int: ...

    def held(self, tokens: Sequence[int]) -> int:
        """How many leading tokens of a prompt are in the sequence now, and can be gone on from. From any thread."""

    def warm_up(self) -> None:
        """Do once, before the first prompt, what the first use of a context costs. Leaves the sequence empty."""

    def begin(self, ledger: Ledger, reuse: Reuse, shift: Shift | None = None) -> Start:
        """Make the sequence hold a start of the prompt, as long as can be had; never its last token. `shift` tells of
        what can be moved first."""

    def fuse(self, ledger: Ledger, fusing: Fusing, tell: Callable[[int], None]) -> Start:
        """Like `begin`, but parts are taken from where they were computed once, which is done now where it was not.
        `tell` is told how many of the prompt's tokens are done with. Raises `Aborted`, `CannotShift`."""

    def evaluate(self, tokens: Sequence[int]) -> None:
        """One step: append a piece of the schedule. Raises `Aborted`."""

    def proven(self, tokens: Sequence[int]) -> bool:
        """False if the step just done, of `tokens`, showed that what `begin` brought back is wrong; it is gone then."""

    def finish(self, ledger: Ledger) -> None:
        """The generation has ended, with this ledger."""

    def clear(self) -> None:
        """Forget the active sequence."""
