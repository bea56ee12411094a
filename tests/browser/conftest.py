"""JupyterLab and Chromium. Run these tests in a pytest process of their own: Playwright keeps an event loop running."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
import pytest

MUST_RUN = "IPYLLAMA_BROWSER_TESTS"
"""Set it, and these tests fail where they would be left out."""


def left_out(why: str) -> None:
    """Leave these tests out, loudly."""
    if os.environ.get(MUST_RUN):
        pytest.fail(f"the browser tests did not run, and {MUST_RUN} is set: {why}")
    pytest.skip(why)


if os.environ.get(MUST_RUN):
    from playwright import sync_api
else:
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
        left_out("Chromium is not installed (apt install chromium), or set CHROMIUM to its path")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
        yield browser
        browser.close()


Open = Callable[..., Any]


@pytest.fixture
def notebook(lab: Any, chromium: Any, request: pytest.FixtureRequest) -> Iterator[Open]:
    """`notebook(*cells)`: a notebook of these code cells, open. The page may load nothing from elsewhere."""
    with opening(lab, chromium, f"{request.node.name}.ipynb") as open_:
        yield open_


@contextmanager
def opening(lab: Any, chromium: Any, name: str) -> Iterator[Open]:
    """What opens a notebook of this name; at the end, there was no error and no request to elsewhere."""
    from browser.lab import Notebook

    page = chromium.new_page(viewport={"width": 1200, "height": 900})
    stray: list[str] = []
    errors: list[str] = []
    page.on("request", lambda r: None if r.url.startswith((lab.url, "data:", "blob:")) else stray.append(r.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)

    def open_(*cells: str) -> Notebook:
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        content = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(cell) for cell in cells], metadata={"kernelspec": kernel}
        )
        nbformat.write(content, lab.root / name)
        return Notebook(page, lab, name)

    yield open_
    page.close()
    lab.end_kernels()
    errors = [error for error in errors if not any(own in error for own in lab.OWN_ERRORS)]
    assert (stray, errors) == ([], [])


@pytest.fixture
def smol(notebook: Open, smollm2: Path) -> Open:
    """`smol(*cells)`: a notebook in which SmolLM2 answers; the cells are numbered from 1."""
    return lambda *cells: _with_model(notebook, smollm2, "context of 8,192 tokens", cells)


@pytest.fixture
def bigram(notebook: Open, tiny: Callable[[str], Path]) -> Open:
    """`bigram(*cells)`: the same with the tiny model whose text is known."""
    return lambda *cells: _with_model(notebook, tiny("llama-bigram"), "tiny-llama-bigram", cells)


def _with_model(notebook: Open, path: Path, said: str, cells: tuple[str, ...]) -> Any:
    opened = notebook(f'%load_ext ipyllama\n%llama load "{path}" --threads 1', *cells)
    opened.run(0)
    sync_api.expect(opened.out(0)).to_contain_text(said)
    return opened
