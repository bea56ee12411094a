"""Killed processes, and many at once. `make faults` runs both with the full counts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from reliability import crowd

TESTS = Path(__file__).parents[1]


def test_a_killed_process_leaves_whole_blocks_only() -> None:
    """In a process without threads, because it forks."""
    command = [sys.executable, "-m", "reliability.kill", "--kills", "12", "--seed", "3"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=200, cwd=TESTS)
    assert done.returncode == 0, done.stderr
    assert "12 processes killed" in done.stdout
    assert not done.stdout.endswith(" 0 blocks, all true\n")


def test_many_processes_on_one_store(tmp_path: Path) -> None:
    counts = crowd.run(tmp_path, processes=4, seconds=2.0, seed=11)
    assert sum(count["written"] for count in counts) > 0
    assert sum(count["read"] for count in counts) > 0
    assert 0 < max(count["most"] for count in counts) <= crowd.LIMIT
