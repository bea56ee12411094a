"""Models for all tests: tiny random ones, built once per session, and the real small one, downloaded once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no failure.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ["IPYLLAMA_PREFIX_DIR"] = "off"  # what one test has computed is not the next one's, nor this machine's

TinyModel = Callable[[str], Path]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """`tiny(arch)`: the path of a tiny random model, arch one of `tiny.ARCHS`."""
    from tiny import build

    folder = tmp_path_factory.mktemp("tiny")

    def path(arch: str) -> Path:
        file = folder / f"tiny-{arch}.gguf"
        if not file.exists():
            build(arch, file)
        return file

    return path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home folder, also the current folder: no model is on this machine and no cache is shared."""
    from ipyllama.models import places

    for name in places.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.chdir(folder)
    places.forget()
    return folder


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct in the user cache, fetched at the first use on this machine."""
    from ipyllama.models import resolve

    return resolve("smollm2").path
