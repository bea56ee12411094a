"""The distribution of the next token, stage by stage of the sampler chain.

Every stage is what the native chain up to there leaves of the logits: nothing of a sampler is written a second time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from ipyllama import _core
from ipyllama.errors import BadOption
from ipyllama.ledger import Ledger
from ipyllama.options import GenerateOptions
from ipyllama.sampling import sampler_parts

if TYPE_CHECKING:
    from ipyllama.chat import Turn
    from ipyllama.llm import Prompt
    from ipyllama.vocab import Vocabulary

Ids = NDArray[np.int32]
Shares = NDArray[np.float32]
SETTINGS: Final = {
    "grammar": (),
    "grammar_lazy_patterns": (),
    "logit_bias": (),
    "penalties": ("repeat_penalty", "frequency_penalty", "presence_penalty"),
    "dry": ("dry_multiplier",),
    "top_n_sigma": ("top_n_sigma",),
    "top_k": ("top_k",),
    "typical": ("typical_p",),
    "top_p": ("top_p",),
    "min_p": ("min_p",),
    "xtc": ("xtc_probability", "xtc_threshold"),
    "temp": ("temperature",),
    "temp_ext": ("temperature",),
    "greedy": ("temperature",),
    "mirostat": ("mirostat_tau",),
    "mirostat_v2": ("mirostat_tau",),
    "adaptive_p": ("adaptive_target",),
}
"""For each sampler the options that it goes by."""
OFF: Final = {"repeat_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0}
"""Penalties that do nothing."""
_NAMES: Final = {
    "temp": "temperature",
    "temp_ext": "temperature",
    "greedy": "temperature",
    "dist": "draw",
    "grammar_lazy_patterns": "grammar",
}


@dataclass(frozen=True, slots=True)
class Stage:
    """What a stage of the chain leaves to choose from."""

    name: str
    """"model" for what there is before the first sampler, else the sampler's, as "top_k" """
    settings: dict[str, Any]
    """the options that it went by"""
    tokens: Ids
    """ids of what is left, the likeliest first, equal ones by id; shape (n,)"""
    probabilities: Shares
    """of those; shape (n,)"""
    n_removed: int = 0
    """how many tokens it took away"""
    removed: float = 0.0
    """the probability that those had before it, together"""

    @property
    def entropy(self) -> float:
        """How open the choice is, in bits."""
        some = self.probabilities[self.probabilities > 0].astype(np.float64)
        return max(0.0, -float(np.dot(some, np.log2(some))))

    def probability(self, token: int) -> float | None:
        """Of one token; None where it was taken away."""
        found = np.flatnonzero(self.tokens == token)
        return float(self.probabilities[found[0]]) if len(found) else None


@dataclass(frozen=True, slots=True)
class Source:
    """A model, and how its logits are had."""

    model: _core.Model
    vocab: Vocabulary
    read: Callable[[Ledger], NDArray[np.float32]]
    """the raw logits after a ledger, shape (n_vocab,)"""


