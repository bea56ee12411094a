"""Progress of what takes long: a callback, and the bar that is drawn where nobody gave one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Progress = Callable[[int, int | None, str], None]
"""Called as `progress(done, total, label)`, some ten times a second, in bytes for files; `total` is None if unknown."""


@contextmanager
def reporting(progress: Progress | None, unit: str = "B", delay: float = 0.0) -> Iterator[Progress]:
    """The callback to report to: the given one, else a bar on stderr that is closed at the end.

    `unit` is what the bar counts; it shows after `delay` seconds.
    """
    if progress is not None:
        yield progress
        return
    bar = _Bar(unit, delay)
    try:
        yield bar
    finally:
        bar.close()


class _Bar:
    """One tqdm bar for each label in turn."""

    def __init__(self, unit: str, delay: float) -> None:
        scale = unit in ("B", "tokens")  # of which there are many; others would be "1.00 of 2.00"
        self._options: Any = {"unit": unit, "unit_scale": scale, "delay": delay, "dynamic_ncols": True}
        self._label = ""
        self._tqdm: Any = None

    def __call__(self, done: int, total: int | None, label: str) -> None:
        if label != self._label or self._tqdm is None:
            from tqdm.std import tqdm  # tqdm.auto would need ipywidgets in a notebook

            self.close()
            self._label = label
            self._tqdm = tqdm(desc=label, total=total, file=sys.stderr, **self._options)
        self._tqdm.total = total
        self._tqdm.update(done - self._tqdm.n)

    def close(self) -> None:
        if self._tqdm is not None:
            self._tqdm.close()
