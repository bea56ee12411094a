"""Ctrl-C while something is waited for: it ends that, and cannot fall between two steps of ending it."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, ClassVar, Final, Protocol, Self

DEAF: Final = 3.0
"""Seconds after a Ctrl-C that has had no effect (in a display that hangs, say) from which on it interrupts anything."""
IMPATIENCE: Final = 0.5
"""Seconds after a Ctrl-C in which another one, when there is nothing left to end, is taken for the same, pressed again.
ipykernel can lose a cell's reply, or end, where one falls just after the cell."""


class Waited(Protocol):
    """What somebody waits for."""

    @property
    def done(self) -> bool: ...

    def nudge(self) -> None:
        """Wake whoever waits, to look at what was pressed. Called from a signal handler: it takes no lock."""


class Nudge:
    """What `Waited.nudge` puts among events, to wake whoever waits for the next one."""


class Stop:
    """`with Stop(): submit(...).result()`: while something that was submitted here has not ended, Ctrl-C raises nothing
    wherever it happens to fall; it is noted, and who waits is woken to end it in an orderly way.

    At any other time Ctrl-C does what it did before. In a block inside another one, the outer one is in force. On
    threads other than the main one, where Python does not deliver signals, it does nothing; so it does where a program
    has a handler of its own, unless that is an event loop's, which cannot interrupt a function that is not awaited.
    """

    _in_force: ClassVar[Stop | None] = None
    _last: ClassVar[float] = float("-inf")  # when Ctrl-C had an effect

    def __init__(self) -> None:
        self._watched: tuple[Waited, ...] = ()
        self._pressed: float | None = None
        self._before: Any = None

    def __enter__(self) -> Self | Stop:
        if threading.current_thread() is not threading.main_thread():
            return self
        if Stop._in_force is not None:
            return Stop._in_force
        self._before = signal.getsignal(signal.SIGINT)
        if isinstance(left := getattr(self._before, "__self__", None), Stop):
            self._before = left._before
        if self._before is signal.default_int_handler or (callable(self._before) and _in_event_loop()):
            signal.signal(signal.SIGINT, self._press)  # first: what is said to be in force is
            Stop._in_force = self
        return self

    def __exit__(self, *exception: object) -> None:
        if Stop._in_force is self and not (self.pressed and "ipykernel" in sys.modules):
            self._give_back()
        elif Stop._in_force is self:  # the kernel sets its own handler when the cell has ended
            Stop._in_force = None

    @property
    def pressed(self) -> bool:
        """Whether Ctrl-C came while what is watched had not ended."""
        return self._pressed is not None

    def watch(self, *waited: Waited) -> None:
        """From now on Ctrl-C is about these, too."""
        before = tuple(each for each in self._watched if not each.done)
        if not before:
            self._pressed = None
        self._watched = (*before, *(each for each in waited if each not in before))

    @classmethod
    def watch_here(cls, *waited: Waited) -> None:
        """`watch` in the block that is in force on this thread, if there is one."""
        if cls._in_force is not None and threading.current_thread() is threading.main_thread():
            cls._in_force.watch(*waited)

    def _press(self, number: int, frame: FrameType | None) -> None:
        now, waited = time.monotonic(), [each for each in self._watched if not each.done]
        deaf = self._pressed is not None and now - self._pressed > DEAF
        if not waited and now - Stop._last < IMPATIENCE:
            Stop._last = now
            return
        if deaf or not waited:
            self._give_back()
            self._before(number, frame)
            return
        self._pressed, Stop._last = self._pressed or now, now
        for each in waited:
            each.nudge()
        if self._before is not signal.default_int_handler:
            self._before(number, frame)

    def _give_back(self) -> None:
        Stop._in_force = None
        if signal.getsignal(signal.SIGINT) == self._press:
            signal.signal(signal.SIGINT, self._before)


@contextmanager
def held_back() -> Iterator[None]:
    """Ctrl-C waits until this block has ended: for what would be left half done, or would lose it."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    pressed: list[tuple[int, FrameType | None]] = []

    def note(number: int, frame: FrameType | None) -> None:
        pressed.append((number, frame))

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if pressed:
            before(*pressed[0])


def _in_event_loop() -> bool:
    with suppress(RuntimeError):
        return asyncio.get_running_loop() is not None
    return False
