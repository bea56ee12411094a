"""One answer while it is written: what was sampled, its text, when, and how it ends."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ipyllama import _core
from ipyllama.engine.job import Job
from ipyllama.engine.states import Shift, Start
from ipyllama.engine.text import TextAssembler
from ipyllama.errors import BadOption, PromptTooLong
from ipyllama.ledger import Ledger
from ipyllama.options import GenerateOptions
from ipyllama.reply import Delta, FinishReason, Prefill, Reply, Timings, Usage
from ipyllama.sampling import make_sampler


@dataclass(frozen=True, slots=True)
class Request:
    """What to generate from: a prompt ledger, and how to sample (with a concrete seed)."""

    prompt: Ledger
    options: GenerateOptions
    model_name: str = ""
    notes: tuple[str, ...] = ()
    shift: Shift | None = None


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
        self.sampled: list[int] = []
        self.notes: list[str] = []
        self.start = Start()
        self.read = 0
        """how far the prompt is in the context"""
        self._model, self._n_ctx = model, n_ctx
        self._sampler = make_sampler(model, request.options, request.prompt.tokens)
        self._text = TextAssembler(request.options.stop)
        self._began = self._prefilled = time.monotonic()
        self._first = self._last = 0.0  # when the first and the last token were sampled

    def reading(self, read: int) -> None:
        """The prompt is in the context up to `read`."""
        self.read, self._prefilled = read, time.monotonic()
        self.job.emit(Prefill(read, len(self.request.prompt), self.start.position, self._prefilled - self._began))

    def sample(self, sequence: _core.Sequence, n_live: int) -> FinishReason | None:
        """The next token, from the sequence's logits; how the answer ends, if it ends with it.

        `n_live` is the number of tokens with KV, this answer's own: the context is full when there is no room for one.
        """
        token = self._sampler.sample(sequence)
        self.sampled.append(token)
        self._last = time.monotonic()
        if len(self.sampled) == 1:
            self._first = self._last
        if self._model.is_eog(token):
            return "stop"
        self._emit(self._text.add(self._model.piece(token)))
        if self._text.stopped:
            return "stop"
        if len(self.sampled) >= self.request.options.max_tokens:
            return "length"
        return "context" if n_live >= self._n_ctx else None

    def reply(self, reason: FinishReason) -> Reply:
        """What was answered; the text that was held back for a stop text comes out."""
        self._emit(self._text.flush())
        start = self.start
        return Reply(
            text=self._text.text,
            tokens=tuple(self.sampled),
            finish_reason=reason,
            usage=Usage(start.reused, start.restored, self.read - start.position, len(self.sampled)),
            timings=self._timings(),
            model=self.request.model_name,
            seed=int(self.request.options.seed),
            notes=(*self.request.notes, *self.notes),
            exact=start.exact,
            why=start.why,
        )

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
