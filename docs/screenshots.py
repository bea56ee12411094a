"""Pictures of the widgets for the documentation, light and dark: `python docs/screenshots.py [NAME...]`.

They are taken in a real JupyterLab, with SmolLM2, and go to docs/images.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
os.environ["IPYLLAMA_PREFIX_DIR"] = "off"

from browser.lab import CHROMIUM, FLAGS, Lab, Notebook  # noqa: E402
from playwright.sync_api import Locator, Page, expect, sync_playwright  # noqa: E402

LOAD = "%load_ext ipyllama\n%llama load smollm2 --threads 1"
QUESTION = "Explain what a list is in Python, with an example."
Show = Callable[[Notebook], Locator]


def live(notebook: Notebook) -> Locator:
    """An answer on its way; the caller stops it."""
    notebook.run(1, wait=False)
    expect(notebook.out(1).locator(".ipl-line")).to_have_text(re.compile(r"(9\d|1\d\d) tokens"), timeout=60_000)
    return notebook.cell(1)


def kv(notebook: Notebook) -> Locator:
    """A context while three answers share what they have read, one cell pointed at."""
    for index in (1, 2):
        notebook.run(index)
    notebook.run(3, wait=False)
    view = notebook.out(2).locator(".ipyllama-view")
    expect(view).to_contain_text(re.compile(r"generated ([2-9]\d\d)"), timeout=60_000)
    canvas = view.locator("canvas")
    canvas.focus()
    for _ in range(9):
        canvas.press("ArrowRight")
    return view


def documents(notebook: Notebook) -> Locator:
    """An answer from documents, with one of them folded out."""
    notebook.run(1)
    notebook.run(2)
    output = notebook.out(2)
    output.locator("details").last.locator("summary").click()
    return notebook.cell(2)


HANDBOOK = """{
    "leave.md": "Everyone has 28 days of leave each year. Unused days move to March of the next year.",
    "travel.md": "Trains are booked in second class. Flights need the consent of Ms Ott.",
    "canteen.md": "The canteen is open from 11:30 to 14:00. On Fridays there is fish.",
}"""
INDEX = f"from ipyllama.rag import Index\nIndex.create('handbook', {HANDBOOK})"
PICTURES: dict[str, tuple[Show, tuple[str, ...]]] = {
    "live": (live, (f"%%llama -n 400 -t 0 --fresh\n{QUESTION}",)),
    "rag": (documents, (INDEX, "%%llama --rag handbook -k 2 -t 0\nHow many days of leave are there each year?")),
    "kv": (kv, (f"%%llama -n 120 -t 0\n{QUESTION}", "%llama kv", "%%llama -n 200 -t 1 --samples 3\nAnd a tuple?")),
}


def take(page: Page, lab: Lab, name: str, theme: str) -> None:
    show, cells = PICTURES[name]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    content = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell) for cell in (LOAD, *cells)], metadata={"kernelspec": kernel}
    )
    file = f"{name}-{theme}.ipynb"
    nbformat.write(content, lab.root / file)
    notebook = Notebook(page, lab, file)
    dark = "JupyterLab Dark" if theme == "dark" else "JupyterLab Light"
    page.evaluate(f"() => {{ jupyterapp.commands.execute('apputils:change-theme', {{ theme: '{dark}' }}) }}")
    page.evaluate("() => { jupyterapp.commands.execute('application:toggle-left-area') }")
    notebook.run(0)
    page.wait_for_timeout(1000)
    target = show(notebook)
    page.wait_for_timeout(200)
    target.screenshot(path=ROOT / "docs" / "images" / f"{name}-{theme}.png")
    lab.end_kernels()


def main(names: list[str]) -> Any:
    lab = Lab(Path(tempfile.mkdtemp()))
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
            for name in names or PICTURES:
                for theme in ("light", "dark"):
                    page = browser.new_page(viewport={"width": 900, "height": 900})
                    take(page, lab, name, theme)
                    page.close()
    finally:
        lab.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
