"""`python -m benchmarks.one_saving MODEL disk|ram|nothing`: prefill and decode of one fresh process that keeps what it
computes there, as JSON."""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import asdict

from benchmarks.one_run import DECODE, PREFILL, Speed, decode_rate, generate
from ipyllama.llm import load


def main() -> None:
    model, where = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="ipyllama-bench-") as folder:
        cache = folder if where == "disk" else None
        with load(model, cache=cache, **({"ram_limit": 0} if where == "nothing" else {})) as llm:
            text = llm.tokenize("The light was slow to come over the hills, and the river was quiet. " * 60)
            generate(llm, text[3:300], 2)
            reply = generate(llm, text[:PREFILL], DECODE, temperature=0.0)
            llm.memory.flush()
            saved = llm.memory.counts.saved
    if bool(saved) != (where != "nothing"):
        raise RuntimeError(f"not what was to be measured: {saved} blocks saved")
    print(json.dumps(asdict(Speed(PREFILL / reply.timings.prefill, decode_rate(reply), 0.0, 0.0))))


if __name__ == "__main__":
    main()
