"""Embedding on the worker thread: many inputs, a step at a time, in a context of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from ipyllama import _core
from ipyllama.errors import Aborted

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ipyllama.engine.task import Task

STEP: Final = 512
"""Tokens in a full step. Larger ones are no faster on a CPU: attention looks at all pairs of them, across inputs."""
MOST_INPUTS: Final = 64
"""Inputs in a step."""


class Embedder:
    """Used on the worker thread only, except `abort`. Holds one context: another pooling takes its place."""

    def __init__(self, model: _core.Model, options: Callable[[], _core.ContextOptions], limit: int) -> None:
        """`options` makes those of a generating context; `limit` is the longest input in tokens."""
        self._model, self._options, self._limit = model, options, limit
        self._context: _core.Context | None = None
        self._pooling = ""

    def run(self, task: Task[Any], inputs: Sequence[list[int]], pooling: str) -> list[NDArray[np.float32]]:
        """The pooled embedding of each input, in order. No input is empty or over the limit."""
        context = self._open(pooling)
        context.clear_abort()
        lengths = [len(tokens) for tokens in inputs]
        found: dict[int, NDArray[np.float32]] = {}
        done, total = 0, sum(lengths)
        for batch in batches(lengths, STEP, context.n_seq_max):
            if task.cancelled:
                raise Aborted("embedding was stopped")
            found.update(zip(batch, context.embed([inputs[i] for i in batch]), strict=True))
            done += sum(lengths[i] for i in batch)
            task.emit(done, total)
        return [found[i] for i in range(len(inputs))]

    def abort(self) -> None:
        """End the running step. Safe from any thread."""
        context = self._context
        if context is not None:
            context.abort()

    def close(self) -> None:
        """Free the context."""
        if self._context is not None:
            self._context.close()
            self._context = None

    def _open(self, pooling: str) -> _core.Context:
        if self._context is None or pooling != self._pooling:
            self.close()
            options = self._options()
            options.n_ctx = options.n_batch = max(self._limit, STEP)
            # recurrent models read one sequence after the other, and keep a whole state for each
            options.n_seq_max = 1 if self._model.is_recurrent or self._model.is_hybrid else MOST_INPUTS
            options.embeddings, options.pooling = True, pooling
            self._context, self._pooling = _core.Context(self._model, options), pooling
        return self._context


def batches(lengths: Sequence[int], step: int, most: int) -> Iterator[list[int]]:
    """Indices of inputs, longest first, in batches of at most `most` inputs and `step` tokens, or one longer input."""
    batch: list[int] = []
    n = 0
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batch and (n + lengths[i] > step or len(batch) == most):
            yield batch
            batch, n = [], 0
        batch.append(i)
        n += lengths[i]
    if batch:
        yield batch
