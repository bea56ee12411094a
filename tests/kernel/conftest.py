"""Kernels for the tests: one per module, with the extension loaded.

Models compute with one thread where a test does not need more: on a busy machine two threads that wait for each other
are far slower than one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kernel.session import FORGET, Kernel


@pytest.fixture(scope="module")
def new_kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Kernel]]:
    """`new_kernel(**env)`: a fresh kernel; it ends with the module, if the test did not end it."""
    kernels: list[Kernel] = []

    def start(**env: str) -> Kernel:
        kernels.append(Kernel(tmp_path_factory.mktemp("kernel"), **env))
        return kernels[-1]

    yield start
    for kernel in kernels:
        kernel.close()


@pytest.fixture(scope="module")
def kernel(new_kernel: Callable[..., Kernel]) -> Kernel:
    """The module's kernel, `%load_ext ipyllama` done and no model loaded. Every answer is computed, also where an
    earlier test has asked the same."""
    kernel = new_kernel()
    kernel.run("get_ipython().config.Llama.replay = False\n%load_ext ipyllama")
    return kernel


@pytest.fixture
def smol(kernel: Kernel, smollm2: Path) -> Kernel:
    """The module's kernel, SmolLM2 answering and no conversation yet."""
    return _use(kernel, smollm2)


@pytest.fixture
def bigram(kernel: Kernel, tiny: Callable[[str], Path]) -> Kernel:
    """The module's kernel, the tiny model answering whose text is known: a, b, ... z, space, a."""
    return _use(kernel, tiny("llama-bigram"))


@pytest.fixture
def use(kernel: Kernel, tiny: Callable[[str], Path]) -> Callable[[str], Kernel]:
    """`use(arch)`: the module's kernel, this tiny random model answering."""
    return lambda arch: _use(kernel, tiny(arch))


def _use(kernel: Kernel, path: Path) -> Kernel:
    kernel.run(f'%llama load "{path}" --threads 1\n{FORGET}')
    return kernel
