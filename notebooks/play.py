"""Run a notebook in a kernel of its own and read it out in the terminal: each cell, then what came of it.

    python notebooks/play.py notebooks/01_quickstart.ipynb

The notebook itself is not changed. The exit status is 1 if a cell fails that is not meant to
(tag `raises-exception`).
"""

from __future__ import annotations

import os
import sys
import textwrap
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

TIMEOUT = 600  # seconds for one cell: the first load fetches the model
BOLD, DIM, NORMAL = ("\x1b[1m", "\x1b[2m", "\x1b[0m") if sys.stdout.isatty() else ("", "", "")


def main(path: Path) -> int:
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=TIMEOUT,
        kernel_name="python3",
        extra_arguments=["--log-level=ERROR"],
        resources={"metadata": {"path": str(path.parent)}},
        on_cell_start=lambda cell, cell_index: ask(cell),
        on_cell_executed=lambda cell, cell_index, execute_reply: answer(cell),
    )
    say(f"{BOLD}{path.name}{NORMAL}, in a kernel of its own")
    try:
        client.execute(env=os.environ | {"TQDM_DISABLE": "1"})  # what is read out afterwards needs no bars
    except CellExecutionError as error:
        say(f"\nThe notebook stopped: {error.ename}: {error.evalue}")
        return 1
    say(f"\nDone. To read and run it yourself: {BOLD}make lab{NORMAL}")
    return 0


def ask(cell: Any) -> None:
    if cell.cell_type == "markdown":
        lines = cell.source.splitlines()
        heading = lines[0].lstrip("# ") if lines and lines[0].startswith("#") else ""
        say(f"\n{BOLD}{heading}{NORMAL}" if heading else "", end="\n" if heading else "")
    elif cell.cell_type == "code":
        say(f"\n{BOLD}In:{NORMAL}  " + textwrap.indent(cell.source, "     ").lstrip())


def answer(cell: Any) -> None:
    if cell.cell_type != "code":
        return
    for output in cell.outputs:
        for line in text_of(output).strip("\n").splitlines():
            say(f"{DIM}     {line}{NORMAL}" if line.startswith("— ") else f"     {line}")


def text_of(output: Any) -> str:
    """The plain text of one output, as a terminal would show it."""
    if output.output_type == "stream":
        return str(output.text)
    if output.output_type == "error":
        return "\n".join(output.traceback)
    return str(output.data.get("text/plain", ""))


def say(line: str, end: str = "\n") -> None:
    print(line, end=end, flush=True)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
