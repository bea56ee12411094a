"""What the native tests share: the oracle program, built once, and models opened for one test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from native.jobs import Gate, options, prompt

import ipyllama
from ipyllama.llm import LLM

Load = Callable[..., LLM]


@pytest.fixture(scope="session")
def oracle(tmp_path_factory: pytest.TempPathFactory):
    """The oracle, compiled against the llama.cpp that ipyllama is linked to."""
    from native.ask import Oracle
    from native.build_oracle import build

    return Oracle(build("oracle", tmp_path_factory.mktemp("oracle")))


@pytest.fixture(scope="session")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny llama and adapters for it, see `native.adapters.write_files`."""
    from native.adapters import write_files

    folder = tmp_path_factory.mktemp("adapters")
    write_files(folder)
    return folder


@pytest.fixture(scope="session")
def projectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tiny models and projectors for them, see `native.media.write_files`."""
    from native.media import write_files

    folder = tmp_path_factory.mktemp("projectors")
    write_files(folder)
    return folder


@pytest.fixture
def load(tiny, smollm2: Path) -> Iterator[Load]:
    """`load(name, **options)`: "smollm2", a tiny architecture or a path, on one thread; closed after the test.

    Every answer is computed: what is said twice is to be the same because it was worked out twice.
    """
    opened: list[LLM] = []

    def open_model(name: str | Path, **options) -> LLM:
        path = name if isinstance(name, Path) else smollm2 if name == "smollm2" else tiny(name)
        opened.append(ipyllama.load(path, **{"n_ctx": 1024, "n_threads": 1, **options}))
        opened[-1].memory.replies.enabled = False
        return opened[-1]

    yield open_model
    for llm in opened:
        llm.close()


@pytest.fixture
def llm(load: Load) -> LLM:
    """Random text, in a context that takes seconds to fill."""
    return load("llama", n_ctx=16384)


@pytest.fixture
def bigram(load: Load) -> LLM:
    """Greedy text that is known: the alphabet again and again."""
    return load("llama-bigram")


@pytest.fixture
def gate(llm: LLM) -> Iterator[Gate]:
    """The worker of `llm` is held by a job."""
    gate = Gate()
    llm.generate(prompt(llm, "first"), options(max_tokens=1), wrap=gate)
    assert gate.reached.wait(60)
    yield gate
    gate.open.set()
