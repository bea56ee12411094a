"""What a conversation asks of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from ipyllama.ledger import Ledger
from ipyllama.logprobs import TokenLogprob
from ipyllama.options import GenerateOptions
from ipyllama.reply import Reply

if TYPE_CHECKING:
    from ipyllama.chat.ledger import Vocabulary
    from ipyllama.chat.template import ChatTemplate
    from ipyllama.engine import Job, Opening, Shift
    from ipyllama.engine.capability import Capability
    from ipyllama.prefix.where import Where


class Speaker(Protocol):
    """What a chat asks of a model; `LLM` has it."""

    @property
    def name(self) -> str: ...

    @property
    def weights(self) -> str:
        """What tells the model's file from others."""

    @property
    def vocab(self) -> Vocabulary: ...

    @property
    def template(self) -> ChatTemplate | None: ...

    @property
    def n_ctx(self) -> int: ...

    @property
    def capability(self) -> Capability: ...

    @property
    def closed(self) -> bool: ...

    def standing(self) -> Speaker:
        """This model, or where it was closed and loaded again since, the one that is open now."""

    def where(self, prompts: Sequence[Ledger]) -> list[Where]:
        """How much of each is in the context, in RAM and on disk."""

    def generate(  # noqa: PLR0913 - as LLM has it
        self,
        ledger: Ledger,
        options: GenerateOptions,
        notes: tuple[str, ...] = (),
        wrap: Callable[[Reply, Ledger], Reply] = ...,
        *,
        fresh: bool = False,
        shift: Shift | None = None,
        opening: Opening | None = None,
        caller: object | None = None,
    ) -> Job: ...

    def score(self, prompt: Ledger, continuation: Sequence[int], top: int = 5) -> tuple[TokenLogprob, ...]: ...

    def generate_together(
        self,
        ledgers: Sequence[Ledger],
        options: Sequence[GenerateOptions],
        notes: tuple[str, ...],
        wraps: Sequence[Callable[[Reply, Ledger], Reply]],
        *,
        caller: object | None = None,
    ) -> list[Job]: ...
