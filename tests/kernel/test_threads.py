"""Several callers at once: they queue, each gets its own answer."""

from __future__ import annotations

from kernel.session import Kernel

SETUP = """
import asyncio, threading, ipyllama
from concurrent.futures import ThreadPoolExecutor
llm = next(llm for llm in ipyllama.loaded() if llm.name.startswith({name!r}))
"""


def test_a_cell_waits_for_a_job_and_says_so(smol: Kernel) -> None:
    smol.run(SETUP.format(name="SmolLM2"))
    smol.run("job = llm.start('1, 2, 3, 4,', max_tokens=100, temperature=0)")
    result = smol.run("%%llama -n 5 --out answer\nHi")
    assert result.bundles[0]["text/plain"] == "waiting: 1 answer ahead"
    assert "waiting" not in result.text  # the answer took its place
    assert smol.value("answer.text").strip() in result.text
    assert smol.value("answer.timings.queued > 0, job.done") == (True, True)


def places(kernel: Kernel) -> list[str]:
    """What a cell says while it waits."""
    result = kernel.run("%%llama -n 5\nHi")
    return [b["text/plain"] for b in result.bundles if "waiting" in b["text/plain"]]


def test_the_place_in_the_queue_counts_down(smol: Kernel) -> None:
    smol.run(SETUP.format(name="SmolLM2"))
    smol.run("chats = [llm.chat(name=str(n)) for n in range(3)]")
    smol.run("jobs = [chat.start('Count on: 1, 2, 3, 4,', max_tokens=60, temperature=0) for chat in chats]")
    waiting = places(smol)
    assert waiting[0].startswith("waiting: 3 answers ahead")
    assert waiting[-1].startswith("waiting: 1 answer ahead")


def test_a_cell_does_not_wait_for_all_that_another_caller_has_asked(smol: Kernel) -> None:
    smol.run(SETUP.format(name="SmolLM2"))
    smol.run("jobs = [llm.start('1, 2, 3, 4,', max_tokens=60, temperature=0) for _ in range(3)]")
    assert places(smol)[0].startswith("waiting: 1 answer ahead")
    assert smol.value("[job.done for job in jobs]") != [True] * 3
    smol.run("for job in jobs: job.result()")


def test_plain_calls_from_many_threads(bigram: Kernel) -> None:
    bigram.run(SETUP.format(name="tiny-llama-bigram"))
    bigram.run(
        "with ThreadPoolExecutor(8) as pool:\n"
        "    answers = list(pool.map(lambda n: llm.complete('abc', max_tokens=n).text, range(1, 25)))"
    )
    letters = "defghijklmnopqrstuvwxyz abcdef"
    assert bigram.value("answers") == [letters[:n] for n in range(1, 25)]


def test_magics_from_two_threads(bigram: Kernel) -> None:
    bigram.run(
        "import threading\n"
        "def ask(name, n):\n"
        "    get_ipython().run_cell_magic('llama', f'-n {n} --chat {name} --out {name}', 'Hi')\n"
        "threads = [threading.Thread(target=ask, args=(f'chat{n}', n)) for n in (3, 5, 7)]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join()"
    )
    assert bigram.value("chat3.text, chat5.text, chat7.text") == ("abc", "abcde", "abcdefg")


def test_from_coroutines(bigram: Kernel) -> None:
    bigram.run(SETUP.format(name="tiny-llama-bigram"))
    bigram.run("calls = [asyncio.to_thread(llm.complete, 'abc', max_tokens=n) for n in (3, 5)]")
    bigram.run("one, two = await asyncio.gather(*calls)")
    assert bigram.value("one.text, two.text") == ("def", "defgh")
    # a cell in which a loop runs
    bigram.run("await asyncio.sleep(0)\nget_ipython().run_cell_magic('llama', '-n 3 --out three', 'Hi')")
    assert bigram.value("three.text") == "abc"


def test_unload_ends_what_runs(smol: Kernel) -> None:
    smol.run(SETUP.format(name="SmolLM2"))
    smol.run("jobs = [llm.start('1, 2, 3, 4,', max_tokens=4000, temperature=0) for _ in range(3)]")
    smol.run("%llama unload SmolLM2-135M-Instruct.Q4_1")
    assert smol.value("[job.result().finish_reason for job in jobs]") == ["interrupted"] * 3
    assert smol.value("llm.closed")
    assert smol.fail("llm.complete('Hi')").content["ename"] == "ClosedError"
