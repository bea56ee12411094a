"""Build the C++ programs of tests/native/oracle against the llama.cpp that ipyllama itself is linked to."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from native.core import SANITIZED

ORACLES = Path(__file__).resolve().parent / "oracle"
PROVIDE = ORACLES.parents[2] / "llama.cpp" / "provide.py"


def build(name: str, out: Path) -> Path:
    """Compile `oracle/<name>.cpp` in the folder `out`; the path of the program. Fails with the compiler's words."""
    build_type = ("--build-type", "RelWithDebInfo") if SANITIZED else ()  # as CMakePresets.json has it
    prefix = _run(sys.executable, PROVIDE, *build_type).splitlines()[-1]
    cmake = shutil.which("cmake") or Path(sys.executable).with_name("cmake")
    _run(cmake, "-S", ORACLES, "-B", out, "-DCMAKE_BUILD_TYPE=Release", f"-DLLAMA_PREFIX={prefix}")
    _run(cmake, "--build", out, "--target", name)
    return out / name


def _run(*command: str | Path) -> str:
    # the programs that build are not ours to check: no sanitizer goes into them
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout
