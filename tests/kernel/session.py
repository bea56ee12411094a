"""A real kernel in a process of its own, driven as JupyterLab drives it."""

from __future__ import annotations

import os
import queue
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import zmq
from jupyter_client import BlockingKernelClient, KernelManager

PATIENCE = 120.0
"""Seconds before a test takes the kernel for hung. Nothing normal takes that long, even on a busy machine."""

DEAD = 3
"""Seconds without an answer after which a front end takes a kernel for dead."""

_SESSION = "get_ipython().magics_manager.registry['LlamaMagics'].session"
FORGET = f"%llama reset\nfor name in {_SESSION}.chat_names: {_SESSION}.reset(name)"
"""A cell that makes a kernel forget its conversations."""

Message = dict[str, Any]


@dataclass
class Result:
    """What one cell sent, as the front end sees it: messages in order of arrival, and the reply."""

    messages: list[Message] = field(default_factory=list)
    reply: Message = field(default_factory=dict)

    @property
    def content(self) -> dict[str, Any]:
        return self.reply["content"]

    @property
    def ok(self) -> bool:
        return self.content["status"] == "ok"

    @property
    def error(self) -> str:
        """The traceback as it is shown, one line per entry; empty where there was no error."""
        return "\n".join(line for message in self.of("error") for line in message["content"]["traceback"])

    @property
    def bundles(self) -> list[dict[str, str]]:
        """Every state of the display in turn: what was shown first, then each update."""
        return [m["content"]["data"] for m in self.of("display_data", "update_display_data")]

    @property
    def text(self) -> str:
        """The last state of the cell's display as plain text."""
        return self.bundles[-1]["text/plain"] if self.bundles else ""

    @property
    def printed(self) -> str:
        """Text on the cell's own stdout and stderr."""
        return "".join(m["content"]["text"] for m in self.of("stream"))

    def of(self, *kinds: str) -> list[Message]:
        return [m for m in self.messages if m["header"]["msg_type"] in kinds]


def sent(message: Message) -> datetime:
    """When the kernel sent a message, by its clock."""
    return message["header"]["date"]


