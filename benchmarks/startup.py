"""What `import ipyllama` and `%load_ext ipyllama` add to a bare start; every run is a fresh process."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from statistics import median
from typing import Final

from benchmarks.harness import Bench, Row, Target

ROUNDS: Final = 11


def measure(bench: Bench) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="ipyllama-bench-") as folder:
        python = [sys.executable, "-c"]
        ipython = [sys.executable, "-m", "IPython", "--no-banner", f"--ipython-dir={folder}", "-c"]
        seconds(*ipython, "1")  # it makes its profile folder once
        commands = {
            "bare Python": (*python, "pass"),
            "import": (*python, "import ipyllama"),
            "everything": (*python, "from ipyllama import load, Chat"),
            "bare IPython": (*ipython, "1"),
            "%load_ext": (*ipython, "%load_ext ipyllama"),
        }
        runs = {name: (lambda command=command: seconds(*command)) for name, command in commands.items()}
        found = {name: 1000 * median(values) for name, values in bench.interleave(runs, ROUNDS).items()}

    def row(name: str, run: str, bare: str, target: Target | None = None) -> Row:
        return Row(name, found[run] - found[bare], "ms", found[bare], f"{bare}, to which it adds", None, target)

    yield row("import ipyllama", "import", "bare Python", Target("ours", 150))
    yield row("  with load and the extension", "everything", "bare Python")
    yield row("%load_ext ipyllama", "%load_ext", "bare IPython", Target("ours", 300))


def seconds(*command: str) -> float:
    env = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}  # compiled modules are cached, as they are for everyone
    began = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=env)
    return time.monotonic() - began
