"""Retrieval: what is found of real questions and answers (`rag`), and what 10,000 chunks take (`index`)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

from benchmarks import faq
from benchmarks.harness import Bench, Row, Target
from ipyllama.rag import Index

K: Final = 5
LABELS: Final = {"vector": "by meaning", "text": "by words", "hybrid": "hybrid"}


def measure(bench: Bench) -> Iterator[Row]:
    pairs = faq.pairs()[: 40 if bench.quick else None]
    documents = [(f"answer {i}", answer) for i, (_, answer) in enumerate(pairs)]
    bench.wait_until_quiet()
    index = Index.create("faq", documents, location=bench.folder.name, progress=lambda *report: None)
    asked = [(question, f"answer {i}") for i, (question, _) in enumerate(pairs)]
    found = index.evaluate(asked, K, progress=lambda *report: None)
    recall = {mode: 100 * found[mode].recall[-1] for mode in LABELS}
    best = max(recall["vector"], recall["text"])
    for mode, label in LABELS.items():
        first = 100 * found[mode].recall[0]
        target = Target("ours", 90.0 if mode == "vector" else best - 1, at_least=True) if mode != "text" else None
        yield Row(f"recall@{K}, {label}, {len(pairs)} questions", recall[mode], "%", first, "recall@1", target=target)
        yield Row(f"  MRR@{K}", found[mode].mrr, "")
        yield Row("  one search, median", found[mode].seconds * 1000, "ms")


def measure_large(bench: Bench) -> Iterator[Row]:
    bench.wait_until_quiet()
    command = [sys.executable, "-m", "benchmarks.one_index", bench.folder.name, "500" if bench.quick else "10000"]
    large = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    n = large["chunks"]
    yield Row(f"search in {n:,} chunks, median", large["search"], "ms", target=Target("ours", 50.0))
    yield Row("  slowest of 20", large["slowest"], "ms")
    yield Row("  memory to index them, at the peak", large["peak"], "MB", target=Target("ours", 1500.0))
    yield Row("  chunks in a second", large["rate"], "/s", large["tokens"], "tokens in a second")
    yield Row("  adding all again, unchanged", large["again"], "s")
    yield Row("  making it anew, vectors kept", large["anew"], "s")
    yield Row("  on disk", large["disk"], "MB")
