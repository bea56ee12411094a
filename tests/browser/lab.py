"""A real JupyterLab with a notebook open in a real Chromium."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
import psutil
from playwright.sync_api import Locator, Page, expect

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SETTINGS = {  # nothing pops up, nothing is fetched, and every cell is in the page
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False, "doNotDisturbMode": True},
    "notebook-extension/tracker": {"windowingMode": "none"},
}
START = 60.0
"""Seconds for the server, and for a kernel, to come up."""
_READY = """() => {
    const context = window.jupyterapp?.shell?.currentWidget?.sessionContext, kernel = context?.session?.kernel;
    return context?.isReady && kernel?.connectionStatus === 'connected' && kernel.status === 'idle';
}"""


class Lab:
    """The server, with settings and folders of its own in `base`."""

    PROGRAM, PAGES = "lab", "lab/tree"
    OWN_ERRORS: tuple[str, ...] = ()
    OPTIONS: tuple[str, ...] = (
        "--LabApp.expose_app_in_browser=True",
        "--LabApp.news_url=None",
        "--LabApp.extension_manager=readonly",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    )

    def __init__(self, base: Path) -> None:
        self.root, self.log, home = base / "root", base / "lab.log", base / "home"
        self.root.mkdir()
        for name, value in SETTINGS.items():
            file = home / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(value))
        folders = {"CONFIG_DIR": "config", "DATA_DIR": "data", "RUNTIME_DIR": "runtime"}
        env = os.environ | {f"JUPYTER_{name}": str(home / folder) for name, folder in folders.items()}
        env |= {f"JUPYTERLAB_{name.upper()}_DIR": str(home / name) for name in ("settings", "workspaces")}
        env |= {"IPYTHONDIR": str(home / "ipython")}
        env["PATH"] = os.path.dirname(sys.executable) + os.pathsep + env["PATH"]  # kernel.json says "python"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.token, self.url = secrets.token_hex(16), f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "jupyter", self.PROGRAM, "--no-browser", "--allow-root", "--ip=127.0.0.1"]
        command += [f"--port={port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={self.token}"]
        command += [f"--ServerApp.root_dir={self.root}", *self.OPTIONS]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
        self._wait()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)  # the server shuts its kernels down
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def api(self, path: str, method: str = "GET") -> Any:
        headers = {"Authorization": f"token {self.token}"}
        request = urllib.request.Request(f"{self.url}/api/{path}", method=method, headers=headers)
        for wait in (0.2, 0.5, 1.0, None):
            try:
                with urllib.request.urlopen(request, timeout=20) as answer:
                    return json.loads(answer.read() or "null")
            except urllib.error.HTTPError as error:
                # a kernel that is just being started has no last_activity yet, and the server cannot list it
                if method != "GET" or error.code != 500 or wait is None:
                    raise
                time.sleep(wait)
        raise AssertionError

    def end_kernels(self) -> None:
        while sessions := self.api("sessions"):  # two of them may have one kernel, and end with it
            self.api(f"sessions/{sessions[0]['id']}", "DELETE")

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """The kernels do nothing for as long, as one that is busy."""
        processes = psutil.Process(self.process.pid).children(recursive=True)
        kernels = [each for each in processes if "ipykernel_launcher" in each.cmdline()]
        assert kernels
        for kernel in kernels:
            kernel.suspend()
        try:
            yield
        finally:
            for kernel in kernels:
                kernel.resume()

    def wait_for_kernel(self, page: Page) -> None:
        page.wait_for_function(_READY, timeout=START * 1000)  # the toolbar says idle before there is a kernel

    def _wait(self) -> None:
        end = time.monotonic() + START
        while True:
            try:
                self.api("status")
            except OSError:
                if self.process.poll() is not None or time.monotonic() > end:
                    self.stop()
                    raise RuntimeError(self.log.read_text()[-3000:]) from None
                time.sleep(0.1)
            else:
                return


class Notebook7(Lab):
    """Notebook 7 in place of JupyterLab. It gives no handle to its application (7.6.5, whatever is set)."""

    PROGRAM, PAGES = "notebook", "notebooks"
    OWN_ERRORS = ("reading 'schema'",)  # of settings for plugins that it has not
    OPTIONS = ()

    def wait_for_kernel(self, page: Page) -> None:
        page.wait_for_selector(".jp-Notebook .cm-content", timeout=START * 1000)
        end = time.monotonic() + START
        while not any(k["connections"] and k["execution_state"] == "idle" for k in self.api("kernels")):
            assert time.monotonic() < end, "no kernel comes"
            page.wait_for_timeout(200)
        page.wait_for_timeout(1000)


class Notebook:
    """A notebook open in the browser, its kernel ready."""

    def __init__(self, page: Page, lab: Lab, name: str) -> None:
        self.page, self.lab, self.path = page, lab, lab.root / name
        page.goto(f"{lab.url}/{lab.PAGES}/{name}?token={lab.token}&reset", wait_until="domcontentloaded")
        lab.wait_for_kernel(page)

    def cell(self, index: int) -> Locator:
        return self.page.locator(f".jp-Notebook .jp-Cell[data-windowed-list-index='{index}']")

    def out(self, index: int) -> Locator:
        return self.cell(index).locator(".jp-Cell-outputArea")

    def code(self, index: int) -> Locator:
        return self.cell(index).locator(".cm-content")

    def run(self, index: int, *, wait: bool = True) -> None:
        self.code(index).click()
        self.code(index).press("Control+Enter")  # a view may take the focus in between
        if wait:
            self.done(index)
        else:
            expect(self.prompt(index)).to_have_text("[*]:")

    def prompt(self, index: int) -> Locator:
        return self.cell(index).locator(".jp-InputArea-prompt")

    def done(self, index: int) -> None:
        expect(self.prompt(index)).to_have_text(re.compile(r"\[\d+\]:"), timeout=120_000)

    def begin(self, index: int) -> None:
        """Run a cell until some of its answer is written."""
        self.run(index, wait=False)
        expect(self.out(index).locator(".ipl-live .ipl-line")).to_have_text(
            re.compile(r"^([5-9]|\d{2,}) tokens"), timeout=60_000
        )

    def leave_and_come_back(self, to: Locator) -> None:
        """The focus leaves a view, which tells the kernel so, and is in it again before that has done anything."""
        to.evaluate("""element => {
            document.activeElement.blur();
            return new Promise(resolve => setTimeout(() => resolve(element.focus())));
        }""")

    def stop(self) -> None:
        """The Stop button of the toolbar."""
        self.page.locator("[data-jp-item-name='interrupt'] jp-button").click()

    def save(self) -> Any:
        self.page.evaluate("() => jupyterapp.commands.execute('docmanager:save')")
        return nbformat.read(self.path, 4)
