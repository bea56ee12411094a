"""A real kernel in a process of its own, as a front end drives it."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

PATIENCE: Final = 300.0
"""Seconds after which a kernel is taken for hung."""

Message = dict[str, Any]


@contextmanager
def started(model: str) -> Iterator[Kernel]:
    """A kernel with the extension and a model loaded."""
    with tempfile.TemporaryDirectory(prefix="ipyllama-bench-") as folder:
        manager = KernelManager(transport="ipc", connection_file=f"{folder}/connection.json")
        manager.start_kernel(
            env=os.environ | {"IPYTHONDIR": folder, "IPYLLAMA_PREFIX_DIR": f"{folder}/prefix"}, cwd=folder
        )
        client = manager.blocking_client()
        try:
            client.start_channels()
            client.wait_for_ready(PATIENCE)
            kernel = Kernel(manager, client)
            kernel.run(f"%load_ext ipyllama\n%llama load {model}")
            yield kernel
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)
            manager.cleanup_resources()


class Kernel:
    """Runs cells one at a time, starts and interrupts them."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient) -> None:
        self._manager, self._client = manager, client
        self._seen: list[Message] = []

    def run(self, code: str) -> float:
        """Run a cell that must succeed; the seconds it took, from busy to idle by the kernel's clock."""
        reply = self.finish(self.start(code))
        if reply["content"]["status"] != "ok":
            raise RuntimeError(f"{code!r} failed: {reply['content']}")
        begin, end = (m["header"]["date"] for m in self._seen if m["msg_type"] == "status")
        return float((end - begin).total_seconds())

    def start(self, code: str) -> str:
        """Send a cell without waiting; its id."""
        self._seen = []
        return str(self._client.execute(code, allow_stdin=False, stop_on_error=False))

    def wait_for(self, cell: str, kind: str) -> None:
        """Return when the running cell sends a message of this kind."""
        while self._read(cell)["msg_type"] != kind:
            pass

    def finish(self, cell: str) -> Message:
        """Wait for the reply of a started cell. Its output is read only then: reading must not cost the cell time."""
        while True:
            reply: Message = self._client.get_shell_msg(timeout=PATIENCE)
            if reply["parent_header"].get("msg_id") == cell:
                break
        while not any(m["content"].get("execution_state") == "idle" for m in self._seen):
            self._read(cell)
        return reply

    def interrupt(self, cell: str) -> float:
        """Stop the running cell; the seconds until its reply. Raises if it ended otherwise."""
        began = time.monotonic()
        self._manager.interrupt_kernel()
        reply = self.finish(cell)
        seconds = time.monotonic() - began
        if reply["content"].get("ename") != "Interrupted":
            raise RuntimeError(f"the cell was not interrupted: {reply['content']}")
        return seconds

    def value(self, expression: str) -> str:
        """The repr of an expression."""
        self._seen = []
        cell = self._client.execute("", user_expressions={"value": expression})
        return str(self.finish(cell)["content"]["user_expressions"]["value"]["data"]["text/plain"])

    def _read(self, cell: str) -> Message:
        """The cell's next message on the output channel."""
        while True:
            message: Message = self._client.get_iopub_msg(timeout=PATIENCE)
            if message["parent_header"].get("msg_id") == cell:
                self._seen.append(message)
                return message
