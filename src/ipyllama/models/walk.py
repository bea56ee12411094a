"""Looking through folders that belong to others: bounded in time and number, never failing, never writing."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ipyllama.models.header import is_later_part


@dataclass(slots=True)
class Budget:
    """How much may still be looked at: until when on the monotonic clock, and how many folder entries."""

    deadline: float
    entries: int = 20_000

    def spend(self) -> bool:
        """Take one entry; False when nothing is left."""
        self.entries -= 1
        return self.entries >= 0 and time.monotonic() < self.deadline


def files(root: Path, depth: int, budget: Budget) -> Iterator[Path]:
    """Regular files under root, at most `depth` folders down, in order of name within a folder.

    Follows links but enters no folder twice; steps over what cannot be read.
    """
    seen: set[tuple[int, int]] = set()
    pending = [(root, depth)]
    while pending:
        folder, left = pending.pop()
        entries = _entries(folder, seen, budget)
        for entry in entries:
            try:
                if entry.is_file():
                    yield Path(entry.path)
                elif left > 0 and entry.is_dir():
                    pending.append((Path(entry.path), left - 1))
            except OSError:  # a loop of links, a folder that vanished
                continue


def ggufs(root: Path, depth: int, budget: Budget) -> Iterator[Path]:
    """Model files under root, by their names."""
    for path in files(root, depth, budget):
        if is_model_name(path.name):
            yield path


def is_model_name(name: str) -> bool:
    """Whether a file of this name can be a model: of a split one the first part, no projector, not hidden."""
    lower = name.lower()
    return lower.endswith(".gguf") and "mmproj" not in lower and lower[0] != "." and not is_later_part(name)


def _entries(folder: Path, seen: set[tuple[int, int]], budget: Budget) -> list[os.DirEntry[str]]:
    found: list[os.DirEntry[str]] = []
    try:
        info = os.stat(folder)
        if (info.st_dev, info.st_ino) in seen:
            return []
        seen.add((info.st_dev, info.st_ino))
        with os.scandir(folder) as entries:
            for entry in entries:
                if not budget.spend():
                    break
                found.append(entry)
    except (OSError, ValueError):
        pass  # a folder that is not there or not readable holds no models for us
    return sorted(found, key=lambda entry: entry.name)
