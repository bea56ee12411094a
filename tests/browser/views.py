"""Every view in one notebook: what shows it, and what its static forms say as well."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

HOSTILE: Final = """<img src=x onerror="window.hit=1"></script><script>window.hit=2</script>"""
BEFORE: Final = (
    "import os, tempfile\nos.environ['IPYLLAMA_PREFIX_DIR'] = tempfile.mkdtemp()\n"
    '%load_ext ipyllama\n%llama load "{path}" --threads 1\nimport ipyllama\n(llm,) = ipyllama.loaded()'
)


@dataclass(frozen=True, slots=True)
class View:
    """A view by the code of its cell."""

    code: str
    live: str
    """selects what is there while the kernel is; empty for a form that is static anyhow"""
    fact: str
    """words of all its forms"""


VIEWS: Final = {
    "answer": View(f"%%llama -n 30 -t 0\nabc {HOSTILE}", ".ipl-finished", "prompt tokens"),
    "tokens": View(f"%%llama --show tokens -n 24 -t 0\nxyz {HOSTILE}", ".ipl-tokens", "perplexity"),
    "kv": View("%llama kv", ".ipl-kv", "in use"),
    "tree": View("%llama tree", ".ipl-tree", "xyz <img src=x"),
    "cache": View("%llama cache flush\n%llama cache", ".ipl-cache", "Prefix memory"),
    "panel": View("%llama chat", ".ipl-panel", "window.hit=2"),
    "lab": View(f"llm.sampling_lab('abc ' + {HOSTILE!r}, temperature=0.8)", ".ipl-lab", "in the vocabulary"),
    "next token": View("llm.next_token('abc', temperature=0.8)", "", "in the vocabulary"),
}

# What stands out of a view, or is cut off in it, but for what scrolls or ends with an ellipsis.
OVERFLOW: Final = """root => {
  const found = [], edge = root.getBoundingClientRect();
  const inScroll = el => {
    for (let at = el.parentElement; at && at !== root.parentElement; at = at.parentElement)
      if (getComputedStyle(at).overflowX !== "visible") return true;
    return false;
  };
  for (const el of root.querySelectorAll("*")) {
    const box = el.getBoundingClientRect(), style = getComputedStyle(el);
    if (!box.width || !box.height || style.visibility === "hidden") continue;
    const name = `${el.tagName}.${el.getAttribute("class")}: ${el.textContent.slice(0, 30)}`;
    if ((box.right > edge.right + 1 || box.left < edge.left - 1) && !inScroll(el)) found.push(`out of it: ${name}`);
    if (el.tagName === "BUTTON" && el.scrollWidth > el.clientWidth + 1) found.push(`cut off: ${name}`);
  }
  if (root.scrollWidth > root.clientWidth + 1 && getComputedStyle(root).overflowX === "visible")
    found.push("wider than its place");
  return found;
}"""


def show_all(notebook: Any) -> None:
    """Run every cell; the first one has loaded the model."""
    for index in range(1, len(VIEWS) + 1):
        notebook.run(index)


def live(notebook: Any, name: str) -> Any:
    """The live view of this name."""
    return notebook.out(1 + list(VIEWS).index(name)).locator(VIEWS[name].live)
