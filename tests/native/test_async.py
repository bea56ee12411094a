"""The same, awaited: the event loop goes on, cancelling ends the native step, and nothing is lost on the way.

Most tests hold the worker with a gate that only the event loop can open: were the loop blocked, it would stay shut.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import Any

import pytest
from native.jobs import Gate, options, prompt

from ipyllama.chat import Chat, Turn
from ipyllama.engine import Job
from ipyllama.errors import BadOption, ClosedError, Interrupted, PromptTooLong
from ipyllama.ledger import Ledger
from ipyllama.llm import LLM
from ipyllama.reply import Delta, Reply

Load = Callable[..., LLM]
LONG = {"max_tokens": 100_000, "temperature": 0}


@pytest.fixture
def chat(load: Load) -> Chat:
    return load("llama", n_ctx=16384).chat()


async def until(true: Callable[[], object]) -> None:
    while not true():
        await asyncio.sleep(0.001)


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait for it."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# -- what comes -----------------------------------------------------------------------------------------------


def test_the_reply_is_that_of_the_call_that_waits(llm: LLM) -> None:
    assert asyncio.run(llm.acomplete("hello", max_tokens=20, seed=3)).tokens == (
        llm.complete("hello", max_tokens=20, seed=3).tokens
    )


def test_the_pieces_are_those_of_the_job(llm: LLM) -> None:
    chosen = {"max_tokens": 80, "seed": 4, "temperature": 1.5}
    deltas = [event.text for event in llm.start("hello", **chosen) if isinstance(event, Delta)]

    async def collect() -> None:
        stream = llm.stream("hello", **chosen)
        assert [piece async for piece in stream] == deltas
        assert stream.reply.text == "".join(deltas)
        assert [piece async for piece in stream] == [], "its text was given out"

    asyncio.run(collect())


def test_no_piece_is_lost_among_many(llm: LLM) -> None:
    async def one(number: int) -> bool:
        stream = llm.stream(f"{number}", max_tokens=number % 7 + 1, seed=number, temperature=1)
        pieces = [piece async for piece in stream]
        return "".join(pieces) == stream.reply.text and stream.reply.usage.generated > 0

    async def many() -> list[bool]:
        return await asyncio.gather(*(one(number) for number in range(60)))

    assert asyncio.run(many()) == [True] * 60


def test_a_turn_goes_on(chat: Chat) -> None:
    async def talk() -> None:
        first = await chat.aask("One?", max_tokens=5)
        second = await chat.aask("Two?", max_tokens=5)
        assert isinstance(second, Turn)
        assert (second.parent, chat.head) == (first, second)
        branch = await first.aask("Three?", max_tokens=5)
        assert branch.parent == first
        stream = first.stream("Four?", max_tokens=5)
        text = "".join([piece async for piece in stream])
        assert (stream.reply.text, stream.reply.parent) == (text, first)

    asyncio.run(talk())


def test_several_at_once_are_branches_of_one_head(chat: Chat) -> None:
    """Each the same as if it were asked alone, in the order of asking."""

    async def three() -> list[Turn]:
        await chat.aask("Begin.", max_tokens=5)
        return await asyncio.gather(*(chat.aask(f"Number {number}?", max_tokens=8) for number in range(3)))

    turns = asyncio.run(three())
    begin, *branches = chat.all_turns
    assert branches == turns
    assert [turn.parent for turn in turns] == [begin] * 3
    alone = [begin.ask(f"Number {number}?", max_tokens=8, fresh=True) for number in range(3)]
    assert [turn.tokens for turn in turns] == [turn.tokens for turn in alone]


def test_what_goes_wrong_is_raised(load: Load) -> None:
    llm = load("llama", n_ctx=256)

    async def wrong() -> None:
        with pytest.raises(PromptTooLong):
            await llm.acomplete("x" * 5000)
        stream = llm.stream("x" * 5000)
        for _ in range(2):
            with pytest.raises(PromptTooLong):
                [piece async for piece in stream]
        with pytest.raises(BadOption):
            await llm.acomplete("x", temprature=1)
        assert (await llm.acomplete("fine", max_tokens=2)).usage.generated == 2

    asyncio.run(wrong())


def test_closing_the_model_ends_it(chat: Chat) -> None:
    async def close() -> None:
        stream = chat.stream("go", **LONG)
        async for _ in stream:
            chat.llm.close()
        assert stream.reply.finish_reason == "interrupted"
        with pytest.raises(ClosedError):
            await chat.aask("more")

    asyncio.run(close())


# -- the event loop goes on -----------------------------------------------------------------------------------


def test_the_loop_is_not_blocked(llm: LLM, gate: Gate) -> None:
    async def main() -> list[Reply]:
        tasks = [asyncio.create_task(llm.acomplete(text, max_tokens=3)) for text in ("one", "two")]
        await until(lambda: llm.n_busy == 3)
        gate.open.set()
        return await asyncio.gather(*tasks)

    assert [reply.usage.generated for reply in asyncio.run(main())] == [3, 3]


def test_the_loop_is_not_blocked_by_a_summary(load: Load) -> None:
    """What is asked has to ask the model first, which waits for another answer."""
    llm, gate = load("llama", n_ctx=512), Gate()
    chat = llm.chat()
    chat.ask("Summarise.", name="recap", max_tokens=24)
    while len(chat.head.ledger) < 350:
        chat.ask("What do the river and the mill have in common?", max_tokens=24)
    llm.generate(prompt(llm, "first"), options(max_tokens=1), wrap=gate)

    async def main() -> Turn:
        task = asyncio.create_task(chat.aask("And the town?", max_tokens=100, on_full="summarise-by recap"))
        await until(lambda: llm.n_busy == 2)
        assert not task.done()
        gate.open.set()
        return await task

    assert asyncio.run(main()).summary is not None


@pytest.fixture
def full(load: Load) -> Chat:
    """A conversation whose next message needs a summary."""
    chat = load("llama", n_ctx=512).chat()
    chat.ask("Summarise.", name="recap", max_tokens=24)
    while len(chat.head.ledger) < 350:
        chat.ask("What do the river and the mill have in common?", max_tokens=24)
    return chat


SUMMARY = {"max_tokens": 100, "on_full": "summarise-by recap"}


def test_a_summary_ends_with_the_task_that_waits_for_it(full: Chat) -> None:
    llm, head, gate = full.llm, full.head, Gate()
    llm.generate(prompt(llm, "first"), options(max_tokens=1), wrap=gate)

    async def main() -> None:
        task = asyncio.create_task(full.aask("And the town?", **SUMMARY))
        await until(lambda: llm.n_busy == 2)
        await cancelled(task)
        await until(lambda: llm.n_busy == 1)  # what waited is gone before the worker was free
        gate.open.set()
        stream = full.stream("And the town?", **SUMMARY)
        pieces = asyncio.create_task(anext(aiter(stream), "nothing"))
        await until(lambda: stream._first is not None)
        stream.cancel()
        assert await pieces == "nothing"
        assert stream.reply is None

    asyncio.run(main())
    assert full.head is head
    assert full.ask("And the town?", **SUMMARY).summary is not None


def test_a_summary_that_was_cut_short_is_none(full: Chat) -> None:
    """Whoever ends it, what was written is not taken for it, and is no turn."""
    head = full.head

    def wait(job: Job) -> Reply:
        for event in job:
            if isinstance(event, Delta):
                job.cancel()
        return job.result()

    with pytest.raises(Interrupted) as caught:
        full.ask("And the town?", wait=wait, **SUMMARY)
    assert caught.value.reply is None
    assert full.head is head


def test_a_summary_waits_in_the_turn_of_its_conversation(full: Chat) -> None:
    llm, gate, order = full.llm, Gate(), []
    llm.generate(prompt(llm, "first"), options(max_tokens=1), wrap=gate, caller=full)
    assert gate.reached.wait(60), "who is served last is known from here on"

    def wait(job: Job) -> Reply:
        others = [llm.generate(prompt(llm, "x"), options(max_tokens=1), wrap=noted) for _ in range(2)]
        job.listen(lambda: order.append("summary") if job.reply and "summary" not in order else None)
        gate.open.set()
        reply = job.result()
        for other in others:
            other.result()
        return reply

    def noted(reply: Reply, ledger: Ledger) -> Reply:
        order.append("other")
        return reply

    full.ask("And the town?", wait=wait, **SUMMARY)
    assert order == ["other", "summary", "other"], "the conversation was served last, so another comes first"


def test_loops_in_several_threads(llm: LLM) -> None:
    texts = [f"prompt number {n}" for n in range(6)]
    alone = [llm.complete(text, max_tokens=20).tokens for text in texts]
    found: dict[int, tuple[int, ...]] = {}

    async def two(number: int) -> None:
        for at, reply in enumerate(
            await asyncio.gather(*(llm.acomplete(texts[n], max_tokens=20) for n in (number, number + 1)))
        ):
            found[number + at] = reply.tokens

    threads = [threading.Thread(target=lambda n=n: asyncio.run(two(n))) for n in (0, 2, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[number] for number in range(6)] == alone


def test_a_loop_that_was_closed_is_nobody(llm: LLM) -> None:
    """The worker has no one to wake; the next caller is served."""
    stream = llm.stream("go", **LONG)
    pieces = stream.__aiter__()
    loop = asyncio.new_event_loop()
    loop.run_until_complete(anext(pieces))
    loop.close()
    n = stream._job._events.qsize()
    while stream._job._events.qsize() < n + 3:
        pass
    del pieces
    assert stream._job.result().finish_reason == "interrupted"
    assert llm.complete("hello", max_tokens=2).finish_reason == "length"


# -- ending early ---------------------------------------------------------------------------------------------


def test_cancelled_while_it_writes_the_turn_is_where_ctrl_c_leaves_it(chat: Chat) -> None:
    async def main() -> None:
        stream = chat.stream("go", **LONG)
        task = asyncio.create_task(stream.aresult())
        await until(lambda: stream._job and chat.llm.n_live > 100)
        await cancelled(task)
        assert chat.head is stream.reply
        assert chat.head.finish_reason == "interrupted"
        assert chat.head.text
        after = await chat.aask("Go on.", max_tokens=3)
        assert after.parent == stream.reply
        assert after.usage.reused == len(stream.reply.ledger) - 1, "and nothing is lost"

    asyncio.run(main())


def test_cancelled_in_prefill_the_native_step_ends(llm: LLM) -> None:
    """The whole prompt is far longer than what is kept of it."""

    async def main() -> None:
        stream = llm.stream("a b c d e f g h " * 900)
        task = asyncio.create_task(stream.aresult())
        await until(lambda: llm.n_live >= 512)
        await cancelled(task)
        assert (stream.reply.finish_reason, stream.reply.text) == ("interrupted", "")
        assert 512 <= llm.n_live < 10_000

    asyncio.run(main())


def test_cancelled_while_it_waits_it_ends_at_once(chat: Chat) -> None:
    llm, gate = chat.llm, Gate()
    llm.generate(prompt(llm, "first"), options(max_tokens=1), wrap=gate)

    async def main() -> None:
        task = asyncio.create_task(chat.aask("go", **LONG))
        await until(lambda: llm.n_busy == 2)
        await cancelled(task)
        assert llm.n_busy == 1
        assert chat.head is None, "what says nothing is no turn"
        gate.open.set()

    asyncio.run(main())


def test_a_timeout_ends_it(chat: Chat) -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(chat.aask("go", **LONG), 0.3)
        assert chat.head.finish_reason == "interrupted"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await chat.aask("go", **LONG)
        assert chat.head.finish_reason == "interrupted"

    asyncio.run(main())


def test_one_of_several_is_cancelled_alone(chat: Chat) -> None:
    async def main() -> None:
        first = asyncio.create_task(chat.aask("go", **LONG))
        others = [asyncio.create_task(chat.aask(text, max_tokens=4)) for text in ("one", "two")]
        await until(lambda: chat.llm.n_busy == 3)
        await cancelled(first)
        assert [turn.finish_reason for turn in await asyncio.gather(*others)] == ["length"] * 2

    asyncio.run(main())


@pytest.mark.parametrize("how", ["async with", "aclosing", "break"])
def test_leaving_the_loop_ends_it(chat: Chat, how: str) -> None:
    stream = chat.stream("go", **LONG)

    async def leave() -> None:
        if how == "async with":
            async with stream:
                await anext(stream.__aiter__())
        elif how == "aclosing":
            async with aclosing(stream.__aiter__()) as pieces:
                await anext(pieces)
        else:
            async for _ in stream:
                break

    async def main() -> None:
        await leave()
        if how != "async with":
            await until(lambda: stream.reply)
        assert stream.reply.finish_reason == "interrupted"
        assert chat.head is stream.reply

    asyncio.run(main())


def test_the_end_of_the_program_ends_one_that_was_left(llm: LLM) -> None:
    left: list[Job] = []

    async def main() -> None:
        stream = llm.stream("go", **LONG)
        kept.append(stream.__aiter__())
        await anext(kept[0])
        left.append(stream._job)

    kept: list[Any] = []
    asyncio.run(main())
    assert left[0].result().finish_reason == "interrupted"


def test_it_is_not_asked_before_it_is_awaited(llm: LLM) -> None:
    never: Coroutine[Any, Any, Reply] = llm.acomplete("hello", **LONG)
    assert llm.n_busy == 0
    never.close()
    assert llm.n_busy == 0
