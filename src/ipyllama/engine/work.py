"""Work that waits for the engine, and whose turn it is."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ipyllama.engine.job import Job
from ipyllama.engine.task import Task
from ipyllama.reply import Queued


@dataclass(slots=True, eq=False)
class Work:
    """What the worker does in one go, for one caller."""

    caller: object
    """any object that can be referred to weakly: a conversation, say"""
    jobs: tuple[Job | Task[Any], ...]
    run: Callable[[], None]
    drop: Callable[[], None]
    """what becomes of it when it is cancelled while it waits"""
    abort: Callable[[], None]
    """ends the native step that it is in"""
    told: int = 0
    """the place in the queue that its jobs were told last"""

    @property
    def cancelled(self) -> bool:
        """Whether nobody wants any of it."""
        return all(job.cancelled for job in self.jobs)

    def tell(self, place: int) -> None:
        """Tell its jobs how many are ahead, where that has changed."""
        if place == self.told:
            return
        self.told = place
        for job in self.jobs:
            if isinstance(job, Job):
                job.emit(Queued(place))


class FairQueue:
    """Of the callers with work that waits, the one that was served least recently comes next; what one caller wants
    is done in order. Guarded by its owner's lock."""

    def __init__(self) -> None:
        self._waiting: list[Work] = []  # in order of arrival
        self._served: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()
        self._n_served = 0

    def put(self, work: Work) -> None:
        self._waiting.append(work)

    def find(self, job: Job | Task[Any]) -> Work | None:
        """The work of a job that waits."""
        return next((work for work in self._waiting if job in work.jobs), None)

    def has_others(self, caller: object) -> bool:
        """Whether anyone but this caller waits."""
        return any(work.caller is not caller for work in self._waiting)

    def remove(self, work: Work) -> bool:
        """False if it was not there."""
        with suppress(ValueError):
            self._waiting.remove(work)
            return True
        return False

    def take(self) -> Work | None:
        """What is to be done next, None where nothing waits."""
        while waiting := self.in_turn():
            if self.remove(waiting[0]):
                self._n_served += 1
                self._served[waiting[0].caller] = self._n_served
                return waiting[0]
        return None

    def in_turn(self) -> list[Work]:
        """Everything that waits, in the order in which it will be done if nothing else comes."""
        found: list[tuple[int, int, int, Work]] = []
        rounds, arrived = Counter[int](), dict[int, int]()
        for number, work in enumerate(self._waiting):
            key = id(work.caller)
            first = arrived.setdefault(key, number)
            found.append((rounds[key], self._served.get(work.caller, 0), first, work))
            rounds[key] += 1
        return [work for *_, work in sorted(found, key=lambda each: each[:3])]

    def __len__(self) -> int:
        return len(self._waiting)
