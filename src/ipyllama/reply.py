"""What an answer is, and what happens on the way to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ipyllama.errors import BadOption
from ipyllama.logprobs import TokenLogprob
from ipyllama.thinking import Parts, split_thinking
from ipyllama.why import Why

if TYPE_CHECKING:
    from ipyllama.widgets.tokens import TokenView

FinishReason = Literal["stop", "length", "interrupted", "context", "error"]
"""Why generation ended: the model or a stop text ended it; `max_tokens`; Stop; the context is full; a fault."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts. `reused + restored + computed` is the length of the prompt."""

    reused: int = 0
    """prompt tokens whose KV was live in the context"""
    restored: int = 0
    """prompt tokens whose KV was brought back from RAM or disk"""
    computed: int = 0
    """prompt tokens evaluated now"""
    generated: int = 0
    """tokens sampled, the end-of-turn token included"""

    @property
    def prompt(self) -> int:
        return self.reused + self.restored + self.computed


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds on a monotonic clock."""

    queued: float = 0.0
    """waiting for earlier jobs"""
    prefill: float = 0.0
    """restoring and evaluating the prompt"""
    first_token: float = 0.0
    """from the start of work to the first sampled token"""
    decode: float = 0.0
    """from the first sampled token to the last"""

    def tokens_per_second(self, generated: int) -> float:
        """Decoding speed; 0 where fewer than two tokens were sampled."""
        return (generated - 1) / self.decode if generated > 1 and self.decode > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer: its text, the exact token ids, why it ended and what it cost."""

    text: str
    tokens: tuple[int, ...] = ()
    finish_reason: FinishReason = "stop"
    usage: Usage = field(default_factory=Usage)
    timings: Timings = field(default_factory=Timings)
    model: str = ""
    seed: int = 0
    notes: tuple[str, ...] = ()
    """things the reader should know, one short sentence each"""
    exact: bool = True
    """a cold run answers the same, bit for bit, on this machine and build; False under `reuse="token"` at times"""
    fused: bool = False
    """parts of the prompt were computed apart from each other and moved together (`reuse="fused"`): approximate"""
    why: Why | None = field(default=None, repr=False, compare=False)
    """what of the prompt was at hand, and why no more"""
    replayed: bool = False
    """an identical request got this reply before: `timings` are of then, nothing was computed now"""
    logprobs: tuple[TokenLogprob, ...] | None = field(default=None, repr=False, compare=False)
    """for each token how likely it was, and what else; None where `logprobs` was not asked for"""

    @property
    def thinking(self) -> str:
        """What the model wrote before its answer, between tags such as `<think>`; empty if nothing."""
        return self.parts.thinking

    @property
    def answer(self) -> str:
        """The text without the thinking."""
        return self.parts.answer

    @property
    def parts(self) -> Parts:
        """The text as thinking and answer."""
        return split_thinking(self.text)

    @property
    def kept(self) -> bool:
        """Whether a conversation has it: it is not lost with whoever holds it."""
        return False

    def token_view(self) -> TokenView:
        """Every token with how likely it was and what else could have stood there, to look at. Raises `BadOption` where
        the reply was asked for without `logprobs`."""
        from ipyllama.widgets.tokens import TokenView

        if self.logprobs is None:
            raise BadOption("it was not asked how likely its tokens were: ask with logprobs=5")
        return TokenView(self)

    def token_title(self) -> str:
        """What stands above its tokens."""
        return f"Tokens of an answer of {self.model}"

    def __str__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        from ipyllama.display import reply_bundle

        return reply_bundle(self)


@dataclass(frozen=True, slots=True)
class Queued:
    """Waiting: `place` jobs are ahead of this one."""

    place: int


@dataclass(frozen=True, slots=True)
class Prefill:
    """`done` of `total` prompt tokens are in the context, `start` of them from before; `seconds` since work began."""

    done: int
    total: int
    start: int
    seconds: float

    @property
    def eta(self) -> float | None:
        """Seconds left, or None where nothing has been computed yet."""
        computed = self.done - self.start
        return self.seconds / computed * (self.total - self.done) if computed > 0 and self.seconds > 0 else None


@dataclass(frozen=True, slots=True)
class Delta:
    """New text, always whole characters; how many tokens have been sampled so far."""

    text: str
    tokens: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a job."""

    reply: Reply


Event = Queued | Prefill | Delta | Finished
