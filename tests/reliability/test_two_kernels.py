"""Two processes with a real model each on one folder, as two kernels on copies of a notebook."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from reliability.ask import PROMPTS, answer

import ipyllama

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("arch", ["llama", "lfm2"])
def test_both_are_told_what_a_process_alone_is_told(tiny, tmp_path: Path, arch: str) -> None:
    path = str(tiny(arch))
    command = [sys.executable, "-m", "reliability.ask", path, str(tmp_path), "14"]
    started = [subprocess.Popen([*command, seed], stdout=subprocess.PIPE, cwd=TESTS) for seed in ("1", "2")]
    with ipyllama.load(path, n_ctx=2048, n_threads=1, cache=None, ram_limit=0) as llm:
        alone = {str(n): answer(llm, n)[0] for n in range(len(PROMPTS))}
    found = [json.loads(process.communicate(timeout=200)[0]) for process in started]
    assert [process.returncode for process in started] == [0, 0]
    for one in found:
        assert one["answers"] == {n: [alone[n]] for n in one["answers"]}
        assert (one["damaged"], one["restored"] > 500) == (0, True)
