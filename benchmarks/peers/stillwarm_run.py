"""`PEERS_PYTHON stillwarm_run.py MODE FOLDER URL < WORK`: stillwarm in front of a llama-server that keeps its slots in
FOLDER. Modes as in ours.py. It runs in the peers' environment and knows nothing of ipyllama.
"""

import json
import sys
import time

from stillwarm import LlamaServer, ServerProfile, Session


class Timed(LlamaServer):
    """Remembers when the first completion was there: `ask` returns only after it has saved the state and probed it."""

    done = 0.0

    def completion(self, *arguments, **options):
        answer = super().completion(*arguments, **options)
        self.done = self.done or time.perf_counter()
        return answer


def main():
    mode, folder, work = sys.argv[1], sys.argv[2], json.load(sys.stdin)
    server = Timed(sys.argv[3])
    profile = ServerProfile(
        model_sha256=work["sha256"],
        flash_attn="on",
        cache_type_k="f16",
        cache_type_v="f16",
        swa_full=False,
        ctx_size=work["n_ctx"],
    )
    session, found = Session(server, profile, cache_dir=folder), {}
    texts = work["texts"]
    if server.tokenize(texts[0]) != work["prompts"][0]:
        raise SystemExit("the server makes other tokens of the prompt's text")
    if mode == "branches":
        for number, text in enumerate(texts[1:]):
            session.ask(f"branch-{number}", text, n_predict=work["n_reply"])
    else:
        began = time.perf_counter()
        n = work["n_reply"] if mode == "prepare" else 1
        answer = session.ask("first", texts[mode == "other"], n_predict=n)
        found = {"seconds": server.done - began, "computed": answer.prompt_n}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
