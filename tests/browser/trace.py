"""Chromium's own account of what its page has done."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, Self

from playwright.sync_api import Page

CATEGORIES: Final = "toplevel,__metadata"
PATIENCE: Final = 60.0


class Trace:
    """`with Trace(page) as trace: ...`, then ask. Times are of the processor: other programs that run do not count."""

    def __init__(self, page: Page) -> None:
        self._page, self._devtools = page, page.context.new_cdp_session(page)
        self._events: list[dict[str, Any]] = []
        self._complete = False
        self._devtools.on("Tracing.dataCollected", lambda data: self._events.extend(data["value"]))
        self._devtools.on("Tracing.tracingComplete", lambda data: setattr(self, "_complete", True))

    def __enter__(self) -> Self:
        self._devtools.send("Tracing.start", {"categories": CATEGORIES, "transferMode": "ReportEvents"})
        return self

    def __exit__(self, *exception: object) -> None:
        self._devtools.send("Tracing.end")
        end = time.monotonic() + PATIENCE
        while not self._complete and time.monotonic() < end:
            self._page.wait_for_timeout(50)

    def longest_task(self) -> float:
        """Milliseconds of the longest task of a page's main thread: no frame can be drawn while one runs."""
        names = {(e["pid"], e["tid"]): e["args"].get("name") for e in self._events if e["name"] == "thread_name"}
        tasks = [
            e["tdur"] / 1000
            for e in self._events
            if "tdur" in e and e["name"].endswith("RunTask") and names.get((e["pid"], e["tid"])) == "CrRendererMain"
        ]
        assert tasks, "Chromium's trace tells of no task"
        return max(tasks)


def tell_longest(page: Page, what: str, act: Callable[[], object]) -> None:
    """Print how long the page was busy at a stretch (`pytest -s`): it is measured, not asserted."""
    with Trace(page) as trace:
        act()
    print(f"{what}: longest task {trace.longest_task():.0f} ms", end=" ")  # noqa: T201
