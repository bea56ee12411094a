"""Streams, waited for: what they give, that leaving one ends it, and what keeps one from hanging."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
from native.jobs import Gate, endless, options, places, prompt

from ipyllama.chat import Turn
from ipyllama.engine import Job, Stream
from ipyllama.errors import BadOption, Interrupted, PromptTooLong, UnknownTurn
from ipyllama.llm import LLM
from ipyllama.reply import Delta, Reply

Load = Callable[..., LLM]
LONG = {"max_tokens": 100_000, "temperature": 0}


def ended(stream: Stream[Reply]) -> Reply:
    """The reply of a stream that was ended early, waited for."""
    assert stream._job is not None
    return stream._job.result()


def test_the_pieces_are_those_of_the_job(llm: LLM) -> None:
    chosen = {"max_tokens": 80, "seed": 4, "temperature": 1.5}
    deltas = [event.text for event in llm.start("hello", **chosen) if isinstance(event, Delta)]
    stream = llm.stream("hello", **chosen)
    assert stream.reply is None
    assert list(stream) == deltas
    assert stream.reply.tokens == llm.complete("hello", **chosen).tokens
    assert list(stream) == [], "its text was given out"


def test_a_chat_streams_turns(load: Load) -> None:
    llm = load("llama")
    chat = llm.chat()
    first = chat.ask("One?", max_tokens=8, name="first")
    stream = chat.stream("Two?", max_tokens=8)
    text = "".join(stream)
    assert isinstance(stream.reply, Turn)
    assert (stream.reply.text, stream.reply.parent) == (text, first)
    assert chat.head is stream.reply
    branch = first.stream("Three?", max_tokens=8)
    assert "".join(branch) == branch.reply.text
    assert branch.reply.parent == first
    assert len(chat.all_turns) == 3


def test_it_continues_from_the_head_of_when_it_was_made(load: Load) -> None:
    chat = load("llama").chat()
    streams = [chat.stream(f"Number {number}?", max_tokens=4) for number in range(2)]
    for stream in streams:
        list(stream)
    assert [stream.reply.parent for stream in streams] == [None, None]


def test_nothing_is_asked_before_the_loop(llm: LLM, gate: Gate) -> None:
    stream = llm.stream("hello", **LONG)
    assert llm.n_busy == 1, "the gate"
    stream.cancel()
    assert list(stream) == []
    assert (llm.n_busy, stream.reply) == (1, None)


def test_leaving_the_loop_ends_it(llm: LLM) -> None:
    """Though there is a name for the stream."""
    stream = llm.stream("go", **LONG)
    for piece in stream:
        assert piece
        break
    assert ended(stream).finish_reason == "interrupted"
    assert llm.complete("hello", max_tokens=2).finish_reason == "length"


def test_an_error_in_the_loop_ends_it(llm: LLM) -> None:
    """Though a traceback, which notebooks keep, holds all variables."""

    def fail() -> None:
        for _ in stream:
            raise ZeroDivisionError

    stream = llm.stream("go", **LONG)
    with pytest.raises(ZeroDivisionError) as caught:
        fail()
    assert ended(stream).finish_reason == "interrupted"
    assert caught.tb is not None


def test_after_with_it_has_ended(load: Load) -> None:
    chat = load("llama", n_ctx=16384).chat()
    with chat.stream("go", **LONG) as stream:
        pieces = iter(stream)  # a loop that is not left
        next(pieces)
    assert stream.reply.finish_reason == "interrupted"
    assert chat.head is stream.reply


def test_cancel_ends_the_loop_with_what_is_there(llm: LLM) -> None:
    stream, text = llm.stream("go", **LONG), ""
    for piece in stream:
        text += piece
        stream.cancel()
    assert stream.reply.text == text
    assert stream.reply.finish_reason == "interrupted"


def test_ctrl_c_while_it_waits(llm: LLM, gate: Gate) -> None:
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(Interrupted) as caught:
        list(llm.stream("go", **LONG))
    assert caught.value.reply.finish_reason == "interrupted"


def test_ctrl_c_wherever_it_falls(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the stream's own lines, too: the class that it tells pieces by is asked then."""
    chat = load("llama", n_ctx=16384).chat()

    class Strike(type):
        def __instancecheck__(cls, event: object) -> bool:
            if isinstance(event, Delta):
                signal.raise_signal(signal.SIGINT)
            return False

    class Struck(metaclass=Strike):
        pass

    monkeypatch.setattr("ipyllama.engine.stream.Delta", Struck)
    with pytest.raises(Interrupted) as caught:
        list(chat.stream("go", **LONG))
    assert chat.head is caught.value.reply


