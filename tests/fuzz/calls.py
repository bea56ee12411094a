"""Calls: any public method of the extension, with arguments that fit, nearly fit, or are of the wrong kind.

A call answers or raises a named error; afterwards the model answers as it did.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from tiny import build
from tiny.lora import random_lora
from tiny.projector import build_projector

from ipyllama import _core
from ipyllama.errors import LlamaError

REFUSED = (LlamaError, TypeError, ValueError, OverflowError, MemoryError, AttributeError)
ARCHS = ("llama", "llama", "gemma3", "mamba", "lfm2", "jamba", "qwen2vl", "bert")
N_CALLS = 25
N_VOCAB = 356
REFERENCE = [1, 300, 301, 302]
GRAMMAR = 'root ::= "a" [0-9]{1,3} | root2\nroot2 ::= "b"'
NUMBERS = [
    0,
    1,
    2,
    3,
    7,
    63,
    64,
    127,
    128,
    255,
    256,
    355,
    356,
    -1,
    -2,
    2**30,
    2**31 - 1,
    2**31,
    -(2**31),
    2**63,
    10**30,
]
REALS = [0.0, 0.5, 1.0, -1.0, 2.0, 1e-40, 1e38, float("nan"), float("inf"), -float("inf")]
TEXTS = [
    "",
    "a",
    "hello world",
    "a\0b",
    "\ud800",
    "🙂" * 20,
    "x" * 5000,
    GRAMMAR,
    "root ::= root",
    "f16",
    "mean",
    "<__media__>",
]


def case(random: Random, folder: Path) -> str:
    """Some calls on objects that belong together, in any order; how many were refused."""
    arch = random.choice(ARCHS)
    bench = Bench(arch, random)
    refused = sum(bench.call() for _ in range(N_CALLS))
    bench.check()
    return f"{arch}, {'most' if refused > N_CALLS // 2 else 'few'} refused"


class Bench:
    """A context, and everything that can be made of it."""

    def __init__(self, arch: str, random: Random) -> None:
        self.arch, self.random = arch, random
        self.model = model(arch)
        options = _core.ContextOptions()
        options.n_ctx, options.n_batch, options.n_seq_max = 256, 128, random.choice((1, 2, 4))
        options.embeddings = arch == "bert" or random.random() < 0.3
        options.swa_full = random.random() < 0.5
        options.flash_attention = random.choice((-1, 0, 1))
        options.pooling = random.choice(("unspecified", "none", "mean")) if options.embeddings else "unspecified"
        self.context = _core.Context(self.model, options)
        self.things: list[object] = [self.model, self.context, self.context.memory, _core.Batch()]
        if arch != "bert":
            self.things += self.of_a_decoder()
        self.states: list[object] = [b"", bytearray(100), np.zeros(64, np.uint8), memoryview(b"abc")]

    def of_a_decoder(self) -> list[object]:
        sequence = _core.Sequence(self.context)
        sequence.decode(REFERENCE)
        makers: list[Callable[[], object]] = [
            lambda: sequence,
            lambda: _core.Sequence(self.context),
            lambda: _core.Sampler.chain([_core.Sampler.penalties(self.model, repeat=1.1), _core.Sampler.dist(3)]),
            lambda: _core.Sampler.grammar(self.model, GRAMMAR),
            sequence.save_on_device,
            lambda: _core.Adapter.load(self.model, str(files() / "lora.gguf")),
            lambda: projector(self.arch),
            lambda: projector(self.arch).tokenize("a <__media__> b", [np.zeros((32, 32, 3), np.uint8)])[1],
        ]
        made = []
        for make in makers:
            try:
                made.append(make())
            except LlamaError:
                continue
        return made

    def call(self) -> bool:
        """One call; whether it was refused."""
        thing = self.random.choice(self.things)
        names = [name for name in dir(type(thing)) if not name.startswith("_") and name not in ("load", "closed")]
        name = self.random.choice(names)
        if name == "close" and (thing is self.model or self.random.random() < 0.8):
            return False
        try:
            found = getattr(thing, name)
            if callable(found):
                found = found(*(self.value() for _ in range(self.random.choice((0, 1, 1, 2, 2, 3, 4)))))
        except REFUSED:
            return True
        finally:
            self.clear_abort()
        if isinstance(found, np.ndarray) and found.dtype == np.uint8:
            self.states.append(found)
        elif type(found).__module__ == _core.__name__:
            self.things.append(found)
        return False

    def value(self) -> Any:
        """An argument: of any kind, right or wrong."""
        random = self.random
        tokens = [random.randrange(N_VOCAB) for _ in range(random.choice((1, 3, 40, 128)))]
        return random.choice(
            (
                lambda: random.choice(NUMBERS),
                lambda: random.randrange(40),
                lambda: random.choice(REALS),
                lambda: random.choice(TEXTS),
                lambda: tokens,
                lambda: [*tokens, random.choice((-1, N_VOCAB, 2**31, None, "x"))],
                lambda: {0: tokens, random.choice(NUMBERS): tokens},
                lambda: [(random.choice(self.things), random.choice(REALS))],
                lambda: [tokens[:5], tokens[:2]],
                lambda: random.choice(self.things),
                lambda: random.choice(self.states),
                lambda: np.array(random.choice(REALS), np.float32),
                lambda: np.full(random.choice(((N_VOCAB,), (2, 64), (16, 64), (0,))), random.choice(REALS), np.float32),
                lambda: random.choice((None, True, False, _core.Outputs.ALL, _core.Outputs.NONE, object())),
            )
        )()

    def clear_abort(self) -> None:
        if not self.context.closed:
            self.context.clear_abort()

    def check(self) -> None:
        """Nothing that was done here shows in a new context."""
        if self.arch != "bert":
            assert np.array_equal(fresh_logits(self.arch), reference(self.arch)), "the model answers differently"


def fresh_logits(arch: str) -> Any:
    options = _core.ContextOptions()
    options.n_ctx = options.n_batch = 64
    with _core.Context(model(arch), options) as context, _core.Sequence(context) as sequence:
        sequence.decode(REFERENCE)
        return sequence.logits()


@cache
def reference(arch: str) -> Any:
    return fresh_logits(arch)


@cache
def files() -> Path:
    """Where the models of this process are; gone with it."""
    folder = tempfile.TemporaryDirectory(prefix="fuzz-calls-")
    _kept.append(folder)
    random_lora().write(Path(folder.name) / "lora.gguf")
    build_projector(Path(folder.name) / "mmproj.gguf", "gemma3")
    build_projector(Path(folder.name) / "mmproj-mrope.gguf", "qwen2vl")
    return Path(folder.name)


_kept: list[tempfile.TemporaryDirectory[str]] = []


@cache
def model(arch: str) -> _core.Model:
    path = files() / f"{arch}.gguf"
    build(arch, path)
    return _core.Model.load(str(path))


@cache
def projector(arch: str) -> _core.Multimodal:
    name = "mmproj-mrope.gguf" if arch == "qwen2vl" else "mmproj.gguf"
    return _core.Multimodal.load(model(arch), str(files() / name))
