"""What a widget wants done that may take a while: on a thread of its own, so that handlers return at once.

Such a thread has the context of where the widget was made, the cell: ipykernel 7.0 sends nothing from one without.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from typing import Final

_log: Final = logging.getLogger("ipyllama.widgets")


class Worker:
    """Does one thing after another. The thread is there while there is something to do."""

    def __init__(self, name: str) -> None:
        self._name, self._context = name, copy_context()
        self._lock = threading.Lock()
        self._waiting: deque[tuple[str, Callable[[], None]]] = deque()
        self._runs = False

    def do(self, what: Callable[[], None], key: str = "") -> None:
        """Do this next. What waits last is forgotten if it has the same `key`: of many moves of a slider the last one
        counts."""
        with self._lock:
            if key and self._waiting and self._waiting[-1][0] == key:
                self._waiting.pop()
            self._waiting.append((key, what))
            if not self._runs:
                self._runs = True
                run = self._context.copy().run  # a context is entered once at a time
                threading.Thread(target=run, args=(self._work,), name=self._name, daemon=True).start()

    def _work(self) -> None:
        while (what := self._next()) is not None:
            try:
                what()
            except Exception:  # noqa: BLE001 - the next one may fare better
                _log.exception("what a view was asked for went wrong")

    def _next(self) -> Callable[[], None] | None:
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()[1]
            self._runs = False
            return None
