"""Ending early: cancel, Ctrl-C, close, at any moment; what was computed and written is kept."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import pytest
from native.jobs import Gate, endless, options, places, prompt

from ipyllama.errors import ClosedError, Interrupted
from ipyllama.ledger import Ledger
from ipyllama.llm import LLM
from ipyllama.reply import Delta, Event, Finished, Prefill, Reply

Load = Callable[..., LLM]


def test_cancelled_while_it_waits_a_job_ends_at_once(llm: LLM, gate: Gate) -> None:
    first, second = endless(llm), llm.start("after", max_tokens=2)
    first.cancel()
    reply = first.result()  # the gate is still shut
    assert (reply.finish_reason, reply.text, reply.tokens, reply.usage.generated) == ("interrupted", "", (), 0)
    first.cancel()  # again, and after its end
    assert llm.n_busy == 2
    gate.open.set()
    events = list(second)
    assert places(events) == [2, 1]
    assert second.result().finish_reason == "length"


def test_ctrl_c_while_it_waits_gives_the_prompt_back_at_once(llm: LLM, gate: Gate) -> None:
    waiting = endless(llm)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(Interrupted) as caught:
        waiting.result()
    assert not gate.open.is_set()
    assert caught.value.reply.finish_reason == "interrupted"


def test_cancelled_in_prefill_it_keeps_whole_pieces_for_the_next(llm: LLM) -> None:
    ledger = Ledger().append_prompt([1, *(262 + n % 94 for n in range(16_000))])
    job = llm.generate(ledger, options(max_tokens=3))
    for event in job:
        if isinstance(event, Prefill) and event.done == 512:
            job.cancel()
    reply = job.result()
    assert (reply.finish_reason, reply.tokens, reply.text) == ("interrupted", (), "")
    kept = llm.n_live
    assert 512 <= kept < 16_000
    assert kept % 256 == 0
    assert reply.usage.computed == kept
    again = llm.generate(ledger.head(kept + 300), options(max_tokens=3)).result()
    assert again.usage.reused == kept
    assert again.usage.prompt == kept + 300


def test_cancelled_while_it_writes_it_keeps_what_was_written(llm: LLM) -> None:
    job = endless(llm)
    shown = ""
    for event in job:
        if isinstance(event, Delta):
            shown += event.text
            if len(shown) > 20:
                job.cancel()
    reply = job.result()
    assert reply.finish_reason == "interrupted"
    assert reply.text == shown
    assert 20 < len(reply.tokens) < 16_000
    follow_up = prompt(llm, "go").append_sampled(reply.tokens).append_prompt([300, 301])
    assert llm.generate(follow_up, options(max_tokens=1)).result().usage.reused >= len(follow_up) - 3


def test_ctrl_c_wherever_it_falls_keeps_the_partial_reply(llm: LLM) -> None:
    seen: list[Event] = []
    strikes = [signal.SIGINT]

    def show(event: Event) -> None:
        seen.append(event)
        if isinstance(event, Delta) and strikes:
            signal.raise_signal(strikes.pop())

    with pytest.raises(Interrupted) as caught:
        endless(llm).run(show)
    reply = caught.value.reply
    assert reply.finish_reason == "interrupted"
    assert seen[-1] == Finished(reply)
    assert llm.complete("and then it works again", max_tokens=3).usage.generated == 3


def test_ctrl_c_while_waiting_for_the_reply(llm: LLM) -> None:
    job = endless(llm)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(Interrupted) as caught:
        job.result()
    assert caught.value.reply is job._reply
    assert job.result().finish_reason == "interrupted"


def test_leaving_the_loop_ends_the_job(llm: LLM) -> None:
    job = endless(llm)
    for event in job:
        if isinstance(event, Delta):
            break
    assert job.result().finish_reason == "interrupted"


def test_cancelling_what_is_over_changes_nothing(llm: LLM) -> None:
    job = llm.start("hello", max_tokens=3)
    reply = job.result()
    job.cancel()
    assert job.result() is reply
    assert llm.complete("hello", max_tokens=3).finish_reason == "length"


def test_close_ends_what_runs_and_what_waits(llm: LLM) -> None:
    running, waiting = endless(llm), endless(llm, "another")
    next(event for event in running if isinstance(event, Delta))
    running, third = endless(llm), endless(llm)  # leaving the loop above ended the first
    llm.close()
    for job in (running, waiting, third):
        assert job.result().finish_reason == "interrupted"
    with pytest.raises(ClosedError, match="load it again"):
        llm.complete("hello")
    llm.close()
    assert llm.closed
    assert (llm.n_live, llm.n_busy, llm.memory.ram.nbytes) == (0, 0, 0)


def test_close_from_the_worker_itself(llm: LLM) -> None:
    both_there = threading.Event()

    def wrap(reply: Reply, ledger: Ledger) -> Reply:
        assert both_there.wait(60)
        llm.close()
        return reply

    job = llm.generate(prompt(llm, "a"), options(max_tokens=2), wrap=wrap)
    behind = endless(llm)
    both_there.set()
    assert job.result().usage.generated == 2
    assert behind.result().finish_reason == "interrupted"
    assert llm.closed


def test_close_from_many_threads(llm: LLM) -> None:
    job = endless(llm)
    threads = [threading.Thread(target=llm.close) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert job.result().finish_reason == "interrupted"


def test_the_worker_goes_with_the_model(load: Load) -> None:
    before = threading.active_count()
    llm = load("llama")
    llm.complete("hello", max_tokens=1)
    assert threading.active_count() == before + 1
    llm.close()
    assert threading.active_count() == before