def test_what_goes_wrong_is_raised(load: Load) -> None:
    llm = load("llama", n_ctx=256)
    for _ in range(2):
        with pytest.raises(PromptTooLong):
            list(llm.stream("x" * 5000))
    with pytest.raises(BadOption):
        list(llm.stream("x", temprature=1))
    with pytest.raises(UnknownTurn):
        llm.chat().stream("x", after="nowhere")


def test_an_unfinished_one_ends_when_it_is_collected(llm: LLM) -> None:
    stream = llm.stream("go", **LONG)
    pieces = iter(stream)
    next(pieces)
    job = stream._job
    cycle: list[object] = [pieces, stream]
    cycle.append(cycle)
    del pieces, stream, cycle
    gc.collect()
    assert job.result().finish_reason == "interrupted"


def test_the_collector_may_cancel_under_the_engines_lock(llm: LLM, gate: Gate) -> None:
    """It runs wherever memory is asked for: on any thread, in any line."""
    waiting, running = endless(llm), llm._engine._running.jobs[0]

    def collect() -> None:
        with llm._engine._lock:
            for job in (waiting, running):
                job.cancel()

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    assert waiting.result().finish_reason == "interrupted"


@pytest.mark.parametrize("begin", ["", "next(iter(stream))", "kept = iter(stream); next(kept)"])
def test_one_that_was_left_does_not_hold_the_exit(tiny: Callable[[str], os.PathLike[str]], begin: str) -> None:
    code = f"""
import ipyllama
llm = ipyllama.load({str(tiny("llama"))!r}, n_ctx=16384, n_threads=1, cache=None)
stream = llm.stream("go", max_tokens=100_000, temperature=0)
{begin}
print("left")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("left\n", "")


# -- who is next ----------------------------------------------------------------------------------------------


@pytest.fixture
def order(llm: LLM) -> tuple[list[str], Callable[..., Job]]:
    """What was done, and a way to ask for it."""
    done: list[str] = []

    def submit(name: str, caller: object | None = None) -> Job:
        def wrap(reply: Reply, ledger: object) -> Reply:
            done.append(name)
            return reply

        return llm.generate(prompt(llm, name), options(max_tokens=1), wrap=wrap, caller=caller)

    return done, submit


def test_callers_take_turns_and_are_told_their_place(llm: LLM, gate: Gate, order) -> None:
    """A running plain completion is ahead of all; then two chats and another completion."""
    done, submit = order
    one, two = llm.chat(), llm.chat()
    jobs = [
        submit(name, caller) for name, caller in (("a1", one), ("a2", one), ("a3", one), ("b1", two), ("plain", None))
    ]
    gate.open.set()
    told = [places(list(job)) for job in jobs]
    assert done == ["a1", "b1", "plain", "a2", "a3"]
    assert told == [[1], [2, 3, 4, 3, 2, 1], [3, 4, 5, 4, 3, 2, 1], [2, 1], [3, 2, 1]]


def test_a_chat_that_asks_much_does_not_keep_another_waiting(llm: LLM, gate: Gate) -> None:
    """Through the public way: the fourth caller is served after one turn of each other."""
    many, one = llm.chat(name="many"), llm.chat(name="one")
    jobs = [many.start(f"{number}", max_tokens=1, after=None) for number in range(4)]
    jobs.append(one.start("me too", max_tokens=1))
    jobs.append(llm.start("and me", max_tokens=1))
    assert [places(job.events()) for job in jobs] == [[1], [2, 3, 4], [3, 4, 5], [4, 5, 6], [2], [3]]
    gate.open.set()
    for job in jobs:
        job.result()
    assert [turn.message for turn in many.all_turns] == ["0", "1", "2", "3"], "its own in order"
