"""The live answer in a real JupyterLab: what is sent to the browser for it, and how busy it keeps the page.

Times are those of Chromium's own tracing: the longest task of the page's main thread while the answer comes. No
frame can be drawn while one runs.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import Bench, Row, Target
from ipyllama.models import resolve

TOKENS: Final = 2000
NEVER: Final = "--logit-bias 0=-inf --logit-bias 2=-inf"
"""The answer goes on: SmolLM2's ends of text and of turn."""


def measure(bench: Bench) -> Iterator[Row]:
    tokens = TOKENS // 10 if bench.quick else TOKENS
    cells = [f"%%llama {plain} --raw -n {tokens} -t 0.8 --fresh {NEVER}\nOnce upon a time" for plain in ("", "--plain")]
    with tempfile.TemporaryDirectory() as folder:
        live, plain = _in_browser(bench, Path(folder), cells)
    what = f"answer of {tokens:,} tokens"
    yield Row(
        f"{what}, sent to the browser", live[0] / 1e6, "MB", plain[0] / 1e6, "with --plain", target=Target("ours", 2)
    )
    yield Row("  longest task of the page", live[1], "ms", plain[1], "with --plain", target=Target("ours", 100))


def _in_browser(bench: Bench, folder: Path, cells: list[str]) -> list[tuple[int, float]]:
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    import nbformat
    from browser.lab import CHROMIUM, FLAGS, Lab, Notebook
    from playwright.sync_api import sync_playwright

    lab = Lab(folder)
    try:
        code = [f'%load_ext ipyllama\n%llama load "{resolve(bench.model).path}" --threads 1', *cells]
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        content = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(cell) for cell in code], metadata={"kernelspec": kernel}
        )
        nbformat.write(content, lab.root / "answer.ipynb")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
            page = browser.new_page(viewport={"width": 1200, "height": 900})
            notebook = Notebook(page, lab, "answer.ipynb")
            notebook.run(0)
            page.wait_for_timeout(2000)
            found = [_one(notebook, number) for number in range(1, len(code))]
            browser.close()
            return found
    finally:
        lab.stop()


def _one(notebook: Any, number: int) -> tuple[int, float]:
    """Bytes that the kernel's socket brought while a cell ran, and the longest task in milliseconds."""
    from browser.trace import Trace

    page = notebook.page
    devtools = page.context.new_cdp_session(page)
    received: list[int] = []
    devtools.send("Network.enable")
    devtools.on("Network.webSocketFrameReceived", lambda frame: received.append(_size(frame["response"])))
    notebook.run(number, wait=False)
    page.wait_for_timeout(500)  # the key and the click are no part of it
    with Trace(page) as trace:
        while notebook.prompt(number).inner_text() == "[*]:":
            page.wait_for_timeout(1000)
    return sum(received), trace.longest_task()


def _size(frame: dict[str, Any]) -> int:
    """Bytes of a frame; binary ones come in base64."""
    length = len(frame["payloadData"])
    return length if frame["opcode"] == 1 else length * 3 // 4
