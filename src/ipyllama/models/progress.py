"""Progress of a fetch: a callback, and the bar that is drawn where nobody gave one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Progress = Callable[[int, int | None, str], None]
"""Called as `progress(done_bytes, total_bytes, label)`, some ten times a second; `total_bytes` is None if unknown."""


@contextmanager
def reporting(progress: Progress | None) -> Iterator[Progress]:
    """The callback to report to: the given one, else a bar on stderr that is closed at the end."""
    if progress is not None:
        yield progress
        return
    bar = _Bar()
    try:
        yield bar
    finally:
        bar.close()


class _Bar:
    """One tqdm bar for each label in turn."""

    def __init__(self) -> None:
        self._label = ""
        self._tqdm: Any = None

    def __call__(self, done: int, total: int | None, label: str) -> None:
        if label != self._label or self._tqdm is None:
            from tqdm.std import tqdm  # tqdm.auto would need ipywidgets in a notebook

            self.close()
            self._label = label
            self._tqdm = tqdm(desc=label, total=total, unit="B", unit_scale=True, file=sys.stderr, dynamic_ncols=True)
        self._tqdm.total = total
        self._tqdm.update(done - self._tqdm.n)

    def close(self) -> None:
        if self._tqdm is not None:
            self._tqdm.close()
