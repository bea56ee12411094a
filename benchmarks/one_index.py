"""`python -m benchmarks.one_index FOLDER N`: an index of N chunks in a process of its own, whose memory is measured."""

from __future__ import annotations

import json
import random
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from ipyllama.llm import load
from ipyllama.rag import Index

_IN_A_DOCUMENT = 25
_WORDS = 18  # about 25 tokens: no two paragraphs fit into a chunk


def main() -> None:
    folder, n = sys.argv[1], int(sys.argv[2])
    llm = load("minilm")
    llm.embed(["loaded"] * 64, progress=lambda *report: None)
    before = peak()
    began = time.perf_counter()
    index = Index.create("large", documents(n), location=folder, embed=llm, chunk_tokens=32, overlap=0, progress=silent)
    seconds, most = time.perf_counter() - began, peak()
    tokens = sum(len(llm.tokenize(text)) for _, text in documents(n))
    searches = []
    for number in range(60):
        began = time.perf_counter()
        index.search(f"what about {vocabulary()[number]} and {vocabulary()[-number]}?")
        searches.append(1000 * (time.perf_counter() - began))
    searches = sorted(searches[10:])
    began = time.perf_counter()
    again = index.add(documents(n), progress=silent)
    seconds_again, chunks = time.perf_counter() - began, len(index)
    assert again.embedded == 0
    disk = sum(file.stat().st_size for file in index.folder.rglob("*") if file.is_file())
    index.drop()
    began = time.perf_counter()
    Index.create("large", documents(n), location=folder, embed=llm, chunk_tokens=32, overlap=0, progress=silent)
    facts = {
        "chunks": chunks,
        "search": searches[len(searches) // 2],
        "slowest": searches[len(searches) * 95 // 100],
        "peak": most - before,
        "rate": chunks / seconds,
        "tokens": tokens / seconds,
        "again": seconds_again,
        "anew": time.perf_counter() - began,
        "disk": disk / 1e6,
    }
    sys.stdout.write(json.dumps(facts))


def documents(n: int) -> Iterator[tuple[str, str]]:
    """Texts of 25 paragraphs, each of which is one chunk or two."""
    words, chance = vocabulary(), random.Random(0)
    for number in range(-(-n // _IN_A_DOCUMENT)):
        paragraphs = (" ".join(chance.choices(words, k=_WORDS)) for _ in range(_IN_A_DOCUMENT))
        yield f"document {number}", "\n\n".join(paragraphs)


def vocabulary() -> list[str]:
    """Words of this language, from the sources of this repository."""
    text = " ".join(path.read_text("utf-8") for path in sorted(Path(__file__).parents[1].glob("docs/*.md")))
    return sorted({word for word in text.lower().split() if word.isalpha() and 3 < len(word) < 9})


def peak() -> float:
    """Megabytes that this process had in memory at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)


def silent(done: int, total: int | None, label: str) -> None:
    """No bar among the figures."""


if __name__ == "__main__":
    main()
