"""What views say to the kernel while cells run.

Messages on a widget's own comm wait for the end of the running cell in ipykernel 7.4 and in 6. A comm that the front
end opens itself does not, where the kernel has subshells: its messages come on a thread beside the cells.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

SAY: Final = "ipyllama.say"
Told = Callable[[dict[str, Any]], None]

_views: dict[str, Told] = {}  # by slot
_comms: list[Any] = []


def hear(slot: str, told: Told) -> None:
    """Hand to `told` what the view in this slot says."""
    from comm import get_comm_manager

    if not _views:
        get_comm_manager().register_target(SAY, _opened)
    _views[slot] = told


def hear_no_more(slot: str) -> None:
    """Listen to the view in this slot no more."""
    if _views.pop(slot, None) is not None and not _views:
        from comm import get_comm_manager

        get_comm_manager().unregister_target(SAY, _opened)
        while _comms:
            _comms.pop().close()


def _opened(comm: Any, message: Any) -> None:
    _comms.append(comm)
    comm.on_msg(_said)
    comm.on_close(lambda closing: _comms.remove(comm) if comm in _comms else None)


def _said(message: Any) -> None:
    match message["content"]["data"]:
        case {"slot": str(slot), "content": dict(content)} if slot in _views:
            _views[slot](content)
