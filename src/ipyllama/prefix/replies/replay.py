"""An identical request gets the reply that it got before, at once: which requests are identical, and what is kept."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any, Final

from ipyllama.engine import Job, Request
from ipyllama.logprobs import Logprob, TokenLogprob, has_top, shortened
from ipyllama.prefix.replies.memo import ENDINGS, Replies
from ipyllama.reply import Delta, Reply, Timings, Usage

if TYPE_CHECKING:
    from ipyllama.engine.engine import Wrap
    from ipyllama.ledger import Ledger
    from ipyllama.prefix.records import Binding
    from ipyllama.vocab import Vocabulary

FORMAT: Final = 2
"""Of what is hashed and kept; another one finds nothing."""


class ModelReplies:
    """The replies of one loaded model. Besides the request they depend on weights and settings, build, threads and GPU
    layers; not on the context's length, which only has to hold them."""

    def __init__(self, replies: Replies, binding: Binding, n_gpu_layers: int, n_ctx: int, vocab: Vocabulary) -> None:
        self._replies, self._n_ctx, self._vocab = replies, n_ctx, vocab
        origin = binding.origin
        self._settings = [FORMAT, binding.fingerprint.hex(), origin.build, origin.n_threads, n_gpu_layers]
        replies.prepare()

    def find(self, request: Request) -> Reply | None:
        """The reply that this very request got before, as it would read now."""
        record = self._replies.get(self._key(request))
        prompt, given = len(request.prompt), request.opening.n_read
        if record is None or prompt >= self._n_ctx or prompt - given + len(record["tokens"]) - 1 > self._n_ctx:
            return None
        if max(record["tokens"]) >= self._vocab.n_tokens:  # files tell what they like, and turns would be built on it
            return None
        logprobs, n = None, request.options.logprobs
        if n is not None:
            logprobs = _to_logprobs(record, self._vocab)
            if logprobs is None or not has_top(logprobs, min(n, self._vocab.n_tokens)):
                return None
        return Reply(
            text=record["text"],
            tokens=tuple(record["tokens"]),
            finish_reason=record["finish_reason"],
            usage=Usage(restored=prompt, generated=len(record["tokens"]) - given),
            timings=Timings(**record["timings"]),
            model=request.model_name,
            seed=int(request.options.seed),
            notes=request.notes,
            replayed=True,
            logprobs=None if logprobs is None or n is None else shortened(logprobs, n),
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
                if reply.logprobs is not None:
                    record["logprobs"] = _of_logprobs(reply.logprobs)
                self._replies.put(self._key(request), record)
            return wrap(reply, ledger)

        return keep

    def _key(self, request: Request) -> str:
        """SHA-256, in hexadecimal, of everything that the reply depends on."""
        opening = request.opening
        prompt = request.prompt.append_sampled(opening.script)
        ledger = [[segment.sampled, segment.together, segment.tokens] for segment in prompt.segments]
        options = dataclasses.asdict(request.options)
        del options["reuse"], options["recompute"]  # what is kept is exact, and good for all
        del options["logprobs"]  # they change nothing of the answer
        content = [self._settings, ledger, options]
        if given := opening.n_read + len(opening.script):
            content.append(given)
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=_number).encode()).hexdigest()


def _of_logprobs(logprobs: Sequence[TokenLogprob]) -> list[list[Any]]:
    """Without the bytes, which the vocabulary knows."""
    return [
        [each.logprob, each.entropy, [top.id for top in each.top], [top.logprob for top in each.top]]
        for each in logprobs
    ]


def _to_logprobs(record: Mapping[str, Any], vocab: Vocabulary) -> tuple[TokenLogprob, ...] | None:
    """What a record tells; None where it tells nothing, or nonsense."""
    found, tokens = [], record["tokens"]
    try:
        rows = record["logprobs"]
        for token, (logprob, entropy, ids, values) in zip(tokens, rows, strict=True):
            pairs = zip(ids, values, strict=True)
            top = tuple(Logprob(other, vocab.piece(other, special=True), _real(value)) for other, value in pairs)
            found.append(TokenLogprob(token, vocab.piece(token, special=True), _real(logprob), _real(entropy), top))
    except (KeyError, TypeError, ValueError):  # a bad id is a ValueError, too
        return None
    return tuple(found)


def _real(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise ValueError("a number is needed")
    return float(value)


def replay(reply: Reply, request: Request, wrap: Wrap) -> Job:
    """A job that has ended with this reply to a request."""
    job = Job(lambda job: None)
    if reply.text:
        job.emit(Delta(reply.text))
    try:
        job.finish(wrap(reply, request.prompt.append_sampled(reply.tokens[request.opening.n_read :])))
    except Exception as error:  # noqa: BLE001 - it belongs to whoever asks for the reply
        job.fail(error)
    return job


def _number(value: Any) -> int | float:
    """A number of numpy's, say, as Python's."""
    return int(value) if isinstance(value, Integral) else float(value)
