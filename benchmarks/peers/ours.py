"""`python -m benchmarks.peers.ours HOW MODE FOLDER < WORK`: one process of ours that keeps its states in FOLDER.

HOW is `exact`, `token` (the values of `reuse`) or `parts`: exact, and what all prompts begin with is a part of its own,
as in `complete([document, question])`. MODE is `prepare` (answer the first prompt), `again` (the same once more),
`other` (another question about the same prefix), `branches` (every question but the first).
"""

from __future__ import annotations

import json
import sys
import time

from benchmarks.peers.work import PREFIX
from ipyllama.ledger import Ledger
from ipyllama.llm import LLM, load
from ipyllama.options import GenerateOptions, Reuse
from ipyllama.reply import Delta, Reply


def main() -> None:
    how, mode, folder = sys.argv[1:]
    reuse: Reuse = "token" if how == "token" else "exact"
    work = json.load(sys.stdin)
    prompts = [ledger(prompt, in_parts=how == "parts") for prompt in work["prompts"]]
    with load(work["model"], cache=folder, n_ctx=work["n_ctx"], n_threads=work["n_threads"]) as llm:
        if mode == "branches":
            for prompt in prompts[1:]:
                answer(llm, prompt, work["n_reply"], reuse)
            found = {"bytes_per_token": llm._engine._live.sequence.state_size() / llm.n_live}
        else:
            answer(llm, prompts[0].head(8), 2, reuse)  # warm, as servers are that have started
            llm.memory.flush()
            began = time.perf_counter()
            n = work["n_reply"] if mode == "prepare" else 2
            first_token, reply = answer(llm, prompts[mode == "other"], n, reuse)
            found = {"seconds": first_token - began, "computed": reply.usage.computed}
        llm.memory.flush()
    print(json.dumps(found))


def ledger(prompt: list[int], *, in_parts: bool) -> Ledger:
    if not in_parts:
        return Ledger().append_prompt(prompt)
    return Ledger().append_prompt(prompt[:PREFIX]).append_prompt(prompt[PREFIX:])


def answer(llm: LLM, prompt: Ledger, n: int, reuse: Reuse) -> tuple[float, Reply]:
    """When the first token was there, and the reply."""
    job = llm.generate(prompt, GenerateOptions(max_tokens=n, temperature=0, reuse=reuse), fresh=True)
    first = 0.0
    for event in job:
        if isinstance(event, Delta) and not first:
            first = time.perf_counter()
    if not first:
        raise RuntimeError("the first tokens made no text: ask for more")
    return first, job.result()


if __name__ == "__main__":
    main()
