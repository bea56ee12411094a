"""Texts to vectors, by a GGUF model or by any callable; what a model has computed once is kept with joblib."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ipyllama.errors import BadOption, StoreError, TooLongWarning
from ipyllama.rag.lasting import Lasting
from ipyllama.rag.types import digest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ipyllama.llm import LLM

BYTES_LIMIT: Final = 256 << 20
"""Bytes of vectors that joblib keeps beside the indexes."""
MOST: Final = 128
"""Texts in a batch."""
_CHARS_PER_TOKEN: Final = 4
"""How tokens are counted where only a callable embeds: of English text about right."""


class Embedding:
    """Vectors for texts. A model is loaded when it is first needed."""

    def __init__(self, embed: Any, memo: Memo | None = None) -> None:
        """`embed` is the name or path of a GGUF model, a loaded one, or what makes an array with a row for each text.
        `memo` keeps what a model computes; a callable keeps for itself what it wants to."""
        if not isinstance(embed, str) and not callable(embed) and not hasattr(embed, "embed"):
            raise BadOption(f"embed must be a model's name, a loaded model or a callable: got {embed!r:.80}")
        self._embed, self._memo = embed, memo
        self._lasting = None if self.is_callable else Lasting(embed)
        self.dimensions: int | None = None
        """how long the vectors have to be, where that is known"""

    @property
    def is_callable(self) -> bool:
        return not isinstance(self._embed, str) and not hasattr(self._embed, "embed")

    @property
    def name(self) -> str:
        """What can be said about it without loading it: a model's name, or that of the callable."""
        if isinstance(self._embed, str):
            return self._embed
        default = type(self._embed).__qualname__
        return str(getattr(self._embed, "name" if not self.is_callable else "__qualname__", default))

    @property
    def model(self) -> LLM | None:
        """The model; None where a callable embeds."""
        return self._lasting() if self._lasting is not None else None

    @cached_property
    def weights(self) -> str:
        """Tells one model's vectors from another's; "" of a callable, of which nothing is known."""
        return model.weights if (model := self.model) is not None else ""

    @cached_property
    def limit(self) -> int | None:
        """Tokens that are embedded at once; longer texts in pieces."""
        return model.text_limit if (model := self.model) is not None else None

    def count(self, text: str) -> int:
        """Tokens in a text."""
        if (model := self.model) is None:
            return -(-len(text) // _CHARS_PER_TOKEN)
        return len(model.tokenize(text, add_special=False))

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """A row for each text. Raises `BadOption` where a callable gives something else."""
        if (model := self.model) is None:
            return _checked(self._embed(list(texts)), len(texts), self.dimensions)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TooLongWarning)  # headings may be long: then the mean of pieces
            return model.embed(texts, progress=_silent)

    def kept(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """The same, from what was kept where these texts were embedded together before."""
        if self._memo is None or self.is_callable:
            return self(texts)
        return self._memo(self.weights, texts, self)

    def reduce(self) -> None:
        """Keep no more than there is room for."""
        if self._memo is not None and not self.is_callable:
            self._memo.reduce()


class Memo:
    """Vectors of batches of texts, kept by `joblib.Memory` in a folder. Nothing in it is ever unpickled, and no text
    is in it. Where nothing can be written, everything is computed."""

    def __init__(self, location: Path) -> None:
        self.location = location

    def __call__(
        self, weights: str, texts: Sequence[str], compute: Callable[[Sequence[str]], NDArray[np.float32]]
    ) -> NDArray[np.float32]:
        if self._memoised is None:
            return compute(texts)
        key = digest([weights, *texts])
        vectors = self._memoised(key, lambda: compute(texts))
        if vectors.shape[0] == len(texts) and vectors.ndim == 2:
            return np.asarray(vectors, np.float32)
        return compute(texts)

    def reduce(self) -> None:
        """Forget what was not used for longest, down to `BYTES_LIMIT`."""
        if self._memoised is not None:
            self._memory.reduce_size(bytes_limit=BYTES_LIMIT)

    @cached_property
    def _memory(self) -> Any:
        import joblib

        from ipyllama.prefix.replies import results

        return joblib.Memory(self.location, results.NAME, verbose=0, backend_options={"warn": _warn})

    @cached_property
    def _memoised(self) -> Any:
        memoised = self._memory.cache(embedded, ignore=["compute"])
        try:
            memoised.check_call_in_cache("", None)  # here joblib makes its folder
        except StoreError as error:
            _warn(str(error))
            return None
        return memoised


def embedded(key: str, compute: Callable[[], NDArray[np.float32]]) -> NDArray[np.float32]:
    """What joblib memoises: the vectors of the texts that the key is a digest of."""
    return compute()


def ends_batch(text: str, n: int) -> bool:
    """Whether a batch of n texts ends after this one: on average after 32. It depends on the text alone, so that one
    text more or less changes one batch, and the others are found again."""
    return n >= MOST or hashlib.sha256(text.encode()).digest()[0] < 8


def _checked(given: Any, n: int, dimensions: int | None) -> NDArray[np.float32]:
    try:
        vectors = np.asarray(given)
        with np.errstate(over="ignore"):  # what is too large is not finite, and refused as such
            vectors = vectors if np.iscomplexobj(vectors) else vectors.astype(np.float32)
    except (TypeError, ValueError):  # texts, or rows of several lengths
        vectors = np.empty(0, complex)
    if np.iscomplexobj(vectors):
        raise BadOption(f"embed must give an array of numbers with a row for each of {n} texts: got {given!r:.80}")
    if vectors.ndim != 2 or len(vectors) != n or not vectors.shape[1]:
        raise BadOption(f"embed must give an array with a row for each of {n} texts: got shape {vectors.shape}")
    if not np.isfinite(vectors).all():
        raise BadOption("embed gave numbers that are not finite")
    if dimensions is not None and vectors.shape[1] != dimensions:
        raise BadOption(
            f"embed gave rows of {vectors.shape[1]:,} numbers, and the index has rows of {dimensions:,}: give what it "
            "was made with, or drop() it and create it anew"
        )
    return vectors


def _silent(done: int, total: int | None, label: str) -> None:
    """The index shows its own progress."""


def _warn(problem: str) -> None:
    warnings.warn(f"vectors are not kept: {problem}", stacklevel=2)
