"""Short ways to native objects, and a process of its own for what might crash."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from ipyllama import _core

SANITIZED = "libasan" in os.environ.get("LD_PRELOAD", "")
"""Freed memory is then kept for a while, and everything takes longer: sizes and times say nothing."""
DEBUG = _core.build_info()["build_type"] == "Debug"

in_use_at_the_end = pytest.mark.skipif(
    DEBUG, reason="in a debug build what is in use when Python ends counts as leaked"
)


def make_context(model: _core.Model, **options: object) -> _core.Context:
    """A small context on one thread; `options` are those of ContextOptions."""
    chosen = _core.ContextOptions()
    for name, value in {"n_ctx": 512, "n_batch": 256, **options}.items():
        setattr(chosen, name, value)
    return _core.Context(model, chosen)


def make_sequence(path: Path, **options: object) -> _core.Sequence:
    """Sequence 0 of a new context of the model in `path`; it keeps both alive."""
    return _core.Sequence(make_context(_core.Model.load(str(path)), **options))


def make_sampler(model: _core.Model, **options: float) -> _core.Sampler:
    """Penalties, top-k, top-p, min-p, temperature, draw: every filter off, except what `options` say."""
    chosen = {
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "repeat": 1.0,
        "last_n": 64,
        "seed": 0,
        **options,
    }
    make = _core.Sampler
    return make.chain(
        [
            make.penalties(model, last_n=chosen["last_n"], repeat=chosen["repeat"]),
            make.top_k(chosen["top_k"]),
            make.top_p(chosen["top_p"]),
            make.min_p(chosen["min_p"]),
            make.temp(chosen["temperature"]),
            make.dist(chosen["seed"]),
        ]
    )


def run_apart(code: str, *arguments: object) -> str:
    """Run `code` in a Python of its own and return what it prints. A crash, an error or a word on stderr fails."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-X", "faulthandler", "-c", dedent(code), *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=240)
    assert (done.returncode, done.stderr) == (0, ""), f"exit code {done.returncode}\n{_ends(done.stderr)}"
    return done.stdout


def _ends(text: str) -> str:
    """A report begins with its reason, a traceback ends with it."""
    return text if len(text) < 3000 else f"{text[:1500]}\n...\n{text[-1500:]}"
