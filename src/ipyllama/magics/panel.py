"""`%llama chat`: a conversation outside of cells, and the way back into cells."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipyllama.magics.look import show

if TYPE_CHECKING:
    from ipyllama.magics.commands import LineArgs
    from ipyllama.magics.config import Llama
    from ipyllama.magics.session import Session


def run_panel(session: Session, config: Llama, args: LineArgs) -> None:
    """Run `%llama chat`. Raises `NoModelLoaded`, and `ModelNotFound` where the cells of no conversation are wanted."""
    if args.cells:
        print("\n\n".join(session.conversation(args.name).cells()))  # noqa: T201 - code to copy is the output
    else:
        show(session.panel(args.name, config.system, **config.sampling()), live=config.widgets)
