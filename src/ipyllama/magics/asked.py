"""`%llama search handbook how do I begin?`: a line of ours that ends in a question mark is no question to IPython."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from IPython.core.inputtransformer2 import EscapedCommand, HelpEnd

if TYPE_CHECKING:
    from collections.abc import Sequence
    from tokenize import TokenInfo

_ASKED: Final = re.compile(r"\s*%llama[ \t]+\w.*\?\s*$")


class Asked(EscapedCommand):
    """Takes such lines as what they are, magics, before IPython looks for help on their last word. `%llama?` stays
    IPython's."""

    priority = HelpEnd.priority - 1

    @classmethod
    def find(cls, tokens_by_line: Sequence[Sequence[TokenInfo]]) -> Asked | None:
        """The first such line of a cell."""
        for line in tokens_by_line:
            first = next((token for token in line if token.string.strip()), None)
            if first is not None and first.string == "%" and _ASKED.match(first.line):
                return cls(first.start)
        return None


def listen(shell: Any) -> None:
    """Add it to a shell."""
    shell.input_transformer_manager.token_transformers.append(Asked)


def leave(shell: Any) -> None:
    """Take it away, also that of an earlier import."""
    transformers = shell.input_transformer_manager.token_transformers
    transformers[:] = [each for each in transformers if each.__name__ != Asked.__name__ or each.__module__ != __name__]