class NextToken:
    """What may come after some tokens, under sampling options. Made by `LLM.next_token`.

    `logits` are the model's own, float32, shape (n_vocab,), read-only. Nothing is evaluated again under other options.
    """

    def __init__(
        self, source: Source, ledger: Ledger, n_given: int, options: GenerateOptions, logits: NDArray[np.float32]
    ) -> None:
        """`n_given`: how many of the ledger's last tokens are the answer's."""
        self._source, self.ledger, self._n_given = source, ledger, n_given
        self.options, self.logits = options.with_concrete_seed(), logits
        logits.flags.writeable = False

    @classmethod
    def read(cls, source: Source, ledger: Ledger, n_given: int, options: GenerateOptions) -> NextToken:
        """Evaluate what of the ledger is not at hand. Raises `PromptTooLong`."""
        return cls(source, ledger, n_given, options, source.read(ledger))

    def with_options(self, **changes: Any) -> NextToken:
        """The same distribution under other sampling options. Raises `BadOption`."""
        kept = {item.name: getattr(self.options, item.name) for item in fields(self.options)}
        return self._under(self.options.replace_from(kept | changes))

    def append(self, token: int) -> NextToken:
        """The distribution one token further on, this one appended. Raises `BadOption` and `PromptTooLong`."""
        if not 0 <= token < self.vocab.n_tokens:
            raise BadOption(f"there is no token {token}: ids are 0 to {self.vocab.n_tokens - 1:,}")
        ledger = self.ledger.append_sampled([token])
        return NextToken.read(self._source, ledger, self._n_given + 1, self.options)

    @property
    def vocab(self) -> Vocabulary:
        return self._source.vocab

    @property
    def text(self) -> str:
        """What the token follows, control tokens written out."""
        return self.vocab.detokenize(self.ledger.tokens, special=True)

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """The model's own distribution, then what each sampler in turn leaves of it; the last is what is drawn from."""
        parts = self._parts()
        found = [_softmax(self.logits)]
        for end in range(1, len(parts) + 1):
            part = parts[end - 1]
            if part.name != "dist":  # it only draws
                left = _core.Sampler.chain(parts[:end]).apply(self.logits)
                found.append(self._stage(part.name, left, found[-1]))
        return tuple(found)

    @property
    def candidates(self) -> Stage:
        """What is drawn from."""
        return self.stages[-1]

    def sampler(self) -> _core.Sampler:
        """The whole chain, before its first draw."""
        return _core.Sampler.chain(self._parts())

    def draw(self) -> int:
        """The token that an answer under these options begins with."""
        token = self.sampler().apply(self.logits).selected
        assert token is not None
        return token

    def piece(self, token: int) -> bytes:
        """The bytes of a token, a control token written out."""
        return self.vocab.piece(token, special=True)

    def __str__(self) -> str:
        from ipyllama.display.stages import stages_text

        return stages_text(self)

    def __repr__(self) -> str:
        return str(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        from ipyllama.display.stages import stages_html, stages_text

        return {"text/plain": stages_text(self), "text/html": stages_html(self)}

    def _parts(self) -> list[_core.Sampler]:
        tokens, n_asked = self.ledger.tokens, len(self.ledger) - self._n_given
        parts = sampler_parts(self._source.model, self.options, tokens[:n_asked])
        for part in parts:
            part.accept(list(tokens[n_asked:]))
        return parts

    def _under(self, options: GenerateOptions) -> NextToken:
        return NextToken(self._source, self.ledger, self._n_given, options, self.logits)

    def _stage(self, name: str, left: _core.Candidates, before: Stage) -> Stage:
        tokens, probabilities = left.tokens, left.probabilities
        if name == "greedy":
            tokens, probabilities = np.array([left.selected], np.int32), np.ones(1, np.float32)
        order = np.lexsort((tokens, -probabilities))
        gone = before.probabilities[~np.isin(before.tokens, tokens)]
        settings = {key: getattr(self.options, key) for key in SETTINGS[name]}
        if name == "penalties":
            settings = {key: value for key, value in settings.items() if value != OFF[key]}
        removed = math.fsum(gone.tolist())
        return Stage(_NAMES.get(name, name), settings, tokens[order], probabilities[order], len(gone), removed)


def _softmax(logits: NDArray[np.float32]) -> Stage:
    """The model's own distribution. A token whose logit is minus infinity is none."""
    tokens = np.flatnonzero(logits > -np.inf).astype(np.int32)
    some = logits[tokens].astype(np.float64)
    weights = np.exp(some - some.max())
    probabilities = (weights / weights.sum()).astype(np.float32)
    order = np.lexsort((tokens, -probabilities))
    return Stage("model", {}, tokens[order], probabilities[order])


def place(read: Callable[[Prompt], Ledger], prompt: Prompt | Ledger | Turn, at: int) -> tuple[Ledger, int]:
    """What comes before the place that is meant, and how many of its last tokens are an answer's. `read` makes a ledger
    of a text. Raises `BadOption`."""
    from ipyllama.chat import Turn

    if not isinstance(prompt, Turn):
        if at:
            raise BadOption("at= tells the place in an answer: give a turn, or the text up to the place")
        return prompt if isinstance(prompt, Ledger) else read(prompt), 0
    if not 0 <= at <= len(prompt.tokens):
        raise BadOption(f"the answer has tokens 0 to {len(prompt.tokens) - 1:,}: there is no place {at}")
    return prompt.ledger.head(len(prompt.ledger) - len(prompt.tokens) + at), at
