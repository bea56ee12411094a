"""Which models are loaded: a second load of the same shares what is there."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from ipyllama import _core
from ipyllama.loading import FileId, LoadOptions, choose, identify, load_weights, satisfies
from ipyllama.models import LocalModel, Progress
from ipyllama.prefix import PrefixMemory

if TYPE_CHECKING:
    from ipyllama.llm import LLM

Make = Callable[[LocalModel, _core.Model, LoadOptions, PrefixMemory], "LLM"]


class LoadedModels:
    """Every open model, so that a second load shares it. Weights are shared even where the options differ."""

    def __init__(self, make: Make) -> None:
        self._make = make
        self._lock = threading.RLock()
        self._llms: list[LLM] = []
        self._weights: dict[tuple[FileId, int, bool], _core.Model] = {}

    def get(self, found: LocalModel, options: LoadOptions, memory: PrefixMemory, progress: Progress | None) -> LLM:
        file = identify(found.path)
        with self._lock:
            for llm in self._llms:
                same = llm.memory.places == memory.places and satisfies(llm.options, options)
                if llm.file == file and not llm.closed and same:
                    return llm
            chosen = choose(found, options)
            native = self._open_weights(file, chosen, progress)
            try:
                llm = self._make(found, native, chosen, memory)
            except BaseException:
                self._close_unused(native)
                raise
            self._llms.append(llm)
            return llm

    def forget(self, llm: LLM, native: _core.Model) -> None:
        with self._lock:
            if llm in self._llms:
                self._llms.remove(llm)
                self._close_unused(native)

    def abandon(self) -> None:
        """After a fork, in the child: the contexts are the parent's. Weights can be read by both."""
        self._lock = threading.RLock()
        self._llms = []

    def all(self) -> list[LLM]:
        with self._lock:
            return list(self._llms)

    def standing(self, llm: LLM) -> LLM:
        """The model itself, or where it was closed and its file loaded again, the one that is open now."""
        if not llm.closed:
            return llm
        return next((other for other in reversed(self.all()) if other.file == llm.file and not other.closed), llm)

    def _open_weights(self, file: FileId, options: LoadOptions, progress: Progress | None) -> _core.Model:
        key = (file, options.n_gpu_layers, options.use_mmap)
        if key not in self._weights:
            self._weights[key] = load_weights(file[0], options, progress)
        return self._weights[key]

    def _close_unused(self, native: _core.Model) -> None:
        if not any(llm._model is native for llm in self._llms):
            self._weights = {key: model for key, model in self._weights.items() if model is not native}
            native.close()
