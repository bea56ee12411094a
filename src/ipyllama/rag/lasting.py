"""A model that an index works with, whatever becomes of it in the meantime."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ipyllama.llm import LLM


class Lasting:
    """A model by name is loaded when it is first needed, and again after it was unloaded. Of a loaded one that was
    closed, the one that has been loaded from its file since is used."""

    def __init__(self, model: str | LLM) -> None:
        self._name = model if isinstance(model, str) else None
        self._llm = None if isinstance(model, str) else model

    def __call__(self) -> LLM:
        """Raises like `load`."""
        if self._llm is not None:
            self._llm = self._llm.standing()
        if self._name is not None and (self._llm is None or self._llm.closed):
            from ipyllama.llm import load

            self._llm = load(self._name)
        assert self._llm is not None
        return self._llm
