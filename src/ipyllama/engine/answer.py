"""One answer while it is written: what was sampled, its text, when, and how it ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from ipyllama import _core
from ipyllama.engine.job import Job
from ipyllama.engine.logprobs import Logits, Recorder
from ipyllama.engine.states import Fusing, Shift, Start
from ipyllama.engine.text import TextAssembler
from ipyllama.errors import BadOption, PromptTooLong
from ipyllama.ledger import Ledger
from ipyllama.logprobs import TokenLogprob
from ipyllama.options import GenerateOptions
from ipyllama.reply import Delta, FinishReason, Prefill, Reply, Timings, Usage
from ipyllama.sampling import make_sampler

Watch = Callable[[Logits], None]
"""Gets the raw logits of each choice, on the worker's thread."""


@dataclass(frozen=True, slots=True)
class Opening:
    """The first tokens of an answer, where they are chosen beforehand. What follows them is sampled."""

    n_read: int = 0
    """how many of them are the last of the prompt: their state may be at hand"""
    known: tuple[TokenLogprob, ...] = ()
    """what is told of those, where logprobs are asked for"""
    script: tuple[int, ...] = ()
    """those after them, taken one by one, so that the logits of each are seen"""


@dataclass(frozen=True, slots=True)
class Request:
    """What to generate from: a prompt ledger, and how to sample (with a concrete seed)."""

    prompt: Ledger
    options: GenerateOptions
    model_name: str = ""
    notes: tuple[str, ...] = ()
    shift: Shift | None = None
    fusing: Fusing | None = None
    opening: Opening = field(default_factory=Opening)
    watch: Watch | None = None


def unbegun_reply(request: Request, job: Job) -> Reply:
    """The reply of a job that was cancelled while it waited."""
    return Reply(
        text="",
        finish_reason="interrupted",
        timings=Timings(queued=time.monotonic() - job.submitted),
        model=request.model_name,
        seed=int(request.options.seed),
        notes=request.notes,
    )


class Answer:
    """What becomes of one request. Its prompt is read by someone else, who says how far."""

    def __init__(self, job: Job, model: _core.Model, request: Request, n_ctx: int) -> None:
        """Raises `BadOption` and `PromptTooLong`, and whatever is wrong with the way to sample."""
        if not request.prompt.tokens:
            raise BadOption("the prompt is empty: write something to answer or to continue")
        if len(request.prompt) >= n_ctx:
            raise PromptTooLong(len(request.prompt), n_ctx)
        self.job, self.request = job, request
        opening, tokens = request.opening, request.prompt.tokens
        n_asked = len(tokens) - opening.n_read
        self.given = tokens[n_asked:]
        """the tokens of the answer that the prompt ends with"""
        self.sampled: list[int] = []
        """those after them"""
        self.ended: FinishReason | None = None
        """how the answer ends, if it does with what is given"""
        self.notes: list[str] = []
        self.start = Start()
        self.read = 0
        """how far the prompt is in the context"""
        self._model, self._n_ctx = model, n_ctx
        self._sampler = make_sampler(model, request.options, tokens[:n_asked])
        self._script = list(opening.script)
        self._logprobs: Recorder | None = None
        if request.options.logprobs is not None:
            self._logprobs = Recorder(request.options.logprobs, partial(model.piece, special=True), opening.known)
        self._text = TextAssembler(request.options.stop)
        self._began = self._prefilled = time.monotonic()
        self._first = self._last = 0.0  # when the first and the last token were sampled
        if self.given:
            self._sampler.accept(list(self.given))
            self.ended = next(filter(None, map(self._take, self.given)), None) or self._at_length()

    def reading(self, read: int) -> None:
        """The prompt is in the context up to `read`."""
        self.read, self._prefilled = read, time.monotonic()
        self.job.emit(Prefill(read, len(self.request.prompt), self.start.position, self._prefilled - self._began))

    def sample(self, sequence: _core.Sequence, n_live: int) -> FinishReason | None:
        """The next token, from the sequence's logits; how the answer ends, if it ends with it.

        `n_live` is the number of tokens with KV, this answer's own: the context is full when there is no room for one.
        """
        token = self._choose(sequence)
        self.sampled.append(token)
        self._last = time.monotonic()
        if len(self.sampled) == 1:
            self._first = self._last
        reason = self._take(token) or self._at_length()
        if self._script:  # what is written beforehand is written to its end
            reason = None
        return "context" if reason is None and n_live >= self._n_ctx else reason

    def _choose(self, sequence: _core.Sequence) -> int:
        """The next token of the script, or a sampled one; whoever wants to know of its logits is told."""
        looked_at = self._logprobs is not None or self.request.watch is not None
        logits = sequence.logits() if looked_at else None
        if self._script:
            token = self._script.pop(0)
            self._sampler.accept([token])
        else:
            token = self._sampler.sample(sequence)
        if logits is not None:
            if self.request.watch is not None:
                self.request.watch(logits)
            if self._logprobs is not None:
                self._logprobs.add(token, logits)
        return token

    def _take(self, token: int) -> FinishReason | None:
        """Put a token into the text; "stop" if it ends the answer."""
        if self._model.is_eog(token):
            return "stop"
        self._emit(self._text.add(self._model.piece(token)))
        return "stop" if self._text.stopped else None

    def _at_length(self) -> FinishReason | None:
        n_tokens = len(self.given) + len(self.sampled)
        return "length" if n_tokens >= self.request.options.max_tokens else None

    def reply(self, reason: FinishReason) -> Reply:
        """What was answered; the text that was held back for a stop text comes out."""
        self._emit(self._text.flush())
        start = self.start
        return Reply(
            text=self._text.text,
            tokens=(*self.given, *self.sampled),
            finish_reason=reason,
            usage=self._usage(),
            timings=self._timings(),
            model=self.request.model_name,
            seed=int(self.request.options.seed),
            notes=(*self.request.notes, *self.notes),
            exact=start.exact,
            fused=self.request.fusing is not None and start.moved > 0,
            why=start.why,
            logprobs=tuple(self._logprobs.found) if self._logprobs else None,
        )

    def _usage(self) -> Usage:
        start = self.start
        return Usage(start.reused, start.restored, self.read - start.reused - start.restored, len(self.sampled))

    def _emit(self, text: str) -> None:
        if text:
            self.job.emit(Delta(text, len(self.sampled)))

    def _timings(self) -> Timings:
        queued = self._began - self.job.submitted
        if not self.sampled:
            return Timings(queued=queued, prefill=time.monotonic() - self._began)
        return Timings(
            queued=queued,
            prefill=self._prefilled - self._began,
            first_token=self._first - self._began,
            decode=self._last - self._first,
        )
