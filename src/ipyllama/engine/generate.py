"""One generation, on the worker thread: start from what is at hand, prefill by the schedule, sample."""

from __future__ import annotations

from ipyllama import _core
from ipyllama.engine.answer import Answer, Request
from ipyllama.engine.job import Job
from ipyllama.engine.schedule import piece_ends
from ipyllama.engine.states import Fusing, Start, States
from ipyllama.errors import Aborted
from ipyllama.ledger import Ledger
from ipyllama.reply import FinishReason, Reply


def read_prompt(live: States, answer: Answer) -> None:
    """Bring the prompt into the active sequence, up to its end. Raises `Aborted`."""
    prompt, options = answer.request.prompt, answer.request.options
    if (fusing := answer.request.fusing) is not None and options.reuse == "fused":
        answer.start = live.fuse(prompt, fusing, answer.reading)
    else:
        answer.start = live.begin(prompt, options.reuse, answer.request.shift)
    position = answer.start.position
    answer.reading(position)
    for end in (end for end in piece_ends(prompt) if end > position):
        piece = prompt.tokens[position:end]
        live.evaluate(piece)
        if not live.proven(piece):
            answer.notes.append("a saved state did not prove right: it was set aside, and all was computed anew")
            read_prompt(live, answer)
            return
        position = end
        answer.reading(position)
    if fusing is not None and answer.start.moved:
        answer.notes.append(_fused(fusing, answer.start))
    elif answer.start.moved:
        moved = f"{answer.start.moved:,} tokens still know of what was left out, because their KV was moved"
        answer.notes.append(f"{moved}: not what a cold run answers")
    elif not answer.start.exact:
        reused = f"reused to the token, up to {answer.start.position:,}"
        answer.notes.append(f"{reused}: not bit for bit what a cold run answers")


def _fused(fusing: Fusing, start: Start) -> str:
    """What the reader should know of a fused prompt."""
    return (
        f"fused: {start.moved:,} tokens of documents were computed apart from each other and moved; of each document "
        f"the first {fusing.recompute} were computed in their place"
    )


class Generation:
    """The state of one run. `run()` gives the reply and the ledger with what was sampled."""

    def __init__(self, job: Job, model: _core.Model, live: States, n_ctx: int, request: Request) -> None:
        self._job, self._live = job, live
        self._answer = Answer(job, model, request, n_ctx)

    def run(self) -> tuple[Reply, Ledger]:
        answer, live = self._answer, self._live
        prompt = answer.request.prompt
        try:
            read_prompt(live, answer)
            reason = answer.ended or self._write()
        except Aborted:
            if not self._job.cancelled:
                raise
            reason = "interrupted"
            answer.notes += self._unread()
        finally:
            ledger = prompt.append_sampled(answer.sampled)
            live.finish(ledger)
        return answer.reply(reason), ledger

    def _write(self) -> FinishReason:
        live = self._live
        while (reason := self._answer.sample(live.sequence, len(live))) is None:
            live.evaluate(self._answer.sampled[-1:])
        return reason

    def _unread(self) -> tuple[str, ...]:
        done, total = len(self._live), len(self._answer.request.prompt)
        if self._answer.sampled or done >= total - 1:
            return ()
        kept = f"{done:,} of its {total:,} tokens are kept" if done else f"none of its {total:,} tokens could be kept"
        return (f"stopped while reading the prompt: {kept}",)
