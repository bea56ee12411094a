"""What grammar tests share: text in, and what may follow."""

from __future__ import annotations

import numpy as np

from ipyllama import _core


def allowed(sampler: _core.Sampler, model: _core.Model) -> str:
    """The printable characters that may come next; $ stands for the end."""
    tokens = sampler.apply(np.zeros(model.n_vocab, np.float32)).tokens.tolist()
    return "".join(sorted({"$" if model.is_eog(token) else model.piece(token).decode("latin-1") for token in tokens}))


def accept(sampler: _core.Sampler, model: _core.Model, text: str) -> None:
    sampler.accept(model.tokenize(text, add_special=False))
