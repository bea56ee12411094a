"""The kernel as a process: silent, idle when nothing runs, and gone when it should be."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from kernel.session import PATIENCE, Kernel

ENDLESS = "%%llama --raw -t 0 -n 6000\n1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,"


@pytest.fixture
def busy(new_kernel: Callable[[], Kernel], smollm2: Path) -> Kernel:
    """A kernel in the middle of a long answer."""
    kernel = new_kernel()
    kernel.run("%load_ext ipyllama")
    kernel.run(f'%llama load "{smollm2}" --threads 1')
    kernel.wait_for_words(kernel.start(ENDLESS))
    return kernel


def test_nothing_is_written_to_stdout_and_stderr(
    new_kernel: Callable[[], Kernel], tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    kernel = new_kernel()
    (tmp_path / "bad.gguf").write_bytes(tiny("llama").read_bytes()[:9000])
    kernel.run("%load_ext ipyllama")
    for arch in ("llama", "mamba", "gemma3"):
        kernel.run(f'%llama load "{tiny(arch)}"')
        kernel.run("%%llama -n 20\nHi")
    kernel.run("%llama models\n%llama status")
    kernel.fail(f'%llama load "{tmp_path / "bad.gguf"}"')
    kernel.fail("%%llama --raw\n" + "x" * 5000)
    kernel.run("%llama unload")
    kernel.run("%reload_ext ipyllama\n%unload_ext ipyllama")
    kernel.run(f"import ipyllama\nllm = ipyllama.load({str(tiny('llama'))!r})")  # still loaded at the end
    assert shut_down(kernel) == 0
    assert kernel.stdout.read_text() == ""
    assert kernel.stderr.read_text() == ""


def shut_down(kernel: Kernel) -> int:
    """As a front end does it: ask, and wait. The exit status."""
    process = kernel.manager.provisioner.process
    kernel.manager.shutdown_kernel(now=False)
    return int(process.wait(PATIENCE))


def test_shut_down_in_an_answer(busy: Kernel) -> None:
    assert shut_down(busy) == 0
    assert not psutil.pid_exists(busy.process.pid)
    # ipykernel itself may complain that its sockets are gone; nothing else may
    stderr = busy.stderr.read_text()
    assert [word for word in ("ipyllama", "nanobind", "terminate called", "Fatal") if word in stderr] == []


def test_restart_in_an_answer(busy: Kernel, smollm2: Path) -> None:
    busy.manager.restart_kernel(now=False)
    busy.client.wait_for_ready(PATIENCE)
    busy.run("%load_ext ipyllama")
    busy.run(f'%llama load "{smollm2}" --threads 1')
    busy.run("%%llama -n 5 --out answer\nHi")
    assert busy.usage("answer")["reused"] == 0


def test_the_interpreter_ends_while_a_job_runs(new_kernel: Callable[[], Kernel], smollm2: Path) -> None:
    """A job that nobody waits for does not keep the kernel alive, nor crash it."""
    kernel = new_kernel()
    kernel.run(f"import ipyllama\nllm = ipyllama.load({str(smollm2)!r}, n_threads=1)")
    kernel.run("job = llm.start('1, 2, 3, 4, 5,', max_tokens=6000, temperature=0)\nnext(iter(job.__iter__()))")
    assert shut_down(kernel) == 0
    assert kernel.stderr.read_text() == ""


def test_an_idle_worker_uses_no_cpu(bigram: Kernel) -> None:
    bigram.run("%%llama -n 500\nHi")
    before = bigram.process.cpu_times()
    time.sleep(2)
    after = bigram.process.cpu_times()
    assert (after.user + after.system) - (before.user + before.system) < 0.05 * 2
