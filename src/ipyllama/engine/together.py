"""Several answers at once: what their prompts have in common is read once, then one step serves all of them.

Steps of several sequences sum in another order than steps of one, and the cells of a second sequence are not
contiguous: an answer may differ from the one that a run of its own gives, within rounding. Its state is not kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ipyllama import _core
from ipyllama.engine.answer import Answer
from ipyllama.engine.generate import read_prompt
from ipyllama.engine.schedule import piece_ends, shared_end
from ipyllama.engine.states import Start, States
from ipyllama.errors import Aborted
from ipyllama.ledger import Ledger
from ipyllama.reply import FinishReason, Reply
from ipyllama.why import Why

Conclude = Callable[[int, Reply, Ledger], None]
"""Called for each answer as it ends, with its number, its reply and the ledger with what was sampled."""


@dataclass(slots=True)
class _Branch:
    """An answer that is being written, and the sequence that it is written in."""

    answer: Answer
    sequence: _core.Sequence


class Together:
    """The state of one run. A job that is cancelled ends alone."""

    def __init__(
        self,
        answers: Sequence[Answer],
        context: _core.Context,
        live: States,
        conclude: Conclude,
        others_wait: Callable[[], bool] = lambda: False,
    ) -> None:
        """Where `others_wait`, no more answers are begun: `unbegun` tells which, once `run` has ended."""
        self._others_wait = others_wait
        self._context, self._live, self._n_ctx = context, live, context.n_ctx
        self._answers, self._conclude_with = list(answers), conclude
        self._waiting = deque(self._answers)
        self._branches: list[_Branch] = []
        self._shared = shared_prompt([answer.request.prompt for answer in answers])

    def run(self) -> None:
        """Write every answer to its end."""
        try:
            self._read_shared()
            self._begin_equal()
            while self._branches or (self._waiting and not self._gives_way()):
                self._fill()
                self._step()
                self._tell()
        except Aborted:
            if not all(answer.job.cancelled for answer in self._answers):
                raise
            for branch in list(self._branches):
                self._end(branch, "interrupted")
            while self._waiting:
                self._conclude(self._waiting.popleft(), "interrupted")
        finally:
            for branch in self._branches:
                branch.sequence.close()
            self._branches.clear()
            self._tell()
            if len(self._shared):
                self._live.finish(self._shared)

    @property
    def unbegun(self) -> list[int]:
        """The numbers of the answers that it gave up to others."""
        return [self._answers.index(answer) for answer in self._waiting]

    # -- reading ------------------------------------------------------------------------------------------

    def _read_shared(self) -> None:
        """Bring what all prompts begin with into the active sequence; only the first answer has to pay for it."""
        first = self._answers[0]
        if not len(self._shared):
            self._live.clear()  # its cells are wanted
            for answer in self._answers:
                answer.start = Start(why=Why("first use", len(answer.request.prompt), 0))
            return
        whole = first.request
        first.request = replace(whole, prompt=self._shared)
        read_prompt(self._live, first)
        first.request = whole
        for answer in self._answers[1:]:
            why = Why("continued", len(answer.request.prompt), len(self._shared))
            answer.start = Start(reused=len(self._shared), exact=first.start.exact, why=why)
            answer.reading(len(self._shared))

    def _begin_equal(self) -> None:
        """Where the whole prompt is shared, its logits are there now, and gone with the next step: all begin here."""
        for answer in list(self._waiting):
            if len(answer.request.prompt) == len(self._shared):
                reason = answer.sample(self._live.sequence, len(self._shared))
                if reason is not None:
                    self._waiting.remove(answer)
                    self._conclude(answer, reason)

    def _fill(self) -> None:
        """Begin answers for which there is a sequence and room."""
        while self._waiting and len(self._branches) < self._context.n_seq_max - 1 and self._may_begin():
            answer = self._waiting.popleft()
            sequence = self._live.sequence.fork()
            branch = _Branch(answer, sequence)
            self._branches.append(branch)
            if not answer.sampled:
                self._read_rest(branch)
                self._take(branch)

    def _read_rest(self, branch: _Branch) -> None:
        answer = branch.answer
        prompt, position = answer.request.prompt, len(self._shared)
        for end in (end for end in piece_ends(prompt) if end > position):
            branch.sequence.decode(list(prompt.tokens[position:end]))
            position = end
            answer.reading(position)

    def _may_begin(self) -> bool:
        """Whether the next answer can be written to its end while the others are; one alone may try in any case."""
        if self._gives_way():
            return False
        if not self._branches:
            return True
        wanted = [self._waiting[0], *(branch.answer for branch in self._branches)]
        own = sum(len(each.request.prompt) - len(self._shared) + each.request.options.max_tokens for each in wanted)
        return len(self._shared) + own <= self._n_ctx

    def _gives_way(self) -> bool:
        """Whether the next answer is left to another run. The first is not, nor one that was sampled from already."""
        is_first = len(self._waiting) == len(self._answers)
        return not is_first and not self._waiting[0].sampled and self._others_wait()

    # -- writing ------------------------------------------------------------------------------------------

    def _step(self) -> None:
        """One token for every branch."""
        batch = _core.Batch()
        for branch in self._branches:
            batch.add(branch.sequence, branch.answer.sampled[-1:])
        if self._branches:
            self._context.decode(batch)
        for branch in list(self._branches):
            self._take(branch)

    def _tell(self) -> None:
        """Let others see what the branches hold."""
        n = len(self._shared)
        self._live.board.fork(
            n if self._branches else 0,
            [(each.sequence.id, each.answer.request.prompt.tokens[n:], each.answer.sampled) for each in self._branches],
        )

    def _take(self, branch: _Branch) -> None:
        """Sample the next token; the branch ends if its answer does."""
        if branch.answer.job.cancelled:
            self._end(branch, "interrupted")
            return
        reason = branch.answer.sample(branch.sequence, self._n_used())
        if reason is not None:
            self._end(branch, reason)

    def _n_used(self) -> int:
        """Cells in use, and one for every branch that is to come in the next step."""
        own = (len(branch.sequence) - len(self._shared) + 1 for branch in self._branches)
        return len(self._shared) + sum(own) - 1

    def _end(self, branch: _Branch, reason: FinishReason) -> None:
        self._branches.remove(branch)
        branch.sequence.close()
        self._conclude(branch.answer, reason)

    def _conclude(self, answer: Answer, reason: FinishReason) -> None:
        reply = replace(answer.reply(reason), exact=False)
        ledger = answer.request.prompt.append_sampled(answer.sampled, together=True)
        self._conclude_with(self._answers.index(answer), reply, ledger)


def shared_prompt(prompts: Sequence[Ledger]) -> Ledger:
    """What all of these begin with, in whole pieces; all of it where they are the same."""
    first = prompts[0]
    if all(prompt == first for prompt in prompts):
        return first
    shared, ends = len(first), piece_ends(first)
    for prompt in prompts[1:]:
        shared = min(shared, shared_end(first.tokens, ends, prompt.tokens, piece_ends(prompt)), len(prompt) - 1)
    return first.head(max(end for end in (0, *ends) if end <= min(shared, len(first) - 1)))
