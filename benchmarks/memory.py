"""Resident memory of a fresh process: after the import, with a model loaded, and after it is unloaded again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from statistics import median
from typing import Final

from benchmarks.harness import Bench, Row

ROUNDS: Final = 3

SCRIPT: Final = """
import json, sys, psutil
def resident(): return psutil.Process().memory_info().rss / 1e6
sizes = {"bare": resident()}
import ipyllama
sizes["import"] = resident()
from ipyllama import Chat, load
sizes["extension"] = resident()
llm = load(sys.argv[1])
sizes["load"] = resident()
llm.complete("Once upon a time", max_tokens=64)
sizes["use"] = resident()
llm.close()
sizes["unload"] = resident()
print(json.dumps(sizes))
"""


def measure(bench: Bench) -> Iterator[Row]:
    found = bench.interleave({"ours": lambda: sizes(bench.model)}, ROUNDS)["ours"]
    middle = {name: median(run[name] for run in found) for name in found[0]}
    yield Row("memory after import ipyllama", middle["import"], "MB", middle["bare"], "before")
    yield Row("memory after load", middle["load"], "MB", middle["extension"], "before")
    yield Row("memory after 64 tokens", middle["use"], "MB")
    yield Row("memory after unload", middle["unload"], "MB", middle["extension"], "before load")


def sizes(model: str) -> dict[str, float]:
    command = [sys.executable, "-c", SCRIPT, model]
    with tempfile.TemporaryDirectory(prefix="ipyllama-bench-") as folder:
        env = os.environ | {"IPYLLAMA_PREFIX_DIR": folder}
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=env)
    found: dict[str, float] = json.loads(done.stdout)
    return found
