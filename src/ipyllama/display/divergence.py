"""How far an approximate answer is from the exact one, in a line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipyllama.display.units import format_seconds, plural

if TYPE_CHECKING:
    from ipyllama.lens.divergence import Divergence


def divergence_text(found: Divergence) -> str:
    """`against exact: mean KL 0.0031 nats over 24 tokens, the same likeliest token at 23 of them · ...`."""
    if not found.kl:
        return "against exact: no token was compared"
    n, computed = len(found.kl), plural(found.computed, "prompt token")
    return (
        f"against exact: mean KL {found.mean_kl:.4f} nats over {plural(n, 'token')} (most {max(found.kl):.4f}), "
        f"the same likeliest token at {sum(found.same)} of {n} · exact computed {computed}, "
        f"first token {format_seconds(found.seconds)}"
    )
