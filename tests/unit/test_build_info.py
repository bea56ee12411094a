"""`build_info()`: what the extension says about itself agrees with the files that it was built from."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

from ipyllama import _core
from ipyllama._build import build_info, instruction_sets

ROOT = Path(__file__).resolve().parents[2]


def test_one_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert _core.__version__ == build_info().version == version


def test_tells_pin_options_and_devices() -> None:
    info = build_info()
    pin = json.loads((ROOT / "llama.cpp" / "pin.json").read_text())
    if info.llama_cpp_carrier == pin["carrier"]:  # else it was built from a directory that somebody named
        assert info.llama_cpp_commit == pin["commit"]
    assert "GGML_RPC=" in info.options
    assert "GGML_NATIVE=" in info.options
    assert any(name == "CPU" for name, _ in info.devices)
    assert info.compiler
    assert info.build_type


def test_reads_well() -> None:
    lines = repr(build_info()).splitlines()
    assert [line.split()[0] for line in lines] == [
        "ipyllama",
        "llama.cpp",
        "options",
        "compiler",
        "instructions",
        "devices",
    ]


def test_instruction_sets_are_the_cpus_and_only_those_in_use() -> None:
    line = "CUDA : ARCHS = 800 | USE_GRAPHS = 1 | CPU : SSE3 = 1 | AVX2 = 1 | AVX512 = 0 | OPENMP = 1 | RPC : X = 1 | "
    assert instruction_sets(line) == ("SSE3", "AVX2")
    assert instruction_sets("CPU : NEON = 1 | SVE_CNT = 16 | REPACK = 1 | ") == ("NEON",)
    assert instruction_sets("") == ()
