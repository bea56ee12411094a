"""Texts to vectors and scores: tokens, the limit of the model, pieces and their mean. `LLM.embed` and `LLM.rerank`."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, get_args

import numpy as np

from ipyllama import _core
from ipyllama.engine import Engine, Task
from ipyllama.engine.embed import Embedder
from ipyllama.errors import Aborted, BadOption, TextTooLong, TooLongWarning, WrongModel
from ipyllama.models.progress import Progress, reporting
from ipyllama.stop import Stop
from ipyllama.vocab import check_encodable

if TYPE_CHECKING:
    from numpy.typing import NDArray

Pooling = Literal["mean", "cls", "last"]
TooLong = Literal["split", "truncate", "error"]
SHOWN: Final = 5
"""Texts that a notice names."""
AVERAGED: Final = "split into pieces, whose vectors are averaged"
CUT: Final = "the rest is left out"


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Tokens:
    """A text as inputs of at most the limit each; `length` is that of the whole, in tokens."""

    pieces: list[list[int]]
    length: int


class TextEncoder:
    """Embeds and ranks texts with one model, on the engine's worker thread."""

    def __init__(
        self, name: str, model: _core.Model, engine: Engine, options: Callable[[], _core.ContextOptions], limit: int
    ) -> None:
        """`options` makes those of the model's contexts; `limit` is the longest input in tokens."""
        self._name, self._model, self._engine, self.limit = name, model, engine, limit
        self._embedder = Embedder(model, options, limit)
        engine.at_end(self._embedder.close)

    @property
    def pooling(self) -> str:
        """The model's own way to make one vector of a text's tokens: mean, cls, last, or rank (a score)."""
        own = self._model.pooling
        return "mean" if own in ("unspecified", "none") else own

    def embed(
        self,
        texts: Iterable[str],
        pooling: Pooling | None,
        normalize: bool,
        too_long: TooLong,
        progress: Progress | None,
    ) -> NDArray[np.float32]:
        """See `LLM.embed`."""
        chosen = self._choose(pooling)
        _check_choice("too_long", too_long, get_args(TooLong))
        listed = _listed(texts)

        def work(task: Task[Any]) -> tuple[list[_Tokens], NDArray[np.float32]]:
            tokens = self._tokenize(task, [partial(self._cut, text, too_long) for text in listed])
            self._refuse(tokens, too_long)
            return tokens, self._vectors(task, tokens, chosen)

        tokens, vectors = self._run(work, "embedding", progress)
        self._notify([each.length for each in tokens], AVERAGED if too_long == "split" else CUT)
        return normalized(vectors) if normalize else vectors

    def rerank(
        self, query: str, texts: Iterable[str], too_long: Literal["truncate", "error"], progress: Progress | None
    ) -> NDArray[np.float32]:
        """See `LLM.rerank`."""
        if self._model.n_cls_out == 0:
            raise WrongModel(f"{self._name} is no ranking model: load a reranker, or compare vectors of embed()")
        _check_choice("too_long", too_long, ("truncate", "error"))
        asked, listed = _listed([query])[0], _listed(texts)

        def work(task: Task[Any]) -> tuple[list[_Tokens], NDArray[np.float32]]:
            tokens = self._tokenize(task, [partial(self._pair, asked, text) for text in listed])
            self._refuse(tokens, too_long)
            scores = self._embedder.run(task, [each.pieces[0] for each in tokens], "rank")
            return tokens, np.array([score[0] for score in scores], np.float32)

        tokens, scores = self._run(work, "ranking", progress)
        self._notify([each.length for each in tokens], CUT)
        return scores

    # -- on the caller's thread -----------------------------------------------------------------------------

    def _choose(self, pooling: str | None) -> str:
        if pooling is not None:
            _check_choice("pooling", pooling, get_args(Pooling))
            return pooling
        if self.pooling == "rank":
            raise WrongModel(f"{self._name} ranks texts: use rerank(query, texts), or say how to pool their tokens")
        return self.pooling

    def _run(self, work: Callable[[Task[Any]], T], label: str, progress: Progress | None) -> T:
        with Stop(), reporting(progress, unit="tokens", delay=1.0) as report:
            task: Task[T] = self._engine.call(work, self._embedder.abort)
            return task.result(lambda done, total: report(done, total, label))

    def _notify(self, lengths: Sequence[int], what: str) -> None:
        if over := self._over(lengths):
            warnings.warn(f"{over}: {what}", TooLongWarning, stacklevel=4)

    def _over(self, lengths: Sequence[int]) -> str:
        """Which texts are over the limit, "" if none is."""
        over = [i for i, n in enumerate(lengths) if n > self.limit]
        if not over:
            return ""
        named = ", ".join(f"texts[{i}] with {lengths[i]:,}" for i in over[:SHOWN])
        more = f" and {len(over) - SHOWN:,} more" if len(over) > SHOWN else ""
        which = f"{len(over):,} of {len(lengths):,} texts {'is' if len(over) == 1 else 'are'}"
        return f"{which} over the limit of {self.limit:,} tokens ({named}{more})"

    # -- on the worker thread -------------------------------------------------------------------------------

    def _tokenize(self, task: Task[Any], readers: Sequence[Callable[[], _Tokens]]) -> list[_Tokens]:
        tokens = []
        for read in readers:
            if task.cancelled:
                raise Aborted("stopped while reading the texts")
            tokens.append(read())
        return tokens

    def _refuse(self, tokens: Sequence[_Tokens], too_long: str) -> None:
        if too_long == "error" and (over := self._over([each.length for each in tokens])):
            raise TextTooLong(f"{over}: shorten them, or let them be split or truncated (too_long=)")

    def _vectors(self, task: Task[Any], tokens: Sequence[_Tokens], pooling: str) -> NDArray[np.float32]:
        """A vector for each text: of several pieces the mean, weighted by tokens; of no token zeros."""
        rows = iter(self._embedder.run(task, [piece for each in tokens for piece in each.pieces], pooling))
        vectors = np.zeros((len(tokens), self._model.n_embd_out), np.float32)
        for vector, each in zip(vectors, tokens, strict=True):
            weights = [len(piece) for piece in each.pieces]
            if weights:
                vector[:] = np.average([next(rows) for _ in weights], axis=0, weights=weights)
        return vectors

    def _cut(self, text: str, too_long: str) -> _Tokens:
        whole = self._model.tokenize(text, add_special=True)
        if len(whole) <= self.limit:
            return _Tokens([whole] if whole else [], len(whole))
        before, content, after = self._framed(text, whole)
        room = max(1, self.limit - len(before) - len(after))
        starts = range(0, len(content), room) if too_long == "split" else range(1)
        return _Tokens([before + content[start : start + room] + after for start in starts], len(whole))

    def _framed(self, text: str, whole: list[int]) -> tuple[list[int], list[int], list[int]]:
        """What the tokenizer puts before a text, the text, and what it puts after it."""
        content = self._model.tokenize(text, add_special=False)
        for start in range(len(whole) - len(content) + 1):
            end = start + len(content)
            if whole[start:end] == content:
                return whole[:start], content, whole[end:]
        return [], whole, []

    def _pair(self, query: str, text: str) -> _Tokens:
        """Query and text as one input, as llama.cpp's server builds it: by the template that the model brings for it,
        else BOS query EOS SEP text EOS, of which each model has some."""
        model = self._model
        template = model.chat_template("rerank")
        if template is not None:
            values = {"query": query, "document": text}
            filled = re.sub(r"\{(query|document)\}", lambda match: values[match[1]], template)
            whole = model.tokenize(filled, add_special=False, parse_special=True)
            return _Tokens([whole[: self.limit]], len(whole))
        end = [model.eos if model.eos >= 0 else model.sep] if model.add_eos else []
        begin = [model.bos] if model.add_bos else []
        asked = begin + model.tokenize(query, add_special=False) + end + ([model.sep] if model.add_sep else [])
        # WordPiece models were trained with a separator at the end too, which their tokenizer knows
        last = end or self._framed(query, model.tokenize(query, add_special=True))[2]
        content = model.tokenize(text, add_special=False)
        room = self.limit - len(asked) - len(last)
        if room < 1:
            raise TextTooLong(f"the query has {len(asked):,} tokens and leaves no room for texts: shorten it")
        return _Tokens([asked + content[:room] + last], len(asked) + len(content) + len(last))


def normalized(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows of length 1; a row of zeros stays."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    lengths[lengths == 0] = 1
    return np.asarray(vectors / lengths, np.float32)


def _listed(texts: Iterable[str]) -> list[str]:
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        raise BadOption(f"texts must be several texts, such as a list: got {type(texts).__name__}")
    listed = list(texts)
    for i, text in enumerate(listed):
        if not isinstance(text, str):
            raise BadOption(f"texts[{i}] must be a text: got {type(text).__name__}")
        check_encodable(text)
    return listed


def _check_choice(name: str, value: object, known: Sequence[str]) -> None:
    if value not in known:
        raise BadOption(f"{name} must be one of {', '.join(known)}: got {value!r}")
