"""A task: what the engine's thread does beside answers, such as embedding texts."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from ipyllama.engine.job import STOP_PATIENCE
from ipyllama.errors import Interrupted
from ipyllama.stop import Nudge, Stop

T = TypeVar("T")
Show = Callable[[int, int], object]
"""Called as `show(done, total)`."""


class Task(Generic[T]):
    """`result()` waits for it, `cancel()` ends it early; both are safe from any thread."""

    def __init__(self, on_cancel: Callable[[Task[T]], None]) -> None:
        self._on_cancel = on_cancel
        self._events: queue.SimpleQueue[tuple[int, int] | Nudge | None] = queue.SimpleQueue()
        self._done = threading.Event()
        self._outcome: Callable[[], T] | None = None
        self.cancelled = False

    # -- the caller's side --------------------------------------------------------------------------------

    def result(self, show: Show = lambda done, total: None) -> T:
        """What it gives, or what went wrong. Ctrl-C ends it and raises `Interrupted`."""
        with Stop() as stop:
            stop.watch(self)
            try:
                while (event := self._events.get()) is not None:
                    if isinstance(event, Nudge) or stop.pressed:
                        raise KeyboardInterrupt
                    show(*event)
            except BaseException as error:  # Ctrl-C, or `show` failed
                self.cancel()
                self._done.wait(STOP_PATIENCE)
                if isinstance(error, KeyboardInterrupt):
                    raise Interrupted from None
                raise
        assert self._outcome is not None
        return self._outcome()

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def nudge(self) -> None:
        self._events.put(Nudge())

    def cancel(self) -> None:
        """Ask it to end now; `result` then raises `Aborted`, or `ClosedError` where the model was closed."""
        self.cancelled = True
        self._on_cancel(self)

    # -- the worker's side --------------------------------------------------------------------------------

    def emit(self, done: int, total: int) -> None:
        """Tell how far it is."""
        self._events.put((done, total))

    def finish(self, value: T) -> None:
        self._end(lambda: value)

    def fail(self, error: BaseException) -> None:
        def raise_it() -> T:
            raise error

        self._end(raise_it)

    def _end(self, outcome: Callable[[], T]) -> None:
        self._outcome = outcome
        self._done.set()
        self._events.put(None)
