"""What a dead kernel tells the next one.

Where llama.cpp ends the process, native code writes a note into the user cache: its message, its last error lines,
what was running. The next process in the same place shows it once. A place is a notebook, or outside of notebooks the
current folder: so nobody sees the crash of a notebook that is not theirs, and it waits until that notebook is opened.

Faults that the processor reports (SIGSEGV and the like) leave no note: their handlers are process-wide, other
libraries use them for purposes of their own, and ipykernel has Python's faulthandler write to the server's log.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ipyllama.errors import CrashWarning
from ipyllama.models.cache import crash_dir

_KEEP_SECONDS: Final = 30 * 24 * 3600
_MAX_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class CrashNote:
    """The end of an earlier process. Texts are "" where the note says nothing."""

    message: str
    """of the check that failed: "ops.cpp:123: fatal error" """
    running: str
    """what was at work: "answering with smollm2" """
    log: str
    """llama.cpp's last error lines"""
    version: str
    llama_cpp: str
    time: float
    """when it happened, in seconds since 1970"""

    def __str__(self) -> str:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.time))
        doing = f" while {self.running}" if self.running else ""
        why = f"{self.message} ({self.log})" if self.log else self.message
        return (
            f"the previous kernel died in llama.cpp{doing} ({when}): {why}. Run the cells again; if it dies again, "
            f"use other options or another model file, and report this line (ipyllama {self.version}, llama.cpp "
            f"{self.llama_cpp})."
        )


def place() -> str:
    """The notebook that this process serves; outside of one, the current folder."""
    if name := os.environ.get("JPY_SESSION_NAME"):
        return name
    shell = ipython.get_ipython() if (ipython := sys.modules.get("IPython")) else None
    vs_code = getattr(shell, "user_ns", {}).get("__vsc_ipynb_file__")
    return str(vs_code or Path.cwd())


class _Facts:
    """What native code would write besides the message."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: list[str] = []

    def arm(self) -> None:
        """Say where a note would go. A forked process shares it with its parent."""
        from ipyllama import _core

        name = f"{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}.txt"
        _core.set_crash_file(str(crash_dir() / name))
        self._tell()

    def hold(self) -> None:
        """Before a fork: no other thread is inside when the process is copied."""
        self._lock.acquire()

    def release(self) -> None:
        self._lock.release()

    def release_in_child(self) -> None:
        """What runs is the parent's."""
        self._running = []
        self._lock.release()

    @contextmanager
    def running(self, what: str) -> Iterator[None]:
        """While this holds, a note says that `what` was running."""
        with self._lock:
            self._running.append(what)
            self._tell()
        try:
            yield
        finally:
            with self._lock:
                self._running.remove(what)
                self._tell()

    def _tell(self) -> None:
        from ipyllama import _core

        facts = {
            "version": _core.build_info()["version"],
            "llama.cpp": _core.build_info()["llama_cpp_commit"][:12],
            "place": place(),
            "running": " and ".join(self._running),
        }
        lines = (f"{name}: {' '.join(value.split())}" for name, value in facts.items())
        _core.set_crash_facts("\n".join(lines).encode("utf-8", "replace").decode())


_facts: Final = _Facts()
arm: Final = _facts.arm
running: Final = _facts.running
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_facts.hold, after_in_parent=_facts.release, after_in_child=_facts.release_in_child)


def take_note() -> CrashNote | None:
    """The newest note of this place, which is not shown again; older ones of it go, too. None if there is none."""
    newest = None
    for path in _notes():
        facts = _read(path)
        if facts.get("place") == " ".join(place().split()) and "message" in facts and _remove(path):
            newest = CrashNote(
                message=facts["message"],
                running=facts.get("running", ""),
                log=facts.get("log", ""),
                version=facts.get("version", "?"),
                llama_cpp=facts.get("llama.cpp", "?"),
                time=path_time(facts),
            )
    return newest


def warn() -> None:
    """Show the note of this place as a `CrashWarning`, for a program without a notebook's display."""
    import warnings

    if note := take_note():
        warnings.warn(str(note), CrashWarning, stacklevel=3)


def path_time(facts: dict[str, str]) -> float:
    """The time in a note; 0 if it says none."""
    return float(facts["time"]) if facts.get("time", "").isdecimal() else 0.0


def _notes() -> list[Path]:
    """The files in order of age; those that nobody came for in a month are removed."""
    found: list[tuple[float, Path]] = []
    with suppress(OSError), os.scandir(crash_dir()) as entries:
        for entry in entries:
            if not entry.is_file(follow_symlinks=False):
                continue
            changed = entry.stat(follow_symlinks=False).st_mtime
            if time.time() - changed > _KEEP_SECONDS:
                _remove(Path(entry.path))
            else:
                found.append((changed, Path(entry.path)))
    return [path for _, path in sorted(found)]


def _read(path: Path) -> dict[str, str]:
    """The lines of a note by name; {} if it cannot be read."""
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return {}
    return {name: value for name, mark, value in (line.partition(": ") for line in text.splitlines()) if mark}


def _remove(path: Path) -> bool:
    """Whether this process was the one that took the file away: of two that look, one shows it."""
    try:
        path.unlink()
    except OSError:
        return False
    return True
