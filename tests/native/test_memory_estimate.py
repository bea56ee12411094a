"""The estimate made from a file alone, against what llama.cpp allocates for the same context.

llama.cpp reports each buffer rounded to 0.01 MiB, and aligns tensors to 64 bytes. Within that the numbers are equal:
contexts are chosen so large that it is under 1 % of them.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from native.core import SANITIZED, make_context, run_apart

from ipyllama import _core
from ipyllama.models import fits, kv_bytes, read_header

MIB = 1 << 20
BUFFER = re.compile(r"(KV|RS|compute|output) buffer size = +([\d.]+) MiB")
ROUNDED = 0.006 * MIB  # per buffer


def allocated(path: Path, **options: object) -> dict[str, list[float]]:
    """Bytes of the buffers of a new context, by kind."""
    model = _core.Model.load(str(path))
    mark = _core.log_next()
    context = make_context(model, n_batch=256, **options)
    found: dict[str, list[float]] = {}
    for _, _, text in _core.log_since(mark):
        if match := BUFFER.search(text):
            found.setdefault(match[1], []).append(float(match[2]) * MIB)
    assert "compute" in found  # the ring buffer held it all
    context.close()
    return found


def check(path: Path, n_ctx: int, kv_type: str, n_sequences: int = 1) -> None:
    buffers = allocated(path, n_ctx=n_ctx, type_k=kv_type, type_v=kv_type, n_seq_max=n_sequences)
    real = buffers.get("KV", []) + buffers.get("RS", [])
    estimate = kv_bytes(read_header(path), n_ctx, kv_type, n_sequences)
    assert sum(real) == pytest.approx(estimate, abs=ROUNDED * len(real))
    assert ROUNDED * len(real) <= 0.01 * estimate or estimate == 0
    fit = fits(read_header(path), n_ctx, kv_type=kv_type)
    assert fit.overhead > sum(buffers["compute"] + buffers["output"])


@pytest.mark.parametrize("arch", ["llama", "llama-bigram", "gemma3", "mamba", "lfm2", "jamba", "bert"])
@pytest.mark.parametrize("kv_type", ["f16", "f32"])
def test_architectures(tiny, arch: str, kv_type: str) -> None:
    """Windowed, recurrent and hybrid ones, too; with many sequences, so that recurrent state counts."""
    check(tiny(arch), 20_000, kv_type, 1 if arch == "bert" else 128)


@pytest.mark.parametrize("kv_type", ["q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "bf16", "f32"])
def test_types_of_cells(tiny, kv_type: str) -> None:
    check(tiny("llama-bigram"), 100_000, kv_type)


RESIDENT = """
import sys
import psutil
from ipyllama import _core

model = _core.Model.load(sys.argv[1])
options = _core.ContextOptions()
options.n_ctx, options.n_batch, options.type_k, options.type_v = int(sys.argv[2]), 256, sys.argv[3], sys.argv[3]
before = psutil.Process().memory_info().rss
context = _core.Context(model, options)
print(psutil.Process().memory_info().rss - before)
"""


@pytest.mark.skipif(SANITIZED, reason="AddressSanitizer keeps freed memory")
@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_the_real_model(smollm2: Path, kv_type: str) -> None:
    """By resident memory, which is all that counts in the end: llama.cpp clears, and so touches, every cell.

    Between two contexts only KV differs, and bookkeeping of some 100 bytes a cell: 2 % for the smaller type.
    """
    small, large = (int(run_apart(RESIDENT, smollm2, n_ctx, kv_type)) for n_ctx in (1024, 8192))
    header = read_header(smollm2)
    estimate = kv_bytes(header, 8192, kv_type) - kv_bytes(header, 1024, kv_type)
    assert large - small == pytest.approx(estimate, rel=0.02)
