"""Jobs that run together, waited for as one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from ipyllama.engine.job import Job
from ipyllama.errors import Interrupted
from ipyllama.reply import Event, Reply
from ipyllama.stop import Stop

POLL: Final = 0.02
"""Seconds between two looks at the events."""


def gather(jobs: Sequence[Job], show: Callable[[int, Event], object] = lambda number, event: None) -> list[Reply]:
    """The replies, in the order of the jobs; `show(number, event)` is called for every event of each.

    Ctrl-C ends them all and raises `Interrupted`, with the reply of the first. What goes wrong with one ends the
    others, too, and is raised.
    """
    with Stop() as stop:
        stop.watch(*jobs)
        try:
            while sum(_shown(number, job, show) for number, job in enumerate(jobs)) < len(jobs):
                if stop.pressed:
                    raise KeyboardInterrupt
                time.sleep(POLL)
            return [job.result() for job in jobs]
        except BaseException as error:
            for job in jobs:
                job.cancel()
            for job in jobs:
                job.wait()
            for number, job in enumerate(jobs):
                _shown(number, job, show)
            if isinstance(error, KeyboardInterrupt):
                raise Interrupted(jobs[0].reply) from None
            raise


def _shown(number: int, job: Job, show: Callable[[int, Event], object]) -> bool:
    """Whether a job has ended; its events so far are handed to `show`."""
    ended = job.done  # before its events are taken: none can come after them
    for event in job.events():
        show(number, event)
    return ended
