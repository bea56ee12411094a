"""What is closed is given back: resident memory over many cycles, in a process of its own.

The first cycles pay for what is made once: buffers of the allocator, thread pools, tables. After them 300 cycles may
take 5 MB together, 17 kB each; a leaked tiny model is 250 kB, a leaked context of 64 tokens some hundred.
"""

from __future__ import annotations

import pytest
from native.core import DEBUG, SANITIZED, run_apart

CYCLES = """
import gc, sys
import psutil
from ipyllama import _core

path, kind, leak = sys.argv[1:]
process, kept = psutil.Process(), []
options = _core.ContextOptions()
options.n_ctx, options.n_batch = 256, 64
shared = _core.Model.load(path)

def model():
    found = _core.Model.load(path)
    assert found.tokenize("Hello")
    return [found]

def context():
    made = _core.Context(shared, options)
    sequence = _core.Sequence(made)
    sequence.decode([1, 5, 100])
    _core.Sampler.greedy().sample(sequence)
    return [made, sequence]

cycle = {"model": model, "context": context}[kind]
for number in range(400):
    if number == 100:
        gc.collect()
        before = process.memory_info().rss
    objects = cycle()
    if leak == "leak":
        kept.append(objects)
    elif number % 2:  # the others are only forgotten
        objects[0].close()
print((process.memory_info().rss - before) / 1e6)
"""


def grown(path: object, kind: str, leak: str) -> float:
    """Megabytes that 300 cycles added."""
    return float(run_apart(CYCLES, path, kind, leak))


sizes_count = pytest.mark.skipif(SANITIZED, reason="AddressSanitizer keeps freed memory")
nanobind_counts = pytest.mark.skipif(not DEBUG, reason="nanobind reports leaks in debug builds: make dev, make asan")


@sizes_count
@pytest.mark.parametrize("arch", ["llama", "jamba"])
@pytest.mark.parametrize("kind", ["model", "context"])
def test_cycles_leave_nothing(tiny, arch: str, kind: str) -> None:
    assert grown(tiny(arch), kind, "close") < 5


@sizes_count
@pytest.mark.parametrize("kind", ["model", "context"])
def test_a_leak_would_be_seen(tiny, kind: str) -> None:
    assert grown(tiny("llama"), kind, "leak") > 15


FREED = """
import sys
import psutil
from ipyllama import _core

process = psutil.Process()
rss = lambda: process.memory_info().rss / 1e6
model = _core.Model.load(sys.argv[1])
options = _core.ContextOptions()
options.n_ctx, options.n_batch, options.type_k, options.type_v = 200_000, 64, "f32", "f32"
_core.Context(model, options).close()  # what is made once
before = rss()
context = _core.Context(model, options)
sequence = _core.Sequence(context)
sequence.decode([1, 5, 100])
held = rss()
context.close()
print(held - before, rss() - before)
"""


@sizes_count
def test_closing_a_context_frees_its_memory_at_once(tiny) -> None:
    """Though the context and a sequence of it are still in variables."""
    held, left = map(float, run_apart(FREED, tiny("llama")).split())
    assert held > 80
    assert left < 5


USE_ALL = """
import ctypes, sys
import ipyllama
from ipyllama import _core

llm = ipyllama.load(sys.argv[1], n_ctx=512)
reply = llm.complete("Hello", max_tokens=5)
options = _core.ContextOptions()
options.n_ctx, options.n_batch = 256, 64
model = _core.Model.load(sys.argv[1])
context = _core.Context(model, options)
sequence = _core.Sequence(context)
sequence.decode([1, 5, 100])
logits = sequence.logits()
sampler = _core.Sampler.greedy()
sampler.sample(sequence)
if sys.argv[2] == "leak":
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(sampler))
del model, context, sequence, sampler  # what a module still holds at exit is no leak, but nanobind counts it
"""


@nanobind_counts
def test_nanobind_reports_no_leak(tiny) -> None:
    """`run_apart` fails over a word on stderr, where nanobind reports at exit: every test with it looks for leaks."""
    run_apart(USE_ALL, tiny("llama"), "")


@nanobind_counts
def test_nanobind_would_report_a_leak(tiny) -> None:
    with pytest.raises(AssertionError, match=r'leaked instance .* of type "ipyllama\._core\.Sampler"'):
        run_apart(USE_ALL, tiny("llama"), "leak")
