"""A model with a prefix memory, taken through what notebooks and disks do to it; every answer must be the cold one."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from native.scenarios.cold import MOST, N_CTX, Answer, Cold, Watched
from native.scenarios.damage import block_files, damage, plant
from numpy.typing import NDArray

from ipyllama.ledger import Ledger
from ipyllama.prefix import PrefixMemory
from ipyllama.prefix.rates import Rate
from ipyllama.prefix.store.writer import close_all
from ipyllama.reply import Usage

Operation = tuple[Any, ...]
"""A name and its arguments: plain values, and none that depends on the operations before it."""
RAM: Final = 64 << 20
TOLERANCE: Final = 1.0
"""Of logits under reuse="token", as docs/prefix-memory.md says."""


class Mismatch(Exception):
    """An answer, or what it cost, is not what it has to be."""


class Slow(Rate):
    """As if the model computed one token a second: everything is worth restoring."""

    def learn(self, amount: float, seconds: float) -> None:
        pass


@dataclass(frozen=True)
class Kind:
    """A model, its cold twin, and blocks of other models."""

    name: str
    path: Path
    cold: Cold
    tokens: tuple[int, int]
    """ids that prompts are made of"""
    longest: int
    """tokens of a prompt's new part"""
    foreign: tuple[bytes, ...] = ()


@cache
def text(tokens: tuple[int, int], salt: int) -> tuple[int, ...]:
    """A text without end; a salt has always the same, so that prompts share their beginnings."""
    draw = random.Random(salt)
    return (1, *(draw.randrange(*tokens) for _ in range(1023)))


