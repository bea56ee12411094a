"""What sequences of a loaded model can do, tried out once for each model and way of loading it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from ipyllama import _core
from ipyllama.engine.engine import Engine
from ipyllama.engine.task import Task
from ipyllama.errors import DecodeError


@dataclass(frozen=True, slots=True)
class Capability:
    """`level`: "full", sequences can be cut anywhere; "extend", they only go back to copies; "none", nothing is kept.
    `can_shift`: positions can be moved. `reason`: why not everything; "" if everything."""

    level: str
    can_shift: bool
    reason: str = ""

    def __str__(self) -> str:
        from ipyllama.display import capability_line

        return capability_line(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        from ipyllama.display import capability_bundle

        return capability_bundle(self)


ENCODER: Final = Capability("none", can_shift=False, reason="it encodes text and keeps no state between calls")
_known: dict[object, Capability] = {}


class CapabilityProbe:
    """Asks llama.cpp when it is first wanted, on the worker thread; the answer serves every model of the same key."""

    def __init__(self, engine: Engine, model: _core.Model, key: object, options: _core.ContextOptions) -> None:
        """`key` is all that changes the answer; `options` are those of the engine's context."""
        self._engine, self._model, self._options = engine, model, options
        self._key = key

    @property
    def known(self) -> bool:
        return self._engine.context is None or self._key in _known

    def __call__(self) -> Capability:
        """Waits for its turn. Raises `ClosedError`."""
        if self._engine.context is None:
            return ENCODER
        if self._key not in _known:
            _known[self._key] = self._engine.call(self._probe).result()
        return _known[self._key]

    def _probe(self, task: Task[Capability]) -> Capability:
        context = self._engine.context
        assert context is not None
        try:
            found = context.memory.capability()
        except DecodeError:  # the context is full: a small one is as good
            self._options.n_ctx = self._options.n_batch = 256
            with _core.Context(self._model, self._options) as small:
                found = small.memory.capability()
        return Capability(found.level, found.can_shift, found.reason)
