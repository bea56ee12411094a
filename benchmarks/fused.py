"""Questions about documents: time to the first token cold, exact and fused, and how far fused is from exact.

The corpus is made up, so that nothing has to be fetched: reports on plants that resemble each other, which is hard for
fused reuse, because what tells them apart stands in the first sentence of each.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from statistics import fmean, median
from typing import Final

from benchmarks.harness import Bench, Row, Target
from ipyllama.layout import Layout
from ipyllama.lens.divergence import Divergence, Seen
from ipyllama.llm import LLM
from ipyllama.rag.frame import layout_for
from ipyllama.rag.types import Chunk
from ipyllama.reply import Reply

DOCUMENTS: Final = 24
READ: Final = 4
"""Documents in a prompt: about 1,500 tokens with the frame."""
ROUNDS: Final = 5
QUESTIONS: Final = 100
RECOMPUTED: Final = (0, 8, 16, 32, 64)
"""Tokens of each moved document that are computed anew."""
ANSWER: Final = 8
"""Tokens of each answer that are compared."""
AT_MOST: Final = Target("ratio", 1 / 8)
_TOWNS: Final = ("Avon", "Birch", "Cobalt", "Dune", "Elm", "Fjord", "Gale", "Heron")
_GOODS: Final = ("bolts", "glass", "paper", "soap", "wire", "bricks", "rope", "ink")
_LANDS: Final = ("Peru", "Norway", "Kenya", "Japan", "Chile", "Ghana")


def measure(bench: Bench) -> Iterator[Row]:
    rng = random.Random(7)
    with bench.load() as llm:
        found = [one_round(llm, rng) for _ in range(1 if bench.quick else ROUNDS)]
        cold, exact, fused = (median(each[n] for each in found) for n in range(3))
        against = "to compute all"
        yield Row("first token, 4 documents, exact in another order", exact, "ms", cold, against, exact / cold)
        yield Row("first token, 4 documents, fused", fused, "ms", cold, against, fused / cold, AT_MOST)


def measure_divergence(bench: Bench) -> Iterator[Row]:
    """Takes half an hour: each question is read in full once, to compare with."""
    with bench.load() as llm:
        yield from divergences(llm, random.Random(8), 2 if bench.quick else QUESTIONS)


def one_round(llm: LLM, rng: random.Random) -> tuple[float, float, float]:
    """Milliseconds to the first token: nothing known; the same documents in another order; the same, fused."""
    chunks = [document(rng) for _ in range(READ)]
    cold = first_token(llm, prompt(llm, chunks, rng))
    others = [[chunks[0], chunks[3], chunks[1], chunks[2]], [chunks[2], chunks[0], chunks[3], chunks[1]]]
    exact = first_token(llm, prompt(llm, others[0], rng))
    llm.complete(prompt(llm, [chunks[1], *chunks[2:], chunks[0]], rng), reuse="fused", max_tokens=1)  # each once
    fused = first_token(llm, prompt(llm, others[1], rng), reuse="fused")
    return cold, exact, fused


def divergences(llm: LLM, rng: random.Random, questions: int) -> Iterator[Row]:
    """For each number of recomputed tokens the mean over questions, all of which are asked fused before any exactly."""
    shelf = [document(rng) for _ in range(DOCUMENTS)]
    found: dict[int, list[Divergence]] = {n: [] for n in RECOMPUTED}
    for _ in range(questions):
        asked = prompt(llm, rng.sample(shelf, READ), rng)
        runs = {n: watched(llm, asked, n) for n in RECOMPUTED}
        for n, (reply, seen) in runs.items():
            found[n].append(llm.compare(asked, reply, seen))
    for n, each in found.items():
        kl, agreement = fmean(one.mean_kl for one in each), fmean(one.agreement for one in each)
        yield Row(f"fused, {n} recomputed: mean KL to exact", 1000 * kl, "millinats")
        yield Row(f"fused, {n} recomputed: same likeliest token", 100 * agreement, "%")


def watched(llm: LLM, asked: Layout, recompute: int) -> tuple[Reply, Seen]:
    seen = Seen()
    job = llm.start(asked, reuse="fused", recompute=recompute, max_tokens=ANSWER, temperature=0, watch=seen)
    return job.result(), seen


def first_token(llm: LLM, asked: Layout, **options: str) -> float:
    reply = llm.complete(asked, max_tokens=2, fresh=True, **options)
    if options and not reply.fused:
        raise RuntimeError("not what was to be measured: nothing was moved")
    return 1000 * reply.timings.first_token


def prompt(llm: LLM, chunks: Sequence[Chunk], rng: random.Random) -> Layout:
    """A question about one of the documents."""
    return layout_for(llm.template, f"How many people work at {rng.choice(chunks).title}?", chunks)


def document(rng: random.Random) -> Chunk:
    name = f"{rng.choice(_TOWNS)} plant number {rng.randrange(1000)}"
    lines = [f"{name} opened in {1900 + rng.randrange(100)} and employs {rng.randrange(20, 900)} people."]
    lines += [
        f"Its department {n} makes {rng.choice(_GOODS)} for {rng.choice(_LANDS)} and ships {rng.randrange(100)} tons."
        for n in range(17)
    ]
    return Chunk(name, " ".join(lines), "plants.md", name)
