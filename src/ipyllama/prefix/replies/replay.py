"""An identical request gets the reply that it got before, at once: which requests are identical, and what is kept."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from numbers import Integral
from typing import TYPE_CHECKING, Any, Final

from ipyllama.engine import Job, Request
from ipyllama.ledger import Ledger
from ipyllama.prefix.replies.memo import ENDINGS, Replies
from ipyllama.reply import Delta, Reply, Timings, Usage

if TYPE_CHECKING:
    from ipyllama.engine.engine import Wrap
    from ipyllama.prefix.records import Binding

FORMAT: Final = 2
"""Of what is hashed and kept; another one finds nothing."""


class ModelReplies:
    """The replies of one loaded model. Besides the request they depend on weights and settings, build, threads and GPU
    layers; not on the context's length, which only has to hold them."""

    def __init__(self, replies: Replies, binding: Binding, n_gpu_layers: int, n_ctx: int, n_vocab: int) -> None:
        self._replies, self._n_ctx, self._n_vocab = replies, n_ctx, n_vocab
        origin = binding.origin
        self._settings = [FORMAT, binding.fingerprint.hex(), origin.build, origin.n_threads, n_gpu_layers]
        replies.prepare()

    def find(self, request: Request) -> Reply | None:
        """The reply that this very request got before, as it would read now."""
        record = self._replies.get(self._key(request))
        prompt = len(request.prompt)
        if record is None or prompt >= self._n_ctx or prompt + len(record["tokens"]) - 1 > self._n_ctx:
            return None
        if max(record["tokens"]) >= self._n_vocab:  # files tell what they like, and the next turn would be built on it
            return None
        return Reply(
            text=record["text"],
            tokens=tuple(record["tokens"]),
            finish_reason=record["finish_reason"],
            usage=Usage(restored=prompt, generated=len(record["tokens"])),
            timings=Timings(**record["timings"]),
            model=request.model_name,
            seed=int(request.options.seed),
            notes=request.notes,
            replayed=True,
        )

    def keeping(self, request: Request, wrap: Wrap) -> Wrap:
        """`wrap`, and the reply is kept before it if an identical request may get it."""

        def keep(reply: Reply, ledger: Ledger) -> Reply:
            if reply.exact and reply.finish_reason in ENDINGS:
                record = {
                    "text": reply.text,
                    "tokens": reply.tokens,
                    "finish_reason": reply.finish_reason,
                    "timings": dataclasses.asdict(reply.timings),
                }
                self._replies.put(self._key(request), record)
            return wrap(reply, ledger)

        return keep

    def _key(self, request: Request) -> str:
        """SHA-256, in hexadecimal, of everything that the reply depends on."""
        ledger = [[segment.sampled, segment.together, segment.tokens] for segment in request.prompt.segments]
        options = dataclasses.asdict(request.options)
        del options["reuse"]  # what is kept is exact, and good for either
        content = [self._settings, ledger, options]
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=_number).encode()).hexdigest()


def replay(reply: Reply, ledger: Ledger, wrap: Wrap) -> Job:
    """A job that has ended with this reply to the prompt `ledger`."""
    job = Job(lambda job: None)
    if reply.text:
        job.emit(Delta(reply.text))
    try:
        job.finish(wrap(reply, ledger.append_sampled(reply.tokens)))
    except Exception as error:  # noqa: BLE001 - it belongs to whoever asks for the reply
        job.fail(error)
    return job


def _number(value: Any) -> int | float:
    """A number of numpy's, say, as Python's."""
    return int(value) if isinstance(value, Integral) else float(value)
