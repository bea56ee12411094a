"""Runs a target's cases in worker processes: one that dies or hangs is counted, and the next goes on after the case."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

MAX_FAILURES = 20


@dataclass(frozen=True)
class Failure:
    """A case that must not be: "crash", "hang" or "error", with what the worker said on stderr."""

    number: int
    kind: str
    detail: str


@dataclass
class Report:
    """How the cases ended: the target's own words, counted, and the failures."""

    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    def __str__(self) -> str:
        kinds = Counter(failure.kind for failure in self.failures)
        counted = [f"{n:,} {word}" for word, n in sorted(self.outcomes.items())]
        return ", ".join([*counted, f"{kinds['crash']} crashes, {kinds['hang']} hangs, {kinds['error']} errors"])


def run(
    target: str,
    cases: int,
    *,
    seed: int,
    patience: float = 30.0,
    watch: Callable[[Report, int], None] = lambda report, done: None,
) -> Report:
    """Run cases 0 to `cases` - 1; after MAX_FAILURES failures no more. `watch(report, done)` sees each case."""
    report, done = Report(), 0
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        while done < cases and len(report.failures) < MAX_FAILURES:
            with (Path(folder) / "stderr").open("w+b") as stderr:
                worker = _start(target, seed, done, cases, folder, stderr.fileno())
                with worker:
                    for outcome in _outcomes(worker, patience):
                        report.outcomes[outcome] += 1
                        done += 1
                        watch(report, done)
                if done < cases:
                    report.failures.append(_failure(done, worker.returncode, stderr.name))
                    done += 1
    return report


def _start(target: str, seed: int, first: int, end: int, folder: str, stderr: int) -> subprocess.Popen[bytes]:
    own = Path(tempfile.mkdtemp(dir=folder))
    command = [sys.executable, "-X", "faulthandler", "-m", "fuzz.worker", target, str(seed), str(first), str(end)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen([*command, str(own)], stdout=subprocess.PIPE, stderr=stderr, env=environment)


def _outcomes(worker: subprocess.Popen[bytes], patience: float):
    """The worker's words as they come; a worker that takes too long over one is killed."""
    assert worker.stdout is not None
    waiting = b""
    with selectors.DefaultSelector() as selector:
        selector.register(worker.stdout, selectors.EVENT_READ)
        while selector.select(patience):
            chunk = os.read(worker.stdout.fileno(), 1 << 16)
            if not chunk:
                return
            *lines, waiting = (waiting + chunk).split(b"\n")
            yield from (line.decode() for line in lines)
    worker.kill()


def _failure(number: int, returncode: int, stderr: str) -> Failure:
    said = Path(stderr).read_text(errors="replace").strip()
    detail = said if len(said) < 4000 else f"{said[:2000]}\n...\n{said[-2000:]}"  # reports begin with the reason
    if returncode == -signal.SIGKILL:
        return Failure(number, "hang", detail)
    kind = "error" if returncode == 1 and "Traceback" in detail and "Sanitizer" not in detail else "crash"
    return Failure(number, kind, f"exit status {returncode}\n{detail}")
