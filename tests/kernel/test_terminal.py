"""IPython in a terminal: plain text as it comes, the footer, and no escape codes where nobody would read them."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

SCRIPT = """
import sys
from IPython.terminal.interactiveshell import TerminalInteractiveShell
shell = TerminalInteractiveShell.instance(simple_prompt=True, term_title=False)
for cell in sys.argv[1:]:
    shell.run_cell(cell)
"""


def command(*cells: str) -> list[str]:
    return [sys.executable, "-c", SCRIPT, *cells]


def environment(tmp_path: Path) -> dict[str, str]:
    return os.environ | {"IPYTHONDIR": str(tmp_path), "TERM": "xterm-256color"}


def test_piped(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    load = f'%llama load "{tiny("llama-bigram")}"'
    cells = command("%load_ext ipyllama", load, "%%llama -n 30\nHi", "%%llama -n 3\nMore", "%llama status")
    done = subprocess.run(cells, capture_output=True, text=True, env=environment(tmp_path), timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert "\r" not in done.stdout
    assert "\nabcdefghijklmnopqrstuvwxyz abc\n— " in "\n" + done.stdout
    assert "\nabc\n— " in done.stdout
    assert " reused, 0 restored, " in done.stdout
    assert "context" in done.stdout  # the table
    assert "<" not in done.stdout.replace("<|", "")  # no HTML, no <IPython...>


def test_errors_are_one_line(tmp_path: Path) -> None:
    cells = command("%load_ext ipyllama", "%%llama\nHi", "%llama lod", "print('next')")
    done = subprocess.run(cells, capture_output=True, text=True, env=environment(tmp_path), timeout=120, check=False)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    assert len(lines) == 3
    assert "NoModelLoaded" in lines[0]
    assert "did you mean 'load'?" in lines[1]
    assert lines[2] == "next"


def test_text_comes_as_it_is_written(smollm2: Path, tmp_path: Path) -> None:
    load = f'%llama load "{smollm2}" --threads 1'
    cells = command("%load_ext ipyllama", load, "%%llama --raw -t 0 -n 60\n1, 2, 3, 4, 5,")
    with subprocess.Popen(cells, stdout=subprocess.PIPE, env=environment(tmp_path)) as process:
        assert process.stdout is not None
        pieces = list(iter(process.stdout.read1, b""))
    assert process.returncode == 0
    assert len(pieces) > 5
    text = b"".join(pieces).decode()
    assert " 6, 7, 8, 9, 10" in text
    assert text.splitlines()[-1].startswith("— ")


def test_on_a_terminal_the_footer_is_dim_and_progress_leaves_no_trace(smollm2: Path, tmp_path: Path) -> None:
    body = "In the town where I was born there lived a man who sailed to sea. " * 30
    load = f'%llama load "{smollm2}" --threads 1'
    ours, theirs = pty.openpty()
    cells = command("%load_ext ipyllama", load, f"%%llama --raw -t 0 -n 5\n{body}")
    process = subprocess.Popen(cells, stdin=theirs, stdout=theirs, stderr=theirs, env=environment(tmp_path))
    os.close(theirs)
    written = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # the terminal's other end is closed
            break
        written += piece
    assert process.wait(60) == 0
    os.close(ours)
    text = written.decode()
    assert "\x1b[2m— " in text
    *_, last = text.split("\r\x1b[K")
    assert "reading the prompt" not in last
