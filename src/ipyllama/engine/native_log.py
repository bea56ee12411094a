"""Carries llama.cpp's log lines from the native ring buffer to the `ipyllama` logger."""

from __future__ import annotations

import logging
import threading
from typing import Final

from ipyllama import _core

LEVELS: Final = {1: logging.DEBUG, 2: logging.DEBUG, 3: logging.INFO, 4: logging.WARNING}
"""llama.cpp's info lines are our debug: it writes hundreds at a load."""


class _Forwarder:
    """Remembers which line comes next."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 0

    def __call__(self) -> None:
        """Log every line that came since the last call."""
        with self._lock:
            lines = _core.log_since(self._next)
            if lines:
                self._next = lines[-1][0] + 1
        logger = logging.getLogger("ipyllama.llama_cpp")
        for _, level, text in lines:
            logger.log(LEVELS.get(level, logging.DEBUG), "%s", text)


forward: Final = _Forwarder()