class Subject:
    """`points` are the ledgers after every answer: a prompt continues any of them."""

    def __init__(self, kind: Kind, folder: Path, *, slow: bool) -> None:
        self.kind, self.folder, self.slow = kind, folder, slow
        self.points: list[Ledger] = []
        self.whole: set[Ledger] = set()  # those whose answer was not stopped
        self.intact = slow  # nothing of what was computed was evicted or damaged
        self.fresh: Ledger | None = None  # what the live sequence holds now
        self.counts: Counter[str] = Counter()
        self.worst = 0.0  # largest difference of a logit under reuse="token"
        self._open()

    def do(self, operation: Operation) -> None:
        name, *arguments = operation
        _OPERATIONS[name](self, *arguments)

    def close(self) -> None:
        close_all()
        self.model.llm.memory.replies.flush()
        self.model.llm.close()

    # -- what people do -----------------------------------------------------------------------------------

    def ask(self, salt: int, n: int, out: int) -> None:
        """A new prompt."""
        self._answer(Ledger().append_prompt(self._text(salt, n)), out, at_least=0)

    def go_on(self, point: int, salt: int, sizes: tuple[int, ...], out: int) -> None:
        """Continue any point, with one or more prompts that stand side by side."""
        before = self._point(point)
        ledger = before
        for size in sizes:
            ledger = ledger.append_prompt(self._text(salt, size)[1:])
        self._answer(ledger, out, at_least=len(before) - 1 if before in self.whole else 0, before=before)

    def again(self, point: int, out: int) -> None:
        """Ask the same once more."""
        before = self._point(point)
        prompt = Ledger(before.segments[:-1]) if before.segments[-1:] and before.segments[-1].sampled else before
        self._answer(prompt, out, at_least=len(prompt) - 1 if before in self.whole else 0)
        self._replay(prompt, out)

    def edit(self, point: int, which: int, cut: int, salt: int, out: int) -> None:
        """Other words in the middle of a prompt; what followed it is gone."""
        if edited := self._edited(point, which, cut, salt):
            self._answer(edited, out, at_least=0)

    def loosely(self, point: int, which: int, cut: int, salt: int, out: int) -> None:
        """An edit under reuse="token": close to the cold answer, and nothing of it gets into exact ones."""
        if edited := self._edited(point, which, cut, salt):
            ledger = self._fit(edited)
            reply, after, answer = self.model.ask(ledger, out, reuse="token")
            if reply.exact:
                self._compare(ledger, answer)
            self._measure(answer.logits[0], self.kind.cold.ask(ledger).logits[0])
            self.counts["inexact"] += not reply.exact
            self.points.append(after)
            self._replay(ledger, out)
            self.fresh = None

    def stop(self, point: int, salt: int, n: int, events: int) -> None:
        """Stop while the prompt is read, or the answer is written."""
        ledger = self._fit(self._point(point).append_prompt(self._text(salt, n)[1:]))
        reply, after, answer = self.model.ask(ledger, MOST, events)
        self._compare(ledger, answer)
        self.counts[f"stopped: {reply.finish_reason}"] += 1
        self.points.append(after)
        self.fresh = None

    # -- what happens to it -------------------------------------------------------------------------------

    def restart(self) -> None:
        """Another process: nothing is left but the folder."""
        self.close()
        self._open()

    def evict(self, share: float, items: int | None) -> None:
        stats = self.model.llm.memory.stats()
        gone = self.model.llm.memory.reduce_size(int(stats.disk_bytes * share), items)
        self.counts["evicted"] += gone
        self.intact = False

    def ram(self, limit: int) -> None:
        self.model.llm.memory.ram.reduce(limit)

    def damage(self, how: str, which: int, where: int) -> None:
        self.model.llm.memory.flush()
        damage(self.folder, how, which, where)
        self.intact = False

    def plant(self, which: int, where: int) -> None:
        self.model.llm.memory.flush()
        plant(self.folder, list(self.kind.foreign), which, where)
        self.intact = False

    # -- within -------------------------------------------------------------------------------------------

    def _open(self) -> None:
        self.model = Watched(self.kind.path, PrefixMemory(self.folder), RAM)
        if self.slow:
            self.model.llm.memory.rates.prefill = Slow(1.0)
        self.fresh = None

    def _text(self, salt: int, n: int) -> tuple[int, ...]:
        return text(self.kind.tokens, salt)[: max(2, min(n, self.kind.longest))]

    def _point(self, number: int) -> Ledger:
        return self.points[number % len(self.points)] if self.points else Ledger()

    def _edited(self, point: int, which: int, cut: int, salt: int) -> Ledger | None:
        segments = self._point(point).segments
        prompts = [number for number, segment in enumerate(segments) if not segment.sampled]
        if not prompts:
            return None
        number = prompts[which % len(prompts)]
        old = segments[number].tokens
        at = cut % len(old)
        new = (*old[:at], *self._text(salt, len(old) - at + 3)[1:])
        return Ledger(segments[:number]).append_prompt(new)

    def _fit(self, ledger: Ledger) -> Ledger:
        """The context is not what is tested here: what would fill it becomes a short prompt."""
        return ledger if 0 < len(ledger) < N_CTX - MOST else Ledger().append_prompt(self._text(0, 20))

    def _answer(self, ledger: Ledger, out: int, *, at_least: int, before: Ledger | None = None) -> None:
        asked = self._fit(ledger)
        live = before is not None and before == self.fresh
        self.model.llm.memory.flush()  # what waits to be written is nowhere when RAM has no room for it
        reply, after, answer = self.model.ask(asked, out)
        self._compare(asked, answer)
        if not reply.exact:
            raise Mismatch("an exact answer is called inexact")
        self._count(asked, reply.usage, at_least if asked is ledger else 0, live=live and asked is ledger)
        if self.intact and (damaged := self.model.llm.memory.counts.damaged):
            raise Mismatch(f"whole blocks were taken for damaged: {damaged}")
        self.points.append(after)
        self.whole.add(after)
        self.fresh = after

    def _replay(self, ledger: Ledger, out: int) -> None:
        """The same once more, remembered or not."""
        asked = self._fit(ledger)
        tokens = self.model.replay(asked, out)
        if tokens != self.kind.cold.ask(asked).tokens[:out]:
            raise Mismatch(f"after {len(asked)} tokens the remembered reply is {tokens}")
        self.counts["replies"] += 1

    def _compare(self, asked: Ledger, answer: Answer) -> None:
        if difference := answer.differs(self.kind.cold.ask(asked).begins(len(answer.tokens))):
            raise Mismatch(f"after {len(asked)} tokens {difference}")
        self.counts["answers"] += 1

    def _measure(self, row: NDArray[np.uint32], cold: NDArray[np.uint32]) -> None:
        self.worst = max(self.worst, float(np.abs(row.view(np.float32) - cold.view(np.float32)).max()))
        if not self.worst < TOLERANCE:
            raise Mismatch(f"a logit is off by {self.worst:.3g} under token-level reuse")

    def _count(self, asked: Ledger, usage: Usage, at_least: int, *, live: bool) -> None:
        if usage.prompt != len(asked):
            raise Mismatch(f"{usage} does not add up to a prompt of {len(asked)} tokens")
        if usage.computed < 1:
            raise Mismatch(f"{usage}: the last token of a prompt is always computed")
        if self.intact and usage.reused + usage.restored < at_least:
            raise Mismatch(f"{usage}: {at_least} tokens were at hand")
        if live and usage.reused != at_least:
            raise Mismatch(f"{usage}: {at_least} tokens were live")
        for name in ("reused", "restored", "computed"):
            self.counts[name] += getattr(usage, name)


_OPERATIONS: Final[dict[str, Callable[..., None]]] = {
    name: getattr(Subject, name)
    for name in ("ask", "go_on", "again", "edit", "loosely", "stop", "restart", "evict", "ram", "damage", "plant")
}


def blocks_of(kind: Kind, folder: Path) -> tuple[bytes, ...]:
    """Some blocks of this model, to be planted in other models' stores."""
    subject = Subject(kind, folder, slow=True)
    try:
        subject.ask(0, 300, 2)
    finally:
        subject.close()
    return tuple(file.read_bytes() for file in block_files(folder)[:3])
