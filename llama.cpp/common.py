"""What the scripts of this folder share: one error type, one way to report progress, one place in the user cache."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout
from platformdirs import user_cache_path


class ProvideError(Exception):
    """llama.cpp cannot be provided; the message says what happened and names the way out."""


def say(line: str) -> None:
    """One line of progress. It goes to stderr, because stdout carries the result."""
    sys.stderr.write(f"llama.cpp: {line}\n")
    sys.stderr.flush()


def cache() -> Path:
    """Where sources and builds are kept, created when it is missing."""
    path: Path = user_cache_path("ipyllama", appauthor=False) / "llama.cpp"
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ProvideError(f"cannot write to the cache folder {path} ({error.strerror}). Set XDG_CACHE_HOME.") from None
    return path


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the lock `name`, so that two builds at the same time do the work once."""
    lock = FileLock(cache() / f"{name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say("another build is at work on the same thing; waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def find_program(name: str) -> str | None:
    """The path of a program: on PATH, or where pip puts the programs of this Python (a venv need not be activated)."""
    scripts = (str(Path(sys.executable).parent), sysconfig.get_path("scripts"))
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", os.defpath), *scripts)))
