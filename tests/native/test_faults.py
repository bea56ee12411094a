"""What goes wrong around an answer: errors while it is shown, Ctrl-C while a model closes, forks, replaced files."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from native.core import run_apart
from native.jobs import endless, options, prompt

import ipyllama
import ipyllama.reply
from ipyllama.llm import LLM
from ipyllama.reply import Event


def wait_until_idle(llm: LLM) -> None:
    llm.complete("x", max_tokens=1)
    assert llm.n_busy == 0


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit])
def test_an_error_while_showing_ends_the_answer(llm: LLM, error: type[BaseException]) -> None:
    job = endless(llm)

    def show(event: Event) -> None:
        raise error

    with pytest.raises(error):
        job.run(show)
    assert job.cancelled
    wait_until_idle(llm)


def test_an_error_thrown_into_the_loop_ends_the_answer(llm: LLM) -> None:
    events = iter(endless(llm))
    next(events)
    with pytest.raises(TimeoutError):
        events.throw(TimeoutError())  # type: ignore[attr-defined]
    wait_until_idle(llm)


def test_an_interrupt_out_of_wrap_does_not_end_the_worker(llm: LLM) -> None:
    def wrap(*_: object) -> ipyllama.Reply:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        llm.generate(prompt(llm, "x"), options(max_tokens=1), wrap=wrap).result()
    wait_until_idle(llm)


@pytest.mark.parametrize("arch", ["llama", "mamba", "lfm2", "jamba"])
def test_a_stopped_answer_counts_its_whole_prompt(load: Callable[..., LLM], arch: str) -> None:
    llm = load(arch, n_ctx=16384)
    ledger, written = prompt(llm, "some words " * 20), threading.Event()
    job = llm.generate(ledger, options(max_tokens=100_000))

    def show(event: Event) -> None:
        if isinstance(event, ipyllama.reply.Delta) and not written.is_set():
            written.set()
            job.cancel()

    reply = job.run(show)
    assert reply.finish_reason == "interrupted"
    assert reply.usage.generated > 0
    assert reply.usage.prompt == len(ledger)


def test_a_replaced_file_is_another_model(
    load: Callable[..., LLM], tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    shutil.copy(tiny("llama"), path)
    first = load(path)
    shutil.copy(tiny("mamba"), tmp_path / "other.gguf")
    (tmp_path / "other.gguf").replace(path)  # as a download does: the loaded file stays as it was
    second = load(path)
    assert second is not first
    assert (first.metadata()["general.architecture"], second.metadata()["general.architecture"]) == ("llama", "mamba")


def test_a_child_process_is_told_that_the_model_is_not_there(tiny: Callable[[str], Path]) -> None:
    code = """
        import os, sys
        import ipyllama
        llm = ipyllama.load(sys.argv[1], n_ctx=512, n_threads=1)
        llm.complete("x", max_tokens=2)
        if os.fork() == 0:
            try:
                llm.complete("x", max_tokens=2)
            except ipyllama.LlamaError as error:
                print(type(error).__name__, flush=True)
            again = ipyllama.load(sys.argv[1], n_ctx=512, n_threads=1)
            print(again.complete("x", max_tokens=2).usage.generated, flush=True)
            os._exit(0)
        assert os.wait()[1] == 0
        print(llm.complete("x", max_tokens=2).usage.generated)
        """
    assert run_apart(code, tiny("llama")).split() == ["ClosedError", "2", "2"]


def test_ctrl_c_while_a_model_closes_leaves_nothing_open(tiny: Callable[[str], Path]) -> None:
    code = """
        import os, signal, sys, threading, time
        import ipyllama
        for n in range(30):
            llm = ipyllama.load(sys.argv[1], n_ctx=4096, n_threads=1)
            job = llm.start("some words", max_tokens=4000)
            try:
                threading.Timer(0.002 * (n % 5), os.kill, [os.getpid(), signal.SIGINT]).start()
                llm.close()
                time.sleep(5)  # not signal.pause(): it would miss a Ctrl-C that came just before
            except KeyboardInterrupt:
                pass
            llm.close()
            assert not any(thread.name == "ipyllama-engine" for thread in threading.enumerate())
        print(ipyllama.loaded())
        """
    assert run_apart(code, tiny("llama")).strip() == "[]"
