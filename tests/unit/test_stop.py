"""Ctrl-C ends what is waited for, wherever it falls, and does what it did before at any other time."""

from __future__ import annotations

import asyncio
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ipyllama import stop as module
from ipyllama.rag.packages import needed
from ipyllama.stop import Nudge, Stop, held_back


class Work:
    """Something that is waited for."""

    def __init__(self) -> None:
        self.done = False
        self.events: queue.SimpleQueue[Nudge] = queue.SimpleQueue()

    def nudge(self) -> None:
        self.events.put(Nudge())


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(Stop, "_last", float("-inf"))
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press() -> None:
    signal.raise_signal(signal.SIGINT)


def test_a_press_while_something_is_waited_for_raises_nothing() -> None:
    work = Work()
    with Stop() as stop:
        stop.watch(work)
        for _ in range(5):
            press()
        assert stop.pressed
        assert isinstance(work.events.get(timeout=1), Nudge)
        work.done = True
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_press_before_and_after_interrupts() -> None:
    with pytest.raises(KeyboardInterrupt), Stop():
        press()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    work = Work()
    with Stop() as stop:
        stop.watch(work)
        work.done = True
        with pytest.raises(KeyboardInterrupt):
            press()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_is_submitted_inside_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A press between submitting and waiting is seen by who waits."""
    first, second = Work(), Work()
    with Stop() as outer:
        Stop.watch_here(first)
        press()
        with Stop() as inner:
            assert inner is outer
            inner.watch(first)
            assert inner.pressed
        first.done = True
        monkeypatch.setattr(Stop, "_last", float("-inf"))
        Stop.watch_here(second)
        assert not outer.pressed  # that was about the first
        press()
        assert outer.pressed
        second.done = True
    Stop.watch_here(Work())  # nothing is in force: no harm


def test_the_same_press_again_does_not_reach_what_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """In ipykernel, where a press after the cell is dangerous: our handler stays until the kernel sets its own."""
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    work = Work()
    with Stop() as stop:
        stop.watch(work)
        press()
        work.done = True
        press()
    press()
    with Stop() as stop:  # what is waited for next can be ended at once
        stop.watch(following := Work())
        press()
        assert stop.pressed
        following.done = True
    Stop._last = float("-inf")
    with pytest.raises(KeyboardInterrupt):
        press()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_where_nothing_comes_of_it_the_next_press_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DEAF", -1.0)
    with Stop() as stop:
        stop.watch(Work())
        press()
        with pytest.raises(KeyboardInterrupt):
            press()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("own", [signal.SIG_IGN, lambda number, frame: None])
def test_a_program_that_has_a_handler_keeps_it(own: Callable[..., None] | signal.Handlers) -> None:
    signal.signal(signal.SIGINT, own)
    with Stop() as stop:
        stop.watch(Work())
        press()
        assert signal.getsignal(signal.SIGINT) is own
        assert not stop.pressed


def test_under_an_event_loop_both_hear_it() -> None:
    """Its handler cannot interrupt a function that is not awaited; ours can."""
    heard = []
    signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))

    async def main() -> bool:
        work = Work()
        with Stop() as stop:
            stop.watch(work)
            press()
            work.done = True
            return stop.pressed

    loop = asyncio.new_event_loop()
    try:
        assert loop.run_until_complete(main())
    finally:
        loop.close()
    assert heard == [signal.SIGINT]


def test_other_threads_are_left_alone() -> None:
    found: list[object] = []

    def run() -> None:
        with Stop() as stop:
            stop.watch(Work())
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]


def test_a_press_is_held_back() -> None:
    steps = []

    def work() -> None:
        with held_back():
            press()
            press()
            steps.append("all of it")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert steps == ["all of it"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with held_back():
        pass
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with held_back():
        press()
    thread = threading.Thread(target=held_back().__enter__)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_package_is_imported_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "large_package.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\nend = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        needed("large_package", "a test")
    assert needed("large_package", "a test").end == 1
