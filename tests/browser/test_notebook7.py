"""Notebook 7: that what JupyterLab shows is there, too."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from browser.conftest import opening

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
expect = playwright.expect


def test_live_answers_stop_and_the_kv_map(chromium: Any, smollm2: Path, tmp_path: Path) -> None:
    from browser.lab import Notebook7

    server = Notebook7(tmp_path)
    try:
        with opening(server, chromium, "seven.ipynb") as open_:
            load = f'%load_ext ipyllama\n%llama load "{smollm2}" --threads 1'
            notebook = open_(load, "%%llama --raw -t 0 -n 6000\n1, 2, 3, 4, 5, 6,", "%llama kv")
            notebook.run(0)
            notebook.run(1, wait=False)
            stop = notebook.out(1).get_by_role("button", name="Stop")
            expect(notebook.out(1).locator(".ipl-line")).to_have_text(re.compile(r"\d\d+ tokens"), timeout=60_000)
            stop.click()
            notebook.done(1)
            expect(notebook.out(1)).to_contain_text("[interrupted]")
            notebook.run(2)
            expect(notebook.out(2).locator("canvas")).to_be_visible()
    finally:
        server.stop()
