"""Who may go first: any order of deletion, close twice, use after close; apart where it might crash."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import numpy as np
import pytest
from native.core import make_context, make_sampler, run_apart

from ipyllama import _core
from ipyllama.errors import ClosedError


def test_every_order_of_deletion(tiny) -> None:
    code = """
    import gc, itertools, sys
    from ipyllama import _core

    def make():
        model = _core.Model.load(sys.argv[1])
        options = _core.ContextOptions()
        options.n_ctx, options.n_batch = 128, 64
        context = _core.Context(model, options)
        sequence = _core.Sequence(context)
        sequence.decode([1, 300])
        sampler = _core.Sampler.chain([_core.Sampler.penalties(model, repeat=1.1), _core.Sampler.dist()])
        return {"model": model, "context": context, "sequence": sequence, "sampler": sampler,
                "snapshot": sequence.snapshot()}

    def use(alive):
        if "sequence" in alive:
            alive["sequence"].decode([301])
            if "sampler" in alive:
                alive["sampler"].sample(alive["sequence"])
            if "snapshot" in alive:
                alive["sequence"].restore(alive["snapshot"])
        if "snapshot" in alive:
            assert alive["snapshot"].tokens == [1, 300]

    orders = 0
    for order in itertools.permutations(make()):
        alive = make()
        for name in order:
            del alive[name]
            use(alive)
        orders += 1
    gc.collect()
    print(orders)
    """
    assert run_apart(code, tiny("llama")).split() == ["120"]


def test_the_interpreter_may_end_with_everything_open(tiny) -> None:
    code = """
    import sys, threading
    from ipyllama import _core
    model = _core.Model.load(sys.argv[1])
    options = _core.ContextOptions()
    options.n_ctx = options.n_batch = 2048
    sequence = _core.Sequence(_core.Context(model, options))
    sampler = _core.Sampler.chain([_core.Sampler.penalties(model, repeat=1.1), _core.Sampler.dist()])
    snapshot = sequence.snapshot()
    sequence.decode(list(range(1, 301)))
    """
    assert run_apart(code, tiny("llama")) == ""


def test_every_order_of_closing(tiny) -> None:
    """What is still open works on, as far as it needs nothing that is closed."""
    for order in permutations(("model", "context", "sampler")):
        model = _core.Model.load(str(tiny("llama")))
        context = make_context(model)
        opened = {"model": model, "context": context, "sampler": make_sampler(model)}
        sequence = _core.Sequence(context)
        for name in order:
            opened.pop(name).close()
            if "context" not in opened:
                with pytest.raises(ClosedError, match="this context is closed"):
                    sequence.decode([300])
                continue
            sequence.decode([300])
            if "sampler" in opened:
                opened["sampler"].sample(sequence)
            if "model" not in opened:
                with pytest.raises(ClosedError, match="this model is closed"):
                    _core.Context(model, _core.ContextOptions())


def test_with_closes_and_closing_twice_is_safe(tiny) -> None:
    with _core.Model.load(str(tiny("llama"))) as model, make_context(model) as context, make_sampler(model) as sampler:
        opened = (model, context, sampler)
        assert not any(thing.closed for thing in opened)
    for thing in opened:
        assert thing.closed
        thing.close()
        with pytest.raises(ClosedError):
            thing.__enter__()


def public(thing: object) -> set[str]:
    """Every public method and property, `len()` among them; not what makes new objects."""
    makers = {name for name, value in vars(type(thing)).items() if type(value).__name__ == "nb_func"}
    names = {name for name in dir(type(thing)) if not name.startswith("_")} | {"__len__"} & set(dir(type(thing)))
    return names - makers


def test_everything_refuses_after_close(tiny) -> None:
    """Every public name is listed here, so that a new one is not forgotten."""
    model = _core.Model.load(str(tiny("llama")))
    context, sampler = make_context(model), make_sampler(model)
    sequence, other = _core.Sequence(context), _core.Sequence(make_context(model))
    other.decode([1])
    snapshot = sequence.snapshot()
    arguments: dict[object, dict[str, tuple[object, ...]]] = {
        model: {"tokenize": ("a",), "detokenize": ([1],), "piece": (1,), "is_eog": (1,), "is_control": (1,)},
        context: {},
        sampler: {"sample": (other,), "accept": ([1],), "apply": (np.zeros(356, np.float32),)},
        sequence: {"decode": ([1],), "trim": (0,), "restore": (snapshot,)},
    }
    for thing in (model, context, sampler):
        thing.close()
    for thing, needed in arguments.items():
        names = public(thing) - {"close", "closed"}
        assert len(names) > 1
        for name in names:
            with pytest.raises(ClosedError, match="is closed"):
                use(thing, name, needed.get(name, ()))
    assert snapshot.tokens == []  # it holds a copy of its own


def use(thing: object, name: str, arguments: tuple[object, ...]) -> None:
    value = getattr(thing, name)
    if isinstance(value, Callable):
        value(*arguments)
