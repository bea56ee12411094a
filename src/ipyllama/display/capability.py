"""What sequences can do, in a line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ipyllama.display.progress import line_bundle

if TYPE_CHECKING:
    from ipyllama.engine.capability import Capability

_LEVELS: Final = {
    "full": "full: can be cut anywhere",
    "extend": "extend: goes back to copies only",
    "none": "none: nothing can be reused",
}


def capability_line(capability: Capability) -> str:
    """`full: can be cut anywhere and shifted`; otherwise with the reason."""
    shift = " and shifted" if capability.can_shift else ""
    reason = f" ({capability.reason})" if capability.reason else ""
    return f"{_LEVELS[capability.level]}{shift}{reason}"


def capability_bundle(capability: Capability) -> dict[str, str]:
    return line_bundle(capability_line(capability))
