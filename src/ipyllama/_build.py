"""What this build of ipyllama is made of."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ipyllama import _core

# Features that ggml lists next to the instruction sets and that are none.
_NOT_INSTRUCTIONS = {"ACCELERATE", "KLEIDIAI", "LLAMAFILE", "OPENMP", "REPACK"}


@dataclass(frozen=True)
class BuildInfo:
    """What the extension was built from, how, and what it can use on this machine."""

    version: str
    """Version of ipyllama."""
    llama_cpp_commit: str
    """Upstream commit of llama.cpp, or "unknown" for a source directory that is no checkout."""
    llama_cpp_carrier: str
    """Where the source came from: the package that carries it, or the directory that was named."""
    options: str
    """CMake options of llama.cpp that matter or were chosen, as NAME=VALUE words."""
    compiler: str
    """Compiler and version of the extension."""
    build_type: str
    """CMake's build type of the extension."""
    instruction_sets: tuple[str, ...]
    """Instruction sets of the CPU that the compute kernels use, such as AVX2."""
    devices: tuple[tuple[str, str], ...]
    """(name, description) of each compute device."""

    def __str__(self) -> str:
        rows = {
            "ipyllama": self.version,
            "llama.cpp": f"{self.llama_cpp_commit[:12]} (from {self.llama_cpp_carrier})",
            "options": self.options,
            "compiler": f"{self.compiler}, {self.build_type}",
            "instructions": " ".join(self.instruction_sets) or "none beyond the base",
            "devices": ", ".join(f"{name} ({description})" for name, description in self.devices) or "none",
        }
        return "\n".join(f"{label:<13} {text}" for label, text in rows.items())

    __repr__ = __str__


def build_info() -> BuildInfo:
    """Pin, options, compiler and instruction sets of this build, and the devices that it sees here."""
    return BuildInfo(
        **_core.build_info(),
        instruction_sets=instruction_sets(_core.system_info()),
        devices=tuple(_core.devices()),
    )


def instruction_sets(system_info: str) -> tuple[str, ...]:
    """The instruction sets in llama.cpp's system line (`CPU : SSE3 = 1 | AVX2 = 1 | OPENMP = 1 | `), in its order."""
    _, _, cpu = system_info.partition("CPU :")
    cpu = re.split(r"\|\s*\w+ :", cpu)[0]  # another backend's features follow under its own name
    names = re.findall(r"(\w+) = 1\b", cpu)
    return tuple(name for name in names if name not in _NOT_INSTRUCTIONS)
