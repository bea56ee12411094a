"""What is closed is given back: resident memory over many cycles, in a process of its own.

The first cycles pay for what is made once: buffers of the allocator, thread pools, tables. After them 300 cycles may
take 5 MB together, 17 kB each; a leaked tiny model is 250 kB, a leaked context of 64 tokens some hundred.
"""

from __future__ import annotations

import pytest
from native.core import run_apart

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
    _core.Sampler(shared, _core.SamplerOptions()).sample(sequence)
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


@pytest.mark.parametrize("arch", ["llama", "jamba"])
@pytest.mark.parametrize("kind", ["model", "context"])
def test_cycles_leave_nothing(tiny, arch: str, kind: str) -> None:
    assert grown(tiny(arch), kind, "close") < 5


@pytest.mark.parametrize("kind", ["model", "context"])
def test_a_leak_would_be_seen(tiny, kind: str) -> None:
    assert grown(tiny("llama"), kind, "leak") > 15
