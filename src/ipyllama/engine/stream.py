"""A stream: the text of an answer as it is written, for a loop that waits and for one that awaits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Generic, Self, TypeVar, cast

from ipyllama.engine.job import STOP_PATIENCE, Job
from ipyllama.errors import Interrupted
from ipyllama.reply import Delta, Event, Reply
from ipyllama.stop import Stop

R = TypeVar("R", bound=Reply)


class Stream(Generic[R]):
    """`for piece in stream` or `async for piece in stream`: pieces of text, always whole characters.

    It is asked for when the loop begins. Leaving the loop, by whatever way, ends the answer; after `with stream` or
    `async with stream` it has ended, and `reply` is what there is. Both loops raise what goes wrong. In the first,
    Ctrl-C raises `Interrupted`; in the second, a cancelled task ends the answer, and the event loop is never blocked.
    """

    def __init__(self, start: Callable[..., Job], *, slow_start: bool = False) -> None:
        """`slow_start`: `start` may wait for the model, so that it cannot be called in an event loop. It is then given
        `wait`, a function that waits for a job whose reply it needs first."""
        self._start = partial(start, wait=self._wait_for) if slow_start else start
        self._slow_start = slow_start
        self._job: Job | None = None
        self._first: Job | None = None
        self._cancelled = False

    @property
    def reply(self) -> R | None:
        """The whole answer, also one that was ended early; None until it has ended, or where it failed."""
        return cast("R | None", self._job.reply) if self._job else None

    def cancel(self) -> None:
        """End the answer now, from any thread; a loop over it gets what is there and ends. What has not begun never
        does."""
        self._cancelled = True
        for job in (self._first, self._job):
            if job is not None:
                job.cancel()

    # An iterator is made for one loop, and only the loop holds it: it is closed when that is left, though a traceback
    # may keep all variables alive.

    def __iter__(self) -> Iterator[str]:
        job = self._begin()
        if job is None:
            return
        try:
            for event in job:
                if isinstance(event, Delta):
                    yield event.text
        except KeyboardInterrupt:  # wherever it fell
            with Stop() as stop:
                stop.watch(job)
                job.cancel()
                job.wait()
            raise Interrupted(job.reply) from None

    async def __aiter__(self) -> AsyncIterator[str]:
        job = await self._abegin()
        if job is None:
            return
        reader = _Reader(job)
        try:
            while events := await reader.events():
                for event in events:
                    if isinstance(event, Delta):
                        yield event.text
        except BaseException as error:
            job.cancel()
            if not isinstance(error, GeneratorExit):  # it was left, perhaps with its event loop: nothing can be awaited
                await reader.end()
            raise
        job.result()

    async def aresult(self) -> R:
        """Wait for the whole answer without blocking the event loop. Cancelling the task ends the answer.

        Raises what goes wrong, and `asyncio.CancelledError` where it was cancelled before it began.
        """
        async for _ in self:
            pass
        if self._job is None:
            raise asyncio.CancelledError
        return cast("R", self._job.result())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.cancel()
        if self._job is not None:
            self._job.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.cancel()
        if self._job is not None:
            await _Reader(self._job).end()

    def __repr__(self) -> str:
        if self._job is None:
            return f"<Stream: {'cancelled' if self._cancelled else 'not begun'}>"
        return f"<Stream: {'ended' if self._job.done else 'running'}>"

    def _begin(self) -> Job | None:
        if self._job is None and not self._cancelled:
            try:
                self._job = self._start()
            except Interrupted:
                if not self._cancelled:
                    raise
            if self._job is not None and self._cancelled:  # in the meantime
                self._job.cancel()
        return self._job

    def _wait_for(self, job: Job) -> Reply:
        self._first = job
        if self._cancelled:
            job.cancel()
        return job.result()

    async def _abegin(self) -> Job | None:
        if not self._slow_start:
            return self._begin()
        try:
            return await asyncio.shield(asyncio.to_thread(self._begin))
        except asyncio.CancelledError:  # what the thread waits for ends, and what it begins
            self.cancel()
            raise


class _Reader:
    """Waits in an event loop for what a job tells."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._loop, self._news = asyncio.get_running_loop(), asyncio.Event()
        job.listen(self._wake)

    async def events(self) -> list[Event]:
        """What has come since the last call, waited for; nothing at the end."""
        while True:
            self._news.clear()
            ended = self._job.done  # before the events are taken: none can come after them
            if (events := self._job.events()) or ended:
                return events
            await self._news.wait()

    async def end(self) -> None:
        """Wait until a cancelled job has ended, but no longer than `STOP_PATIENCE` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_PATIENCE):
                while not self._job.done:
                    await self._news.wait()
                    self._news.clear()

    def _wake(self) -> None:
        with suppress(RuntimeError):  # the event loop was closed: nobody waits
            self._loop.call_soon_threadsafe(self._news.set)
