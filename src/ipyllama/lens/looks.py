"""What a model tells of its own distributions: the part of `LLM` that looks and does not answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ipyllama.engine import Job, Opening, Request
from ipyllama.engine.answer import Watch
from ipyllama.errors import BadOption, PromptTooLong
from ipyllama.ledger import Ledger
from ipyllama.logprobs import TokenLogprob
from ipyllama.options import GenerateOptions
from ipyllama.vocab import Vocabulary, tokenize_after

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ipyllama import _core
    from ipyllama.chat import Turn
    from ipyllama.engine import Engine
    from ipyllama.layout import Layout
    from ipyllama.lens import NextToken, SamplingLab
    from ipyllama.lens.divergence import Divergence, Seen
    from ipyllama.llm import Prompt
    from ipyllama.reply import Reply


class Looks(ABC):
    """A base of `LLM`, which has the rest."""

    name: str
    n_ctx: int
    vocab: Vocabulary
    _model: _core.Model
    _engine: Engine

    @abstractmethod
    def _prompt(self, prompt: Prompt) -> Ledger: ...

    @abstractmethod
    def _require_generation(self) -> None: ...

    @abstractmethod
    def start(self, prompt: Prompt, *, watch: Watch | None = None, **options: Any) -> Job: ...

    def score(
        self, prompt: Prompt | Ledger, continuation: str | Sequence[int], top: int = 5
    ) -> tuple[TokenLogprob, ...]:
        """How likely each token of `continuation`, a text or token ids, is after `prompt` and the tokens before it, and
        the `top` likeliest in its place; nothing is sampled. Each is evaluated by itself, as in an answer.

        Raises `BadOption` and `PromptTooLong`. Ctrl-C raises `Interrupted`.
        """
        self._require_generation()
        ledger = prompt if isinstance(prompt, Ledger) else self._prompt(prompt)
        tokens = tokenize_after(self.vocab, continuation) if isinstance(continuation, str) else tuple(continuation)
        if not all(0 <= token < self.vocab.n_tokens for token in tokens):
            raise BadOption(f"token ids are 0 to {self.vocab.n_tokens - 1:,}")
        if len(ledger) + len(tokens) > self.n_ctx:
            raise PromptTooLong(len(ledger) + len(tokens), self.n_ctx)
        options = GenerateOptions(max_tokens=max(1, len(tokens)), temperature=0, logprobs=top)
        request = Request(ledger, options, self.name, opening=Opening(script=tuple(tokens)))
        found = self._engine.submit(request).result().logprobs if tokens else ()
        assert found is not None
        return found

    def logits(self, prompt: Prompt | Ledger) -> NDArray[np.float32]:
        """The raw logits of the next token after `prompt`: float32, shape (n_vocab,); nothing is sampled from them.

        Raises `BadOption` and `PromptTooLong`. Ctrl-C raises `Interrupted`.
        """
        self._require_generation()
        ledger = prompt if isinstance(prompt, Ledger) else self._prompt(prompt)
        seen: list[NDArray[np.float32]] = []
        options = GenerateOptions(max_tokens=1, temperature=0)
        self._engine.submit(Request(ledger, options, self.name, watch=seen.append)).result()
        return seen[0]

    def divergence(self, prompt: Layout, **options: Any) -> Divergence:
        """How far an answer under `reuse="fused"` is from the exact one: it is written, and then its first 64 tokens
        are compared with the exact distributions after the same tokens.

        `options` as in `complete`, such as `recompute` and `max_tokens`. Raises like `complete`. Ctrl-C raises
        `Interrupted`.
        """
        from ipyllama.lens.divergence import Seen

        seen = Seen()
        reply = self.start(prompt, watch=seen, **(options | {"reuse": "fused"})).result()
        return self.compare(prompt, reply, seen)

    def compare(self, prompt: Layout, reply: Reply, seen: Seen) -> Divergence:
        """How far an answer is from the exact one; `seen` has watched it."""
        from ipyllama.lens.divergence import compare

        return compare(self._engine, self.name, self._prompt(prompt), reply.tokens, seen)

    def next_token(self, prompt: Prompt | Ledger | Turn, *, at: int = 0, **options: Any) -> NextToken:
        """What may come after `prompt`: the model's own distribution, and what each stage of sampling leaves of it.

        Of a turn, the distribution from which token number `at` of its answer came. `options` as in `complete`.
        Raises like `logits`.
        """
        from ipyllama.lens.next_token import NextToken, Source, place

        ledger, n_given = place(self._prompt, prompt, at)
        source = Source(self._model, self.vocab, self.logits)
        return NextToken.read(source, ledger, n_given, GenerateOptions().replace_from(options))

    def sampling_lab(self, prompt: Prompt | Ledger | Turn, *, at: int = 0, **options: Any) -> SamplingLab:
        """The same to play with: other options, draws that are appended. Arguments as in `next_token`."""
        from ipyllama.lens import SamplingLab

        return SamplingLab(self.next_token(prompt, at=at, **options))