class Kernel:
    """Start it, run cells, interrupt it; `close()` ends it. Its stdout and stderr go to files in `folder`."""

    def __init__(self, folder: Path, **env: str) -> None:
        self.stdout, self.stderr = folder / "stdout.txt", folder / "stderr.txt"
        environment = os.environ | {"IPYTHONDIR": str(folder / "ipython"), "PYTHONWARNINGS": "default"} | env
        self.manager = KernelManager(transport="ipc", connection_file=str(folder / "connection.json"))
        self.manager.shutdown_wait_time = PATIENCE  # a busy machine is no reason to kill it
        self._files = [self.stdout.open("wb"), self.stderr.open("wb")]  # open as long as the kernel may restart
        stdout, stderr = self._files
        self.manager.start_kernel(env=environment, stdout=stdout, stderr=stderr, cwd=str(folder))
        self.client: BlockingKernelClient = self.manager.blocking_client()
        self.client.start_channels()
        try:
            self.client.wait_for_ready(PATIENCE)
            self.process = psutil.Process(self.value("__import__('os').getpid()"))
        except BaseException:
            self.close()
            raise

    def run(self, code: str, cell: str | None = None) -> Result:
        """Run a cell that must succeed. `cell` is the id that JupyterLab gives it."""
        result = self.finish(self.start(code, cell))
        assert result.ok, f"{code!r}: {result.error or result.printed}"
        return result

    def fail(self, code: str, cell: str | None = None) -> Result:
        """Run a cell that must end in an error."""
        result = self.finish(self.start(code, cell))
        assert not result.ok, f"{code!r} did not fail: {result.text or result.printed}"
        return result

    def start(self, code: str, cell: str | None = None) -> str:
        """Send a cell without waiting; returns its message id."""
        message = self.client.session.msg(
            "execute_request",
            {
                "code": code,
                "silent": False,
                "store_history": True,
                "user_expressions": {},
                "allow_stdin": False,
                "stop_on_error": False,
            },
            metadata={"cellId": cell} if cell else {},
        )
        self.client.shell_channel.send(message)
        return message["header"]["msg_id"]

    def wait_for(self, msg_id: str, text: str) -> Result:
        """Read messages until the cell shows `text`; hand what came to `finish`."""
        return self._wait(msg_id, lambda result: text in result.text)

    def wait_for_print(self, msg_id: str, text: str) -> Result:
        """Read messages until the cell has printed `text`; hand what came to `finish`."""
        return self._wait(msg_id, lambda result: text in result.printed)

    def wait_for_reading(self, msg_id: str) -> Result:
        """Read messages until a part of the prompt is read; hand what came to `finish`."""
        return self._wait(msg_id, lambda result: re.search(r"reading the prompt: [1-9]", result.text) is not None)

    def wait_for_words(self, msg_id: str) -> Result:
        """Read messages until the cell shows the first words of an answer; hand what came to `finish`."""
        return self._wait(msg_id, lambda result: bool(result.bundles) and "text/markdown" in result.bundles[-1])

    def wait_for_live(self, msg_id: str, kind: str, so_far: Result) -> Result:
        """Read messages until the cell's live view is told something of this kind; hand what came to `finish`."""
        return self._wait(msg_id, lambda result: kind in told_live(result), so_far)

    def finish(self, msg_id: str, so_far: Result | None = None) -> Result:
        """Read everything that a started cell still sends."""
        result, end = so_far or Result(), time.monotonic() + PATIENCE
        while not _is_idle(result):
            assert time.monotonic() < end, f"the cell hangs: {result.messages[-3:]}"
            self._read(msg_id, result)
        result.reply = self._reply(self.client.get_shell_msg, msg_id)
        return result

    def say(self, slot: str, **content: object) -> None:
        """What JupyterLab does when the view in a slot tells the kernel something."""
        message = self.client.session.msg("ipyllama_say", {"slot": slot, "content": content})
        self.client.control_channel.send(message)

    def wait_until(self, condition: str) -> None:
        """Wait, between cells, until an expression is true."""
        end = time.monotonic() + PATIENCE
        while not self.value(f"bool({condition})"):
            assert time.monotonic() < end, f"it never came: {condition}"
            time.sleep(0.05)

    def interrupt(self) -> None:
        """What the Stop button does."""
        self.manager.interrupt_kernel()

    def ping(self) -> bool:
        """Whether the heartbeat answers before a front end takes the kernel for dead."""
        socket = self.client.context.socket(zmq.REQ)
        try:
            socket.connect(self.client._make_url("hb"))
            socket.send(b"ping")
            return bool(socket.poll(DEAD * 1000)) and socket.recv() == b"ping"
        finally:
            socket.close(linger=0)

    def control(self) -> Message:
        """Ask the kernel for its description on the control channel, which a running cell does not block."""
        message = self.client.session.msg("kernel_info_request")
        self.client.control_channel.send(message)
        return self._reply(self.client.get_control_msg, message["header"]["msg_id"], DEAD)

    def value(self, expression: str) -> Any:
        """The value of an expression, for plain data."""
        return eval(self.run(f"print(repr(({expression})))").printed, {})

    def usage(self, name: str) -> dict[str, int]:
        """The token counts of a stored reply."""
        return dict(self.value(f"__import__('dataclasses').asdict({name}.usage)"))

    def complete(self, code: str) -> list[str]:
        """What Tab makes of `code` with the cursor at its end."""
        content = self._reply(self.client.get_shell_msg, self.client.complete(code, len(code)))["content"]
        return [code[: content["cursor_start"]] + match for match in content["matches"]]

    def inspect(self, code: str) -> str:
        """What Shift-Tab shows at the end of `code`."""
        content = self._reply(self.client.get_shell_msg, self.client.inspect(code, len(code)))["content"]
        return str(content["data"].get("text/plain", ""))

    def close(self) -> None:
        self.client.stop_channels()
        if self.manager.has_kernel:
            self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()
        for file in self._files:
            file.close()

    def _wait(self, msg_id: str, shown: Callable[[Result], bool], so_far: Result | None = None) -> Result:
        result, end = so_far or Result(), time.monotonic() + PATIENCE
        while not shown(result):
            assert time.monotonic() < end, f"it never came: {result.messages}"
            assert not _is_idle(result), f"the cell ended without it: {result.error or result.text}"
            self._read(msg_id, result)
        return result

    def _read(self, msg_id: str, result: Result) -> None:
        try:
            message = self.client.get_iopub_msg(timeout=0.1)
        except queue.Empty:
            assert self.manager.is_alive(), f"the kernel died: {self.stderr.read_text()[-2000:]}"
            return
        if message["parent_header"].get("msg_id") == msg_id:
            message["arrived"] = datetime.now().astimezone()
            result.messages.append(message)

    def _reply(self, get: Any, msg_id: str, patience: float = PATIENCE) -> Message:
        while True:
            message: Message = get(timeout=patience)
            if message["parent_header"].get("msg_id") == msg_id:
                return message


def told_live(result: Result) -> list[str]:
    """What a live view was told, by kind."""
    return [m["content"]["data"].get("content", {}).get("kind", "") for m in result.of("comm_msg")]


def _is_idle(result: Result) -> bool:
    return any(m["content"]["execution_state"] == "idle" for m in result.of("status"))
