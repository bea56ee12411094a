"""Who may go first: any order of deletion, close twice, use after close; apart where it might crash."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import numpy as np
import pytest
from native.core import in_use_at_the_end, make_context, make_sampler, run_apart

from ipyllama import _core
from ipyllama.errors import ClosedError


def test_every_order_of_deletion(tiny) -> None:
    code = """
    import gc, itertools, sys
    from ipyllama import _core

    def make():
        model = _core.Model.load(sys.argv[1])
        options = _core.ContextOptions()
        options.n_ctx, options.n_batch, options.n_seq_max = 128, 64, 2
        context = _core.Context(model, options)
        sequence = _core.Sequence(context)
        sequence.decode([1, 300])
        sampler = _core.Sampler.chain([_core.Sampler.penalties(model, repeat=1.1), _core.Sampler.dist()])
        return {"model": model, "context": context, "sequence": sequence, "sampler": sampler,
                "fork": sequence.fork()}

    def use(alive):
        if "sequence" in alive:
            alive["sequence"].decode([301])
            if "sampler" in alive:
                alive["sampler"].sample(alive["sequence"])
        if "fork" in alive:
            assert alive["fork"].tokens[:2] == [1, 300]
            alive["fork"].decode([302])

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
    batch = _core.Batch()
    sequence.decode(list(range(1, 301)))
    batch.add(sequence, [1])
    device = sequence.save_on_device()
    """
    assert run_apart(code, tiny("llama")) == ""


def test_a_forked_process_is_told_to_make_its_own(tiny) -> None:
    """llama.cpp's threads do not live there: a step would wait for them for ever."""
    code = """
    import os, sys, warnings
    warnings.simplefilter("ignore")
    from ipyllama import _core
    from ipyllama.errors import ClosedError
    model = _core.Model.load(sys.argv[1])
    options = _core.ContextOptions()
    options.n_ctx = options.n_batch = 64
    options.n_threads = options.n_threads_batch = 2
    context = _core.Context(model, options)
    sequence = _core.Sequence(context)
    sequence.decode([1, 2, 3])
    child = os.fork()
    if child == 0:
        try:
            sequence.decode([5])
        except ClosedError as error:
            print(error, flush=True)
        options.n_threads = options.n_threads_batch = 1  # the forking thread's OpenMP team is gone as well
        fresh = _core.Sequence(_core.Context(model, options))
        fresh.decode([1, 2])
        os._exit(len(fresh))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    sequence.decode([5])
    """
    assert run_apart(code, tiny("llama")).splitlines() == [
        "this context is closed to a forked process: make one of its own there",
        "2",
    ]


def test_every_order_of_closing(tiny) -> None:
    """What is still open works on, as far as it needs nothing that is closed."""
    for order in permutations(("model", "context", "sampler", "fork")):
        model = _core.Model.load(str(tiny("llama")))
        context = make_context(model, n_seq_max=2)
        sequence = _core.Sequence(context)
        opened = {"model": model, "context": context, "sampler": make_sampler(model), "fork": sequence.fork()}
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


@in_use_at_the_end
def test_the_interpreter_may_end_while_a_thread_comes_and_goes(tiny) -> None:
    """Between the steps of a thread Python wants to end it. Several rounds, because it is a matter of moments."""
    code = """
    import sys, threading
    from ipyllama import _core
    options = _core.ContextOptions()
    options.n_ctx = options.n_batch = 64
    sequence = _core.Sequence(_core.Context(_core.Model.load(sys.argv[1]), options))

    def work():
        while True:
            sequence.clear()
            sequence.decode([5] * 64)

    threading.Thread(target=work, daemon=True).start()
    print("end")
    """
    for _ in range(4):
        assert run_apart(code, tiny("llama")).split() == ["end"]


def test_with_closes_and_closing_twice_is_safe(tiny) -> None:
    with (
        _core.Model.load(str(tiny("llama"))) as model,
        make_context(model) as context,
        make_sampler(model) as sampler,
        _core.Sequence(context) as sequence,
    ):
        opened = (model, context, sampler, sequence)
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
    closed_with, closed_itself = _core.Sequence(context), _core.Sequence(make_context(model))
    other = _core.Sequence(make_context(model))
    other.decode([1])
    state = other.save()
    device = other.save_on_device()
    sequence_arguments = {
        **{"decode": ([1],), "trim": (0,), "cp": (other,), "add": (0, 1, 1), "div": (0, 1, 2)},
        **{"save_into": (bytearray(9999),), "restore": (state, [1]), "append": (state, [1]), "rewind": (state, [1])},
        **{"restore_on_device": (device,), "state_tokens": (state,)},
    }
    arguments: dict[object, dict[str, tuple[object, ...]]] = {
        model: {
            "tokenize": ("a",),
            "detokenize": ([1],),
            "piece": (1,),
            "is_eog": (1,),
            "is_control": (1,),
            "cls_label": (0,),
        },
        context: {
            "embed": ([[1]],),
            "decode": (_core.Batch(),),
            "set_threads": (1, 1),
            "save_into": (bytearray(9),),
            "restore": (state, {}),
            "set_adapters": ([],),
            "set_control_vector": (np.zeros((2, 64), np.float32), 1, 1),
            "state_tokens": (state,),
        },
        context.memory: {},
        sampler: {"sample": (other,), "accept": ([1],), "apply": (np.zeros(356, np.float32),)},
        closed_with: sequence_arguments,
        closed_itself: sequence_arguments,
    }
    for thing in (model, context, sampler, closed_itself):
        thing.close()
    for thing, needed in arguments.items():
        # What Context.memory returns asks the context when it is used.
        names = public(thing) - {"close", "closed", "memory"} - ({"id", "context"} if thing is closed_with else set())
        assert len(names) > 1
        for name in names:
            with pytest.raises(ClosedError, match="is closed"):
                use(thing, name, needed.get(name, ()))


def use(thing: object, name: str, arguments: tuple[object, ...]) -> None:
    value = getattr(thing, name)
    if isinstance(value, Callable):
        value(*arguments)
