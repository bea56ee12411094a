"""How far something is: pure renderers, and the line for loading and fetching."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Final

from ipyllama.display.reply import MUTED
from ipyllama.display.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from ipyllama.display.views import View

SHOW_AFTER: Final = 1.0
"""Seconds that something may take before its progress is shown."""
INTERVAL: Final = 0.05
"""Seconds between two updates of the display: at most twenty a second."""


@dataclass(frozen=True, slots=True)
class Progress:
    """`done` of `total` of something called `label`; a total of 0 is unknown. `eta` in seconds."""

    label: str
    done: int
    total: int
    unit: str = "tokens"
    eta: float | None = None

    @property
    def share(self) -> float:
        return min(1.0, max(0.0, self.done / self.total)) if self.total > 0 else 0.0

    def __str__(self) -> str:
        return progress_line(self)


def progress_line(progress: Progress) -> str:
    """`reading the prompt: 1,024 of 4,000 tokens · 26% · 12 s left`."""
    if progress.unit == "bytes":
        done, total, unit = format_bytes(progress.done), format_bytes(progress.total), ""
    else:
        done, total, unit = format_count(progress.done), format_count(progress.total), f" {progress.unit}".rstrip()
    if progress.total <= 0:
        return f"{progress.label}: {done}{unit}"
    left = "" if progress.eta is None else f" · {format_seconds(max(1.0, round(progress.eta)))} left"
    return f"{progress.label}: {done} of {total}{unit} · {progress.share:.0%}{left}".replace(".0 s left", " s left")


def progress_text(progress: Progress, width: int = 24) -> str:
    """The line with a bar before it."""
    if progress.total <= 0:
        return progress_line(progress)
    full = int(progress.share * width)
    return f"[{'█' * full}{'·' * (width - full)}] {progress_line(progress)}"


def progress_html(progress: Progress) -> str:
    """The line with a bar below it."""
    line = f'<div style="{MUTED}">{escape(progress_line(progress))}</div>'
    if progress.total <= 0:
        return line
    percent = f"{progress.share * 100:.1f}"
    return (
        f"{line}\n"
        f'<div role="progressbar" aria-valuemin="0" aria-valuemax="100" aria-valuenow="{percent}" '
        f'aria-label="{escape(progress.label)}" '
        'style="height:6px;max-width:360px;margin-top:.35em;border-radius:3px;overflow:hidden;'
        'background:var(--jp-border-color2,rgba(127,127,127,.3))">'
        f'<div style="height:100%;width:{percent}%;background:var(--jp-brand-color1,#2196f3)"></div></div>'
    )


def line_bundle(line: str) -> dict[str, str]:
    """A line about something, in small print."""
    return {"text/plain": line, "text/html": f'<div style="{MUTED}">{escape(line)}</div>' if line else ""}


def progress_bundle(progress: Progress) -> dict[str, str]:
    return {"text/plain": progress_text(progress), "text/html": progress_html(progress)}


class ProgressLine:
    """Shows how a load or a fetch gets on, once it takes longer than a second.

    Call it with `done` and `total`; it returns True, so that it can serve where a callback may cancel. `finish` leaves
    one line in place of the bar, or nothing.
    """

    def __init__(
        self, label: str, view: View, *, unit: str = "bytes", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.label, self.unit = label, unit
        self._view, self._clock = view, clock
        self._begun = clock()
        self._shown_at: float | None = None

    def __call__(self, done: int, total: int) -> bool:
        now = self._clock()
        elapsed = now - self._begun
        due = elapsed >= SHOW_AFTER if self._shown_at is None else now - self._shown_at >= INTERVAL
        if due:
            eta = elapsed / done * (total - done) if 0 < done <= total else None
            self._view.progress(Progress(self.label, done, total, self.unit, eta))
            self._shown_at = now
        return True

    def finish(self, summary: str = "") -> None:
        if summary or self._shown_at is not None:
            self._view.line(summary)
