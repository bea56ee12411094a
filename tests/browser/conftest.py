"""JupyterLab and Chromium. Run these tests in a pytest process of their own: Playwright keeps an event loop running."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="pip install playwright")


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from browser.lab import Lab

    lab = Lab(tmp_path_factory.mktemp("lab"))
    yield lab
    lab.stop()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    from browser.lab import CHROMIUM, FLAGS

    if not Path(CHROMIUM).exists():
        pytest.skip("Chromium is not installed (apt install chromium), or set CHROMIUM to its path")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def notebook(lab: Any, chromium: Any, request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """`notebook(*cells)`: a notebook of these code cells, open. The page may load nothing from elsewhere."""
    from browser.lab import Notebook

    page = chromium.new_page(viewport={"width": 1200, "height": 900})
    stray: list[str] = []
    errors: list[str] = []
    page.on("request", lambda r: None if r.url.startswith((lab.url, "data:", "blob:")) else stray.append(r.url))
    page.on("pageerror", lambda error: errors.append(str(error)))

    def open_(*cells: str) -> Notebook:
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        content = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(cell) for cell in cells], metadata={"kernelspec": kernel}
        )
        name = f"{request.node.name}.ipynb"
        nbformat.write(content, lab.root / name)
        return Notebook(page, lab, name)

    yield open_
    page.close()
    for session in lab.api("sessions"):
        lab.api(f"sessions/{session['id']}", "DELETE")
    assert (stray, errors) == ([], [])
