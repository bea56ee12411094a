"""Answers that a cell awaits or loops over: Stop ends the answer, what was written is kept, and the next cell works."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from kernel.session import PATIENCE, Kernel, Result

LONG = "max_tokens=100_000, temperature=0"
WATCH = """
async def watch():
    while llm.n_live < 60:
        await asyncio.sleep(0.01)
    print("written")

watching = asyncio.create_task(watch())
"""


@pytest.fixture
def chat(kernel: Kernel, tiny) -> Iterator[Kernel]:
    """The module's kernel with `chat`, a new conversation with a model that would write for many seconds."""
    path = str(tiny("llama"))
    kernel.run("import asyncio, time, ipyllama")
    kernel.run(f"llm = ipyllama.load({path!r}, n_ctx=32768, n_threads=1, cache=None)\nchat = llm.chat()")
    yield kernel
    kernel.run("llm.close()")


def stop(kernel: Kernel, code: str) -> Result:
    """Run a cell, and press Stop when it has printed something."""
    running, result, end = kernel.start(code), Result(), time.monotonic() + PATIENCE
    while "written" not in result.printed:
        assert time.monotonic() < end, f"it never came: {result.messages}"
        kernel._read(running, result)
    kernel.interrupt()
    result = kernel.finish(running, result)
    assert not result.ok
    return result


def test_cells_await_answers(chat: Kernel) -> None:
    chat.run("first = await chat.aask('One?', max_tokens=4)")
    chat.run("turns = await asyncio.gather(*(chat.aask(f'{n}?', max_tokens=4) for n in range(3)))")
    assert chat.value("[turn.parent is first for turn in turns], len(chat.all_turns)") == ([True] * 3, 4)
    result = chat.run("async for piece in turns[0].stream('And?', max_tokens=4): print(piece, end='')")
    assert result.printed == chat.value("chat.head.text")


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (f"{WATCH}await chat.aask('go', {LONG})", "CancelledError"),
        (f"{WATCH}await asyncio.gather(chat.aask('go', {LONG}), chat.aask('on', {LONG}))", "CancelledError"),
        (f"async for piece in chat.stream('go', {LONG}): print('written')", "CancelledError"),
        (f"async for piece in chat.stream('go', {LONG}): print('written'); await asyncio.sleep(60)", "CancelledError"),
        (f"for piece in chat.stream('go', {LONG}): print('written'); time.sleep(60)", "KeyboardInterrupt"),
        (f"for piece in chat.stream('go', {LONG}):\n    if llm.n_live > 100: print('written')", "Interrupt"),
    ],
)
def test_stop(chat: Kernel, code: str, error: str) -> None:
    """Wherever it falls: while the answer is awaited, or in the body of a loop."""
    assert error in stop(chat, code).content["ename"]
    chat.run("while llm.n_busy: time.sleep(0.01)")
    assert chat.value("chat.head.finish_reason, chat.head.text != ''") == ("interrupted", True)
    chat.run("head = chat.head\nafter = await chat.aask('and now?', max_tokens=2)")
    assert chat.value("after.finish_reason, after.parent is head") == ("length", True)
