"""Real questions with their answers: the FAQs of Python, Perl and git, as Debian's documentation packages have them.

They are fetched with apt-get when they are first needed, into the user cache; nothing of them is in this repository.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bs4 import BeautifulSoup, Tag

from ipyllama.models import cache_dir

PACKAGES: Final = ("python3.11-doc", "perl-doc", "git-doc")
LONGEST: Final = 600
"""Characters of an answer that count."""
SHORTEST: Final = 30
"""\"See the next question." answers nothing."""
_POD_CODE: Final = re.compile(r"([A-Z])(?:<<+ (.*?) >>+|<([^<>]*)>)", re.DOTALL)


def pairs() -> list[tuple[str, str]]:
    """All (question, answer) where the one asks and the other says something, up to `LONGEST` characters of it."""
    folder = _fetched()
    found: dict[str, str] = {}
    for page in sorted(folder.rglob("html/faq/*.html")):
        found.update(_python(page))
    for pod in sorted(folder.rglob("perlfaq[0-9].pod")):
        found.update(_perl(pod))
    for page in folder.rglob("git-doc/gitfaq.html"):
        found.update(_git(page))
    return [
        (question, answer[:LONGEST])
        for question, answer in found.items()
        if "?" in question and len(answer) >= SHORTEST
    ]


def _fetched() -> Path:
    folder = cache_dir() / "corpora" / "faq"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as work:
            subprocess.run(["apt-get", "download", "-q", *PACKAGES], cwd=work, check=True, stdout=subprocess.DEVNULL)
            for package in Path(work).glob("*.deb"):
                subprocess.run(["dpkg-deb", "--extract", package, Path(work, "all")], check=True)
            shutil.move(Path(work, "all"), folder)
    return folder


def _python(page: Path) -> Iterator[tuple[str, str]]:
    soup = BeautifulSoup(page.read_bytes(), "html.parser")
    for mark in soup.select("a.headerlink"):
        mark.decompose()
    for section in soup.find_all("section"):
        heading = section.find(["h2", "h3"], recursive=False)
        if heading and not section.find("section"):
            question = _line(heading)
            heading.decompose()
            yield re.sub(r"^[\d.]+ ", "", question), _line(section)


def _perl(pod: Path) -> Iterator[tuple[str, str]]:
    _, *parts = re.split(r"^=head2 ", pod.read_text("utf-8", "replace"), flags=re.MULTILINE)
    for part in parts:
        question, _, rest = part.partition("\n")
        answer = re.split(r"^=head1 ", rest, flags=re.MULTILINE)[0]
        answer = re.sub(r"^=\w+.*$", "", answer, flags=re.MULTILINE)
        yield _pod(question), _pod(answer)


def _git(page: Path) -> Iterator[tuple[str, str]]:
    soup = BeautifulSoup(page.read_bytes(), "html.parser")
    for term in soup.select("dt.hdlist1"):
        answer = term.find_next_sibling("dd")
        if answer:
            yield _line(term), _line(answer)


def _pod(text: str) -> str:
    while (plain := _POD_CODE.sub(_shown, text)) != text:
        text = plain
    return " ".join(text.split())


def _shown(code: re.Match[str]) -> str:
    """What a formatting code shows: nothing of index entries, of a link its text."""
    kind, inner = code[1], code[2] or code[3] or ""
    if kind == "E":
        return {"lt": "<", "gt": ">", "verbar": "|", "sol": "/"}.get(inner, inner)
    return "" if kind in "XZ" else inner.partition("|")[0] if kind == "L" else inner


def _line(tag: Tag) -> str:
    return " ".join(tag.get_text().split())
