"""Writes docs/native-api.md: what llama.h offers, by section, against our names for it.

    python docs/native_api.py            write the page
    python docs/native_api.py --check    only say whether the committed page is what would be written

The functions come from the header that the extension is built with, our names from native_api.toml beside this file.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
PAGE: Final = HERE / "native-api.md"
NAMES: Final = HERE / "native_api.toml"
PROVIDE: Final = HERE.parent / "llama.cpp" / "provide.py"

SECTIONS: Final = ("Adapters", "Memory", "State / sessions", "Decoding", "Extended batch API", "Sampling API")
"""those of the header; the one on batches also holds threads, logits and embeddings"""

_TITLE = re.compile(r"^ *//\n *// (?P<title>[\w /]+)\n *//\n", re.MULTILINE)
_FUNCTION = re.compile(
    r"^ *(?P<deprecated>DEPRECATED\()?(?:LLAMA_API )(?P<late>DEPRECATED\()?[^;(]*?\b(?P<name>llama_\w+) *\(", re.M
)

INTRO: Final = """\
# llama.h and ipyllama

Every public function of llama.h's sections on adapters, memory, state, decoding and sampling (llama.cpp `{commit}`),
and what stands for it in `ipyllama._core`. Where nothing does, the reason is given.
Written by `docs/native_api.py`; do not edit.
"""


@dataclass(frozen=True)
class Entry:
    """What stands for one function: names in `ipyllama._core`, or the reason why there are none."""

    ours: tuple[str, ...]
    note: str = ""


def main() -> int:
    text = render(read_header(), read_names(), commit())
    if "--check" not in sys.argv:
        PAGE.write_text(text, encoding="utf-8")
    elif not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text:
        sys.stderr.write(f"{PAGE.name} is not what docs/native_api.py would write: run 'make stub'\n")
        return 1
    return 0


def provided(*options: str) -> Path:
    """Where the build of llama.cpp lies that the extension uses."""
    command = [sys.executable, PROVIDE, *options]
    return Path(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[-1])


def commit() -> str:
    from ipyllama import _core

    return _core.build_info()["llama_cpp_commit"][:12]


def read_header(text: str | None = None) -> dict[str, dict[str, bool]]:
    """For each of SECTIONS the functions in order, and whether they are deprecated."""
    if text is None:
        text = (provided() / "include" / "llama.h").read_text(encoding="utf-8")
    titles = list(_TITLE.finditer(text))
    found: dict[str, dict[str, bool]] = {}
    for i, title in enumerate(titles):
        if title["title"] in SECTIONS:
            end = titles[i + 1].start() if i + 1 < len(titles) else len(text)
            functions = _FUNCTION.finditer(text, title.end(), end)
            found[title["title"]] = {f["name"]: bool(f["deprecated"] or f["late"]) for f in functions}
    return found


def read_names() -> dict[str, Entry]:
    """What native_api.toml says about each function."""
    return {name: _entry(value) for name, value in tomllib.loads(NAMES.read_text(encoding="utf-8")).items()}


def _entry(value: str | dict[str, str]) -> Entry:
    if isinstance(value, str):
        return Entry(tuple(value.split(", ")))
    return Entry(tuple(value["ours"].split(", ")) if "ours" in value else (), value.get("note") or value["because"])


def render(header: dict[str, dict[str, bool]], names: dict[str, Entry], upstream: str) -> str:
    """The page."""
    lines = [INTRO.format(commit=upstream)]
    for title, functions in header.items():
        lines += [f"## {title}", "", "| llama.h | ipyllama._core | |", "| --- | --- | --- |"]
        for name, deprecated in functions.items():
            entry = Entry((), "deprecated by llama.cpp") if deprecated else names[name]
            ours = ", ".join(f"`{own}`" for own in entry.ours) or "none"
            lines.append(f"| `{name}` | {ours} | {entry.note} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
