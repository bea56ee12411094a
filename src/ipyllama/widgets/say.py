"""What views say to the kernel while cells run.

Messages on a widget's own comm wait for the end of the running cell in ipykernel 6 and 7.4. Those on the control
channel wait in none: the kernel handles them on a thread of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

SAY: Final = "ipyllama_say"
"""The type of these messages."""
Told = Callable[[dict[str, Any]], None]

_told: dict[str, Told] = {}  # by slot


def can_hear() -> bool:
    """Whether the kernel has a control channel that can be listened to."""
    return _handlers() is not None


def hear(slot: str, told: Told) -> None:
    """Hand to `told` what the view in this slot says. It is called on the thread that interrupts and debuggers need,
    too, and has to return at once."""
    if (handlers := _handlers()) is not None:
        handlers[SAY] = _said
        _told[slot] = told


def hear_no_more(slot: str) -> None:
    """Listen to the view in this slot no more."""
    if _told.pop(slot, None) is not None and not _told:
        (_handlers() or {}).pop(SAY, None)


def _said(stream: Any, identity: Any, message: Any) -> None:
    match message["content"]:
        case {"slot": str(slot), "content": dict(content)} if slot in _told:
            _told[slot](content)


def _handlers() -> dict[str, Any] | None:
    """What the kernel does with messages on its control channel, by their type; None where it has none."""
    from IPython.core.getipython import get_ipython

    return getattr(getattr(get_ipython(), "kernel", None), "control_handlers", None)
