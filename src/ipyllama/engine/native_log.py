"""Carries llama.cpp's log lines from the native ring buffer to the `ipyllama` logger."""

from __future__ import annotations

import logging
import threading
from typing import Final

from ipyllama import _core

LEVELS: Final = {1: logging.DEBUG, 2: logging.DEBUG, 3: logging.INFO, 4: logging.WARNING}
"""llama.cpp's info lines are our debug: it writes hundreds at a load."""

_lock = threading.Lock()
_next = 0


def forward() -> None:
    """Log every line that came since the last call."""
    global _next
    with _lock:
        lines = _core.log_since(_next)
        if lines:
            _next = lines[-1][0] + 1
    logger = logging.getLogger("ipyllama.llama_cpp")
    for _, level, text in lines:
        logger.log(LEVELS.get(level, logging.DEBUG), "%s", text)
