"""One generation, on the worker thread: start from what is at hand, prefill by the schedule, sample."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ipyllama import _core
from ipyllama.engine.job import Job
from ipyllama.engine.schedule import piece_ends
from ipyllama.engine.states import Start, States
from ipyllama.engine.text import TextAssembler
from ipyllama.errors import Aborted, BadOption, PromptTooLong
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


class Generation:
    """The state of one run. `run()` gives the reply and the ledger with what was sampled."""

    def __init__(self, job: Job, model: _core.Model, live: States, n_ctx: int, request: Request) -> None:
        self._job, self._model, self._live, self._n_ctx = job, model, live, n_ctx
        self._request = request
        self._text = TextAssembler(request.options.stop)
        self._sampled: list[int] = []
        self._notes: list[str] = []
        self._start = Start()
        self._position = 0  # how far the prompt is read
        self._began = self._prefilled = time.monotonic()
        self._first = self._last = 0.0  # when the first and the last token were sampled

    def run(self) -> tuple[Reply, Ledger]:
        prompt = self._request.prompt
        if not prompt.tokens:
            raise BadOption("the prompt is empty: write something to answer or to continue")
        if len(prompt) >= self._n_ctx:
            raise PromptTooLong(len(prompt), self._n_ctx)
        sampler = make_sampler(self._model, self._request.options, prompt.tokens)  # what is wrong shows before the wait
        try:
            self._prefill()
            reason = self._decode(sampler)
        except Aborted:
            if not self._job.cancelled:
                raise
            reason = "interrupted"
        finally:
            ledger = prompt.append_sampled(self._sampled)
            self._live.finish(ledger)
        self._emit_text(self._text.flush())
        return self._reply(reason), ledger

    def _prefill(self) -> None:
        prompt = self._request.prompt
        self._start = self._live.begin(prompt, self._request.options.reuse)
        self._position = self._start.position
        self._emit_prefill()
        for end in (end for end in piece_ends(prompt) if end > self._position):
            piece = prompt.tokens[self._position : end]
            self._live.evaluate(piece)
            if not self._live.proven(piece):
                self._notes.append("a saved state did not prove right: it was set aside, and all was computed anew")
                self._prefill()
                return
            self._position = end
            self._emit_prefill()
        self._prefilled = time.monotonic()

    def _decode(self, sampler: _core.Sampler) -> FinishReason:
        while True:
            token = sampler.sample(self._live.sequence)
            self._sampled.append(token)
            self._last = time.monotonic()
            if len(self._sampled) == 1:
                self._first = self._last
            if self._model.is_eog(token):
                return "stop"
            self._emit_text(self._text.add(self._model.piece(token)))
            if self._text.stopped:
                return "stop"
            if len(self._sampled) >= self._request.options.max_tokens:
                return "length"
            if len(self._live) >= self._n_ctx:
                return "context"
            self._live.evaluate([token])

    def _emit_prefill(self) -> None:
        total = len(self._request.prompt)
        self._job.emit(Prefill(self._position, total, self._start.position, time.monotonic() - self._began))

    def _emit_text(self, text: str) -> None:
        if text:
            self._job.emit(Delta(text))

    def _reply(self, reason: FinishReason) -> Reply:
        start, computed = self._start, self._position - self._start.position
        usage = Usage(start.reused, start.restored, computed, len(self._sampled))
        return Reply(
            text=self._text.text,
            tokens=tuple(self._sampled),
            finish_reason=reason,
            usage=usage,
            timings=self._timings(),
            model=self._request.model_name,
            seed=int(self._request.options.seed),
            notes=(*self._request.notes, *self._notes, *self._inexact(), *self._unread()),
            exact=start.exact,
            why=start.why,
        )

    def _inexact(self) -> tuple[str, ...]:
        if self._start.exact:
            return ()
        return (f"reused to the token, up to {self._start.position:,}: not bit for bit what a cold run answers",)

    def _unread(self) -> tuple[str, ...]:
        done, total = len(self._live), len(self._request.prompt)
        if self._sampled or done >= total - 1:
            return ()
        kept = f"{done:,} of its {total:,} tokens are kept" if done else f"none of its {total:,} tokens could be kept"
        return (f"stopped while reading the prompt: {kept}",)

    def _timings(self) -> Timings:
        queued = self._began - self._job.submitted
        if not self._sampled:
            return Timings(queued=queued, prefill=time.monotonic() - self._began)
        return Timings(
            queued=queued,
            prefill=self._prefilled - self._began,
            first_token=self._first - self._began,
            decode=self._last - self._first,
        )
