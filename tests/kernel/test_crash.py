"""A kernel that llama.cpp ends, and what the next one says. The check that refuses such a model is switched off."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from kernel.session import PATIENCE, Kernel, Result
from tiny.damage import with_value

NO_CHECK = "from ipyllama.models import sound\nsound.check = lambda *unchecked: None"


@pytest.fixture
def deadly(tiny: Callable[[str], Path], tmp_path: Path) -> Path:
    """A model that loads, and ends the process at the first token: when its context is tried."""
    return with_value(tiny("llama"), tmp_path / "deadly.gguf", "llama.attention.layer_norm_rms_epsilon", "<f", -1.0)


def shown(result: Result) -> str:
    return result.text + result.printed


def die(kernel: Kernel, model: Path) -> None:
    kernel.run("%load_ext ipyllama")
    process = kernel.manager.provisioner.process
    kernel.start(f'{NO_CHECK}\n%llama load "{model}" --threads 1')
    assert process.wait(PATIENCE) == -signal.SIGABRT


def test_the_next_kernel_of_the_notebook_says_it_once(
    new_kernel: Callable[..., Kernel], deadly: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    mine = {"IPYLLAMA_CACHE_DIR": str(cache), "JPY_SESSION_NAME": "/home/me/mine.ipynb"}
    other = mine | {"JPY_SESSION_NAME": "/home/me/other.ipynb"}
    kernel = new_kernel(**mine)
    die(kernel, deadly)
    assert "GGML_ASSERT(eps >= 0.0f) failed" in kernel.stderr.read_text()
    note = next((cache / "crashes").iterdir())
    assert note.stat().st_mode & 0o077 == 0
    assert f"pid: {kernel.process.pid}\n" in note.read_text()

    assert shown(new_kernel(**other).run("%load_ext ipyllama")) == ""  # it is not theirs
    kernel = new_kernel(**mine)
    said = kernel.run("%load_ext ipyllama").text
    assert said.startswith("the previous kernel died in llama.cpp while making a context for deadly (")
    assert "ops.cpp:" in said
    assert "GGML_ASSERT(eps >= 0.0f) failed. Run the cells again;" in said
    assert os.fspath(Path.home()) not in said  # no path of the machine that built it
    assert shown(kernel.run("%reload_ext ipyllama")) == ""
    assert list((cache / "crashes").iterdir()) == []


def test_a_kernel_that_ends_well_leaves_nothing(
    new_kernel: Callable[..., Kernel], tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    kernel = new_kernel(IPYLLAMA_CACHE_DIR=str(cache))
    kernel.run("%load_ext ipyllama")
    kernel.run(f'%llama load "{tiny("llama")}" --threads 1')
    kernel.run("%%llama -n 3\nHi")
    kernel.manager.shutdown_kernel(now=False)
    assert not cache.exists()
