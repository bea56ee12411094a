"""A job: something the engine was asked for, on its way from the queue to its reply."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from ipyllama.errors import Interrupted
from ipyllama.reply import Event, Finished, Prefill, Reply
from ipyllama.stop import Nudge, Stop

STOP_PATIENCE: Final = 30.0
"""Seconds to wait for a cancelled step before giving the prompt back all the same (a GPU step cannot be cut short)."""
STILL: Final = 1.0
"""Seconds in which nothing comes, after which `run` shows again that a prompt has begun."""


class Job:
    """Iterate over it for the events, or call `result()`. `cancel()` is safe from any thread."""

    def __init__(self, on_cancel: Callable[[Job], None]) -> None:
        self._on_cancel = on_cancel
        self._events: queue.SimpleQueue[Event | Nudge | None] = queue.SimpleQueue()
        self._done = threading.Event()
        self._listeners: list[Callable[[], None]] = []
        self._reply: Reply | None = None
        self._error: BaseException | None = None
        self.cancelled = False
        self.submitted = time.monotonic()

    # -- the caller's side --------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Event]:
        """Events as they come, the last a `Finished`; raises what went wrong.

        Ctrl-C ends the job, gives out what is left of its events, and raises `Interrupted`.
        """
        interrupted = False
        while True:
            with Stop() as stop:
                stop.watch(self)
                try:
                    event = self._next()
                except KeyboardInterrupt:
                    interrupted = True
                    self._end_early()
                    continue
            if event is None:
                break
            try:
                yield event
            except BaseException:  # the caller left the loop: nobody wants the rest
                with Stop() as stop:
                    stop.watch(self)
                    self.cancel()
                raise
        self._outcome(interrupted)

    def run(self, show: Callable[[Event], None]) -> Reply:
        """Hand every event to `show` and return the reply. Ctrl-C works wherever it falls, also inside `show`.

        The first piece of a long prompt may take a while: `show` gets a `Prefill` with each second of it.
        """
        interrupted = False
        event: Event | None = None
        with Stop() as stop:
            stop.watch(self)
            try:
                while not stop.pressed and (event := self._after(event)) is not None:
                    show(event)
                interrupted = stop.pressed
            except KeyboardInterrupt:
                interrupted = True
            except BaseException:  # `show` failed: nobody sees the rest
                self.cancel()
                raise
            if interrupted:
                self._end_early()
                self._close_after(show)
        return self._outcome(interrupted)

    def result(self) -> Reply:
        """Wait for the reply."""
        return self.run(lambda event: None)

    def cancel(self) -> None:
        """Ask the job to end now; its reply keeps what was generated and says "interrupted"."""
        self.cancelled = True
        self._on_cancel(self)

    def events(self) -> list[Event]:
        """The events that have come since they were last asked for, without waiting."""
        found: list[Event] = []
        while not self._events.empty():
            event = self._events.get()
            if event is None:
                self._events.put(None)
                break
            if not isinstance(event, Nudge):
                found.append(event)
        return found

    def nudge(self) -> None:
        self._events.put(Nudge())

    def listen(self, wake: Callable[[], None]) -> None:
        """Have `wake` called after each event that comes, and at the end: on the worker's thread, so it must be quick
        and not fail."""
        self._listeners.append(wake)

    def wait(self) -> None:
        """Wait until a cancelled job has ended, but no longer than `STOP_PATIENCE` seconds."""
        self._done.wait(STOP_PATIENCE)

    @property
    def reply(self) -> Reply | None:
        """The reply, None before the job has ended or where it failed."""
        return self._reply

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def _end_early(self) -> None:
        self.cancel()
        self.wait()

    def _close_after(self, show: Callable[[Event], None]) -> None:
        """Show how it ended: an event may have been lost where Ctrl-C fell, the reply is not."""
        for event in self.events():
            if not isinstance(event, Finished):
                show(event)
        if self._reply is not None:
            show(Finished(self._reply))

    def _after(self, last: Event | None) -> Event | None:
        """The next event; where a prompt has just begun and nothing comes for a while, the last one, so much later."""
        if not isinstance(last, Prefill) or last.done > last.start:
            return self._next()
        try:
            return self._next(STILL)
        except queue.Empty:
            return replace(last, seconds=last.seconds + STILL)

    def _next(self, patience: float | None = None) -> Event | None:
        """The next event, waited for; None at the end, however often it is asked for. Raises `queue.Empty` after
        `patience` seconds, and `KeyboardInterrupt` where a nudge comes first."""
        while isinstance(event := self._events.get(timeout=patience), Nudge):
            if not self.cancelled:
                raise KeyboardInterrupt
        if event is None:
            self._events.put(None)
        return event

    def _outcome(self, interrupted: bool) -> Reply:
        """The reply of a job that has ended, or what went wrong."""
        if self._error is not None:
            raise self._error
        if interrupted:
            raise Interrupted(self._reply)
        assert self._reply is not None
        return self._reply

    # -- the worker's side --------------------------------------------------------------------------------

    def emit(self, event: Event) -> None:
        self._put(event)

    def finish(self, reply: Reply) -> None:
        self._reply = reply
        self.emit(Finished(reply))
        self._end()

    def fail(self, error: BaseException) -> None:
        self._error = error
        self._end()

    def _end(self) -> None:
        self._done.set()
        self._put(None)

    def _put(self, event: Event | None) -> None:
        self._events.put(event)
        for wake in tuple(self._listeners):
            wake()
