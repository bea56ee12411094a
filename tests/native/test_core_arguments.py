"""Hostile arguments to everything public: an exception, or an answer; the process goes on and still works."""

from __future__ import annotations

from textwrap import dedent

import pytest
from native.core import run_apart

HOSTILE = """
import itertools, sys
import numpy as np
from ipyllama import _core
from ipyllama.errors import LlamaError

REFUSED = (LlamaError, TypeError, ValueError, OverflowError, MemoryError, AttributeError)
BIG = "ab " * 3_500_000  # 10 MB
numbers = [0, 1, -1, True, 255, 356, 2**31 - 1, 2**31, -(2**31), 2**32, 2**63, 2**64, -(2**63), 10**30,
           1.5, float("nan"), float("inf"), np.int64(3), np.float32(2)]
texts = ["", "a", "a\\0b", "\\0", "\\ud800", "x\\udfff", "\\U0010ffff", "<s>" * 50, "\\n" * 1000, "é" * 1000, b"bytes"]
lists = [[], [1], [-1], [2**31], [None], ["a"], [1.5], [[1]], (1, 2), range(3), {1: 2}, {1, 2}, iter([1]),
         np.array([1, 2]), np.array([1.5]), np.zeros((2, 2), int), [1] * 257, [1] * 100_000, [10**30]]
values = [None, object(), int, numbers, lambda: 1, *numbers, *texts, *lists]

def make():
    model = _core.Model.load(sys.argv[1])
    options = _core.ContextOptions()
    options.n_ctx, options.n_batch = 256, 256
    context = _core.Context(model, options)
    sequence = _core.Sequence(context)
    sequence.decode([1, 300, 301])
    sampler = _core.Sampler.chain([_core.Sampler.penalties(model, repeat=1.1), _core.Sampler.dist()])
    return model, context, sequence, sampler, _core.LoadProgress()

def attempt(call, *arguments, **named):
    try:
        call(*arguments, **named)
    except REFUSED:
        return 1
    return 0
"""

METHODS = """
model, context, sequence, sampler, progress = make()
things = [model, context, sequence, sampler, progress, context.memory, _core.Batch(), sequence.save_on_device()]
tried = refused = 0
for thing in things:
    for name in dir(type(thing)):
        if name.startswith("_") and name not in ("__init__", "__enter__", "__exit__", "__len__", "__new__"):
            continue
        if name in ("close", "load", "__exit__", "__init__"):
            continue
        method = getattr(thing, name)
        if not callable(method):
            refused += attempt(setattr, thing, name, 1)  # facts are read-only
            tried += 1
            continue
        arguments = [(value,) for value in [*values, *things]]
        arguments += [(value, other) for value in [*texts, [1], 1] for other in [*numbers, None, "x", []]]
        for given in arguments:
            tried += 1
            refused += attempt(method, *given)
            context.clear_abort()
sequence.clear()
sequence.decode([1, 300, 301])
assert sampler.sample(sequence) >= 0
print(tried, refused)
"""

CONSTRUCTORS = """
model, context, sequence, sampler, progress = make()
tried = refused = 0
for cls in (_core.Model, _core.Context, _core.Sequence, _core.Sampler, _core.Memory, _core.DeviceState, _core.Batch):
    pairs = itertools.product((model, context, None, 1), values)
    for given in [(), *((value,) for value in values), *pairs]:
        tried += 1
        refused += attempt(cls, *given)
print(tried, refused)
"""

OPTIONS = """
model, *_ = make()
wild = [*numbers, None, "", "f16", "q8_0", "a\\0b", "\\ud800", "F16", [], -2]
tried = refused = 0
for cls, use in ((_core.ContextOptions, _core.Context),):
    for name in dir(cls):
        if name.startswith("_"):
            continue
        for value in wild:
            if name in ("n_ctx", "n_batch", "n_threads") and isinstance(value, int) and 10_000 < value <= 2**24:
                continue  # allowed, and slow
            options = cls()
            if cls is _core.ContextOptions:
                options.n_ctx = options.n_batch = 256
            tried += 1
            if attempt(setattr, options, name, value):
                refused += 1
                continue
            refused += attempt(use, model, options)
for name in ("n_gpu_layers", "use_mmap", "vocab_only", "check_tensors", "progress", "no_such_option"):
    for value in wild:
        tried += 1
        refused += attempt(_core.Model.load, sys.argv[1], **{name: value})
for value in values:
    tried += 2
    refused += attempt(_core.Model.load, value)
    refused += attempt(_core.log_since, value)
print(tried, refused)
"""

LARGE = """
model, context, sequence, sampler, progress = make()
part = BIG[:3_000_000]
assert len(model.tokenize(part, add_special=False)) == len(part)
assert attempt(sequence.decode, [1] * 5_000_000) == 1
assert attempt(model.detokenize, [300] * 1_000_000) == 0
assert attempt(_core.Model.load, BIG) == 1
assert attempt(model.chat_template, BIG) == 0
assert attempt(sampler.accept, [300] * 1_000_000) == 0
print(1, 1)
"""


@pytest.mark.parametrize(
    "part", [METHODS, CONSTRUCTORS, OPTIONS, LARGE], ids=["methods", "constructors", "options", "large"]
)
def test_nothing_crashes(tiny, part: str) -> None:
    tried, refused = map(int, run_apart(HOSTILE + part, tiny("llama")).split())
    assert tried >= refused > tried // 2


def test_the_names_of_errors_are_ours(tiny) -> None:
    """What is out of range is refused in our words; what is of the wrong type is a TypeError."""
    code = """
    model, context, sequence, sampler, progress = make()
    from ipyllama.errors import BadArgument
    for call, argument in ((sequence.decode, [356]), (sequence.trim, 4), (model.piece, -1), (sampler.accept, [-1])):
        try:
            call(argument)
        except BadArgument as error:
            assert "\\n" not in str(error)
        else:
            raise AssertionError(call)
    wrong = ((sequence.decode, None), (model.tokenize, 5), (model.tokenize, "\\ud800"), (model.piece, "a"))
    for call, argument in wrong:
        try:
            call(argument)
        except TypeError:
            pass
        else:
            raise AssertionError(call)
    """
    assert run_apart(HOSTILE + dedent(code), tiny("llama")) == ""
