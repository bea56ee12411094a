"""Cells that were answered before: run again in their kernel, and all of them in the next one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernel.session import Kernel

NewKernel = Callable[..., Kernel]
MARK = "replayed: this exact request was answered before, nothing was computed"
SYSTEM = "You are a patient teacher at a small school by the sea. " * 4
CELLS = {
    "first": "Name three animals that live in the sea.",
    "second": "Which of them is the largest?",
    "third": "And which is the smallest?",
}


def start(new_kernel: NewKernel, model: Path, folder: Path) -> Kernel:
    """A kernel as a person starts it, with a folder for what is kept."""
    kernel = new_kernel(IPYLLAMA_PREFIX_DIR=str(folder))
    kernel.run(f'%load_ext ipyllama\n%llama load "{model}" --threads 1')
    return kernel


def ask(kernel: Kernel, name: str, text: str, options: str = "") -> dict[str, Any]:
    result = kernel.run(f"%%llama -n 12 --system '{SYSTEM}' --out {name} {options}\n{text}", name)
    reply = f"dict(text={name}.text, ledger={name}.ledger.tokens, prompt={name}.usage.prompt, replayed={name}.replayed)"
    return kernel.value(reply) | kernel.usage(name) | {"shown": result.bundles[-1]}


def said(turn: dict[str, Any]) -> tuple[object, ...]:
    return turn["text"], turn["ledger"]


def test_after_a_restart_run_all_is_replayed(new_kernel: NewKernel, smollm2: Path, tmp_path: Path) -> None:
    kernel = start(new_kernel, smollm2, tmp_path)
    before = {name: ask(kernel, name, text) for name, text in CELLS.items()}
    assert not any(turn["replayed"] for turn in before.values())
    kernel.run("import ipyllama\n_ = ipyllama.loaded()[0].memory.flush()")
    kernel.close()

    kernel = start(new_kernel, smollm2, tmp_path)
    after = {name: ask(kernel, name, text) for name, text in CELLS.items()}
    for name, turn in after.items():
        assert said(turn) == said(before[name])
        assert (turn["replayed"], turn["reused"], turn["restored"], turn["computed"]) == (True, 0, turn["prompt"], 0)
    kernel.run("import ipyllama")
    assert kernel.value("ipyllama.loaded()[0].n_live") == 0
    # a new cell: what was replayed comes back from disk
    fourth = ask(kernel, "fourth", "Thank you.")
    new = fourth["prompt"] - len(after["third"]["ledger"]) + 1
    assert (fourth["replayed"], fourth["reused"]) == (False, 0)
    assert (fourth["restored"], fourth["computed"]) == (fourth["prompt"] - new, new)
    kernel.run("cold = ipyllama.loaded()[0].chat().ask('x', max_tokens=1)")  # another conversation
    assert said(ask(kernel, "fourth", "Thank you.", "--fresh")) == said(fourth)


def test_a_cell_that_runs_again_is_replayed(new_kernel: NewKernel, tiny: Callable[[str], Path], tmp_path: Path) -> None:
    kernel = start(new_kernel, tiny("llama-bigram"), tmp_path)
    once = ask(kernel, "first", CELLS["first"])
    again = ask(kernel, "first", CELLS["first"])
    assert (once["replayed"], again["replayed"], said(again)) == (False, True, said(once))
    for kind in ("text/plain", "text/markdown", "text/html"):
        assert MARK not in once["shown"][kind]
        assert MARK in again["shown"][kind]
        assert "--fresh computes it again" in again["shown"][kind]
    fresh = ask(kernel, "first", CELLS["first"], "--fresh")
    assert (fresh["replayed"], said(fresh)) == (False, said(once))
    assert MARK not in fresh["shown"]["text/plain"]
    assert not ask(kernel, "second", CELLS["second"], "--seed random")["replayed"]
    kernel.run("%config Llama.replay = False")
    assert not ask(kernel, "first", CELLS["first"])["replayed"]
    kernel.run("%config Llama.replay = True")
    assert ask(kernel, "first", CELLS["first"])["replayed"]
    assert kernel.complete("%%llama --fres") == ["%%llama --fresh"]
