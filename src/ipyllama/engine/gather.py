"""Jobs that run together, waited for as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ipyllama.engine.job import Job
from ipyllama.errors import Interrupted
from ipyllama.reply import Reply


def gather(jobs: Sequence[Job], show: Callable[[int, int], object] = lambda done, total: None) -> list[Reply]:
    """The replies, in the order of the jobs; `show(done, total)` is called after each.

    Ctrl-C ends them all and raises `Interrupted`, with the reply of the first. What goes wrong with one ends the
    others, too, and is raised.
    """
    replies: list[Reply] = []
    try:
        for job in jobs:
            replies.append(job.result())
            show(len(replies), len(jobs))
    except BaseException as error:
        for job in jobs:
            job.cancel()
        for job in jobs:
            job.wait()
        if isinstance(error, KeyboardInterrupt):
            raise Interrupted(jobs[0].reply) from None
        raise
    return replies
