"""`python -m benchmarks.one_restart MODEL compute|save|restore|parts [FOLDER]`: one fresh process, as JSON.

`compute` reads the prompt with nothing kept; `save` does the same and keeps it in FOLDER; `restore` finds it there;
`parts` does what cannot be left out of a restore, and nothing else: reads the bytes into memory, gives the state to the
sequence, evaluates one token.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import Final

BEGAN: Final = time.monotonic()

import numpy as np  # noqa: E402 - the imports are part of what is measured

from ipyllama import _core  # noqa: E402
from ipyllama.ledger import Ledger  # noqa: E402
from ipyllama.llm import LLM, load  # noqa: E402
from ipyllama.loading import context_options  # noqa: E402
from ipyllama.options import GenerateOptions  # noqa: E402
from ipyllama.reply import Reply  # noqa: E402

N_TOKENS: Final = 2048


@dataclass(frozen=True, slots=True)
class Restart:
    """Seconds."""

    first_token: float
    """from the request on, with the model loaded"""
    process: float = 0.0
    """from the start of Python's work on, with import and load"""
    read: float = 0.0
    set: float = 0.0
    decode: float = 0.0


def main() -> None:
    model, mode, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3]) if len(sys.argv) > 3 else None
    with load(model, cache=folder) as llm:
        if mode == "parts":
            print(json.dumps(asdict(parts(llm))))
            return
        reply = ask(llm)
        found = Restart(reply.timings.first_token, time.monotonic() - BEGAN - reply.timings.decode)
        expected = N_TOKENS - 1 if mode == "restore" else 0
        if reply.usage.restored != expected or reply.usage.prompt != N_TOKENS:
            raise RuntimeError(f"not what was to be measured: {reply.usage}")
        llm.memory.flush()
    print(json.dumps(asdict(found)))


def ask(llm: LLM) -> Reply:
    options = GenerateOptions(max_tokens=1, temperature=0)
    return llm.generate(prompt(llm), options, fresh=True).result()


def prompt(llm: LLM) -> Ledger:
    text = "In the morning the light was slow to come over the hills, and the river was quiet. " * 150
    return Ledger().append_prompt(llm.tokenize(text)[:N_TOKENS])


def parts(llm: LLM) -> Restart:
    """In a context of its own, with the options of the model's."""
    ledger, store = prompt(llm), llm.memory.store
    assert store is not None
    assert llm.memory.location is not None
    sequence = _core.Sequence(_core.Context(llm._model, context_options(llm.options)))
    links = takewhile(lambda link: link.end < len(ledger), llm.memory.links(ledger))
    known = {entry.key: entry for entry in store.entries()}
    entries = [(known[link.key], link.tokens) for link in links]
    files = [(llm.memory.location / entry.name, store.header(entry).nbytes, tokens) for entry, tokens in entries]
    buffer = np.empty(max(path.stat().st_size for path, _, _ in files), np.uint8)
    reading = setting = 0.0
    for path, n, tokens in files:
        began = time.perf_counter()
        with open(path, "rb", buffering=0) as file:
            size = file.readinto(buffer.data)
        between = time.perf_counter()
        sequence.append(buffer[size - n : size], list(tokens))
        reading, setting = reading + between - began, setting + time.perf_counter() - between
    began = time.perf_counter()
    sequence.decode(list(ledger.tokens[-1:]))
    decode = time.perf_counter() - began
    return Restart(reading + setting + decode, read=reading, set=setting, decode=decode)


def forget(folder: Path) -> None:
    """Take the files of a folder out of the page cache."""
    for file in folder.rglob("*.kv"):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


if __name__ == "__main__":
    main()
