"""Every lesson runs from top to bottom, as `make demo` runs it, and its own assertions hold."""

from __future__ import annotations

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
