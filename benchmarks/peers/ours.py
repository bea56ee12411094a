"""`python -m benchmarks.peers.ours REUSE MODE FOLDER < WORK`: one process of ours that keeps its states in FOLDER.

MODE is `prepare` (answer the first prompt), `again` (the same once more), `other` (another question about the same
prefix), `branches` (every question but the first), `turns` (the same as later turns of one conversation).
"""

from __future__ import annotations

import json
import sys
import time

from benchmarks.peers.work import PREFIX, TAIL
from ipyllama.ledger import Ledger
from ipyllama.llm import LLM, load
from ipyllama.options import GenerateOptions, Reuse
from ipyllama.reply import Delta, Reply


def main() -> None:
    reuse, mode, folder = sys.argv[1:]
    work = json.load(sys.stdin)
    prompts, found = work["prompts"], dict[str, float]()
    with load(work["model"], cache=folder, n_ctx=work["n_ctx"], n_threads=work["n_threads"]) as llm:
        if mode == "branches":
            for prompt in prompts[1:]:
                answer(llm, Ledger().append_prompt(prompt), work["n_reply"], reuse)
        elif mode == "turns":
            first = Ledger().append_prompt(prompts[0][:PREFIX])
            answer(llm, first, 1, reuse)
            for prompt in prompts[1:]:
                answer(llm, first.append_prompt(prompt[-TAIL:]), work["n_reply"], reuse)
        else:
            answer(llm, Ledger().append_prompt(prompts[0][:8]), 2, reuse)  # warm, as servers are that have started
            began = time.perf_counter()
            ledger = Ledger().append_prompt(prompts[mode == "other"])
            first_token, reply = answer(llm, ledger, work["n_reply"] if mode == "prepare" else 2, reuse)
            found = {"seconds": first_token - began, "computed": reply.usage.computed}
        llm.memory.flush()
        if mode in ("branches", "turns"):
            cell = llm._engine._live.sequence.state_size() / llm.n_live
            found = {"bytes_per_token": cell}
    print(json.dumps(found))


def answer(llm: LLM, ledger: Ledger, n: int, reuse: Reuse) -> tuple[float, Reply]:
    """When the first token was there, and the reply."""
    job = llm.generate(ledger, GenerateOptions(max_tokens=n, temperature=0, reuse=reuse), fresh=True)
    first = 0.0
    for event in job:
        if isinstance(event, Delta) and not first:
            first = time.perf_counter()
    if not first:
        raise RuntimeError("the first tokens made no text: ask for more")
    return first, job.result()


if __name__ == "__main__":
    main()
