"""What goes wrong is said in one line that tells what to do, and the next cell works."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from kernel.session import Kernel


def error_line(kernel: Kernel, code: str) -> str:
    """The one line that a failing cell shows: no traceback, nothing else on the page."""
    result = kernel.fail(code)
    assert len(result.content["traceback"]) == 1
    line = result.error
    assert "\n" not in line
    assert "Traceback" not in line
    assert line == f"{result.content['ename']}: {result.content['evalue']}"
    assert not result.printed
    assert not result.of("display_data")
    return line


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("%%llama --temprature 1\nHi", ["BadOption", "--temprature", "did you mean '--temperature'?"]),
        ("%%llama --qqqq 1\nHi", ["BadOption", "--qqqq", "known are"]),
        ("%%llama -n zero\nHi", ["BadOption", "--max-tokens", "whole number", "'zero'"]),
        ("%%llama -n 0\nHi", ["BadOption", "max_tokens", "at least 1"]),
        ("%%llama -t 5\nHi", ["BadOption", "temperature", "between 0 and 2", "5"]),
        ("%%llama -n\nHi", ["BadOption", "--max-tokens", "missing"]),
        ('%%llama --system "Be brief\nHi', ["BadOption", "quote", "not closed"]),
        ("%%llama --out 1st\nHi", ["BadOption", "--out", "'1st'", "variable"]),
        ("%%llama --raw --chat work\nHi", ["BadOption", "--raw", "leave out --chat"]),
        ("%%llama what is this\nHi", ["BadOption", "'what'", "below this line"]),
        ("%%llama\n  \n", ["BadOption", "empty", "%%llama?"]),
        ("%llama lod smollm2", ["BadOption", "'lod'", "did you mean 'load'?"]),
        ("%llama load", ["BadOption", "needs a name", "%llama load NAME"]),
        ("%llama load smollm2 --n-ctx lots", ["BadOption", "--n-ctx", "whole number"]),
        ("%llama load smolm2", ["ModelNotFound", "smolm2", "smollm2"]),
        ("%llama load /nowhere/model.gguf", ["ModelNotFound", "/nowhere/model.gguf"]),
        ("%llama reset --chat nobody", ["ModelNotFound", "'nobody'", "default"]),
        ("%llama unload smollm9", ["NoModelLoaded", "'smollm9'", "tiny-llama-bigram"]),
        ("%%llama --model nosuchmodel\nHi", ["ModelNotFound", "nosuchmodel"]),
    ],
)
def test_a_wrong_line(bigram: Kernel, code: str, words: list[str]) -> None:
    bigram.run("%%llama -n 3\nHi")
    line = error_line(bigram, code)
    assert [word for word in words if word not in line] == []
    bigram.run("%%llama -n 3 --out after\nHi")
    assert bigram.value("after.text") == "abc"


@pytest.mark.parametrize("code", ["%%llama\nHi", "%%llama --raw\nHi", "%llama unload"])
def test_no_model(kernel: Kernel, code: str) -> None:
    kernel.run("%reload_ext ipyllama")  # frees what was loaded
    line = error_line(kernel, code)
    assert "NoModelLoaded" in line
    assert "%llama load smollm2" in line


def test_the_state_of_nothing_is_no_error(kernel: Kernel) -> None:
    kernel.run("%reload_ext ipyllama")
    assert kernel.run("%llama status").text.startswith("no model is loaded: %llama load smollm2")


@pytest.mark.parametrize("kept", [0, 3, 20, 5_000, 0.5, 0.99])
def test_a_truncated_file(bigram: Kernel, tiny: Callable[[str], Path], tmp_path: Path, kept: float) -> None:
    whole = tiny("llama").read_bytes()
    file = tmp_path / "cut.gguf"
    file.write_bytes(whole[: kept if isinstance(kept, int) else int(len(whole) * kept)])
    line = error_line(bigram, f'%llama load "{file}"')
    assert "BadModelFile" in line
    assert "cut.gguf" in line
    assert re.search("truncated|not a GGUF|too short|empty|damaged", line), line
    bigram.run("%%llama -n 3\nHi")


def test_not_a_gguf(bigram: Kernel, tmp_path: Path) -> None:
    file = tmp_path / "notes.gguf"
    file.write_text("Dear diary,\n" * 500)
    line = error_line(bigram, f'%llama load "{file}"')
    assert "BadModelFile" in line
    assert "not a GGUF" in line
    bigram.run("%%llama -n 3\nHi")


def test_a_model_that_cannot_answer(bigram: Kernel, tiny: Callable[[str], Path]) -> None:
    bigram.run(f'%llama load "{tiny("bert")}"')
    for cell in ("%%llama", "%%llama --raw"):
        line = error_line(bigram, f"{cell}\nHi")
        assert line.startswith("WrongModel: tiny-bert encodes text and cannot generate: embed(texts) gives its vectors")
    status = bigram.run("%llama status").text
    assert "none: nothing can be reused (it encodes text" in status
    assert "up to 512 tokens each" in status
    bigram.run("import ipyllama\nv = ipyllama.loaded()[-1].embed(['the cat', 'paris'])\n%llama unload tiny-bert")
    assert bigram.value("v.shape") == (2, 64)
    bigram.run("%llama use tiny-llama-bigram")
    bigram.run("%%llama -n 3\nHi")
    assert "full: can be cut anywhere and shifted" in bigram.run("%llama status").text


def test_a_prompt_that_is_too_long(bigram: Kernel, tiny: Callable[[str], Path]) -> None:
    bigram.run(f'%llama load "{tiny("llama")}" --n-ctx 256 --threads 1')
    bigram.run("%%llama -n 3 --out before\nHi")
    line = error_line(bigram, "%%llama --raw\n" + "x" * 300)
    assert "PromptTooLong" in line
    assert "301 tokens, 46 too many for a context of 256" in line  # BOS too; one is kept for the answer
    assert error_line(bigram, "%%llama\n" + "x" * 300).startswith("PromptTooLong")
    # the conversation is as it was
    bigram.run("%%llama -n 3 --out after\nHi again")
    assert bigram.value("after.parent is before")


def test_stop_on_error_ends_run_all(bigram: Kernel) -> None:
    """JupyterLab's "run all" stops at a cell that failed; an error of ours counts as one."""
    busy = bigram.client.execute("import time; time.sleep(0.5)")  # so that both others are in the queue
    message = bigram.client.execute("%%llama --nonsense\nHi", stop_on_error=True)
    behind = bigram.client.execute("1 + 1")
    assert bigram.finish(busy).ok
    assert bigram.finish(message).content["status"] == "error"
    assert bigram.finish(behind).content["status"] == "aborted"
