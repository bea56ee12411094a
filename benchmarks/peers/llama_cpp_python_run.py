"""`PEERS_PYTHON llama_cpp_python.py MODE FOLDER < WORK`: one process of llama-cpp-python with its LlamaDiskCache.

Modes as in ours.py. It runs in the peers' environment and knows nothing of ipyllama.
"""

import json
import sys
import time

from llama_cpp import Llama, LlamaDiskCache


def main():
    mode, folder, work = sys.argv[1], sys.argv[2], json.load(sys.stdin)
    threads = work["n_threads"]
    llm = Llama(work["model"], n_ctx=work["n_ctx"], n_threads=threads, n_threads_batch=threads, verbose=False)
    llm.set_cache(LlamaDiskCache(folder))
    found = {}
    if mode == "branches":
        for prompt in work["prompts"][1:]:
            llm.create_completion(prompt, max_tokens=work["n_reply"], temperature=0)
    else:
        began = time.perf_counter()
        prompt = work["prompts"][mode == "other"]
        n = work["n_reply"] if mode == "prepare" else 2
        stream = llm.create_completion(prompt, max_tokens=n, temperature=0, stream=True)
        next(stream)
        found["seconds"] = time.perf_counter() - began
        for _ in stream:
            pass
    print(json.dumps(found))


if __name__ == "__main__":
    main()
