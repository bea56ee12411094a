"""Whose turn it is: callers take turns, and nobody waits for more than one turn of each other caller."""

from __future__ import annotations

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipyllama.engine import Job
from ipyllama.engine.work import FairQueue, Work
from ipyllama.reply import Queued


class Caller:
    """A name that can be referred to weakly."""

    def __init__(self, name: str) -> None:
        self.name = name


CALLERS = {name: Caller(name) for name in "abc"}


def work(name: str) -> Work:
    return Work(CALLERS[name], (Job(lambda job: None),), lambda: None, lambda: None, lambda: None)


def filled(names: str) -> tuple[FairQueue, list[Work]]:
    queue, works = FairQueue(), [work(name) for name in names]
    for each in works:
        queue.put(each)
    return queue, works


def served(queue: FairQueue, n: int | None = None) -> str:
    taken = [queue.take() for _ in range(len(queue) if n is None else n)]
    return "".join(each.caller.name for each in taken)


@pytest.mark.parametrize(
    ("arrived", "order"), [("aaa", "aaa"), ("aaab", "abaa"), ("aaabbc", "abcaba"), ("baab", "baba"), ("", "")]
)
def test_callers_take_turns(arrived: str, order: str) -> None:
    assert served(filled(arrived)[0]) == order


def test_one_that_comes_back_does_not_go_first() -> None:
    """As a program that asks, waits for the answer and asks again: the others have their turn in between."""
    queue, _ = filled("abbb")
    order = ""
    for _ in range(4):
        order += served(queue, 1)
        if order.endswith("a"):
            queue.put(work("a"))
    assert order == "abab"


@given(st.lists(st.sampled_from(["put a", "put b", "put c", "take", "remove"]), max_size=40))
def test_the_one_served_least_recently_is_next(steps: list[str]) -> None:
    """Against the rule in its words, step by step; and what was foretold is what comes."""
    queue, waiting, last = FairQueue(), list[Work](), dict[str, int]()
    for now, step in enumerate(steps, start=1):
        if step.startswith("put"):
            waiting.append(work(step[-1]))
            queue.put(waiting[-1])
        elif step == "remove" and waiting:
            assert queue.remove(waiting.pop(0))
        elif step == "take":
            foretold, taken = queue.in_turn(), queue.take()
            assert taken is (foretold[0] if foretold else None)
            if taken is None:
                continue
            name = taken.caller.name
            least = min(last.get(each.caller.name, 0) for each in waiting)
            assert last.get(name, 0) == least
            assert taken is next(each for each in waiting if each.caller.name == name), "in order"
            waiting.remove(taken)
            last[name] = now
        assert sorted(map(id, queue.in_turn())) == sorted(map(id, waiting))
    rest = queue.in_turn()
    assert [queue.take() for _ in rest] == rest


def test_a_place_is_told_once() -> None:
    job = Job(lambda job: None)
    waiting = Work(CALLERS["a"], (job,), lambda: None, lambda: None, lambda: None)
    for place in (2, 2, 3, 1, 1):
        waiting.tell(place)
    assert job.events() == [Queued(2), Queued(3), Queued(1)]


def test_callers_are_forgotten_when_they_are_gone() -> None:
    queue = FairQueue()
    for number in range(5):
        queue.put(Work(Caller(str(number)), (), lambda: None, lambda: None, lambda: None))
        assert queue.take() is not None
    gc.collect()
    assert len(queue._served) == 0
