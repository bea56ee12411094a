"""The peers, in an environment of their own in the user cache. Two of them build llama.cpp: a quarter of an hour each
on two cores, once per machine."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import venv
from pathlib import Path
from typing import Final

from ipyllama import build_info
from ipyllama.models import cache_dir

REQUIREMENTS: Final = Path(__file__).with_name("requirements.txt")
_BUILD: Final = {
    "CMAKE_ARGS": " ".join(
        f"-D{option}"
        for option in (
            "GGML_NATIVE=ON",  # as ours is built
            "LLAMA_BUILD_TESTS=OFF",
            "LLAMA_BUILD_EXAMPLES=OFF",
            "LLAMA_BUILD_UI=OFF",
            "LLAMA_USE_PREBUILT_UI=OFF",
            "LLAMA_OPENSSL=OFF",
        )
    ),
    "CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count() or 1),
    "LLAMA_CPP_BUILD_JOBS": str(os.cpu_count() or 1),
}


def environment() -> Path:
    """The folder of the environment, one for each list of versions."""
    return cache_dir() / "peers" / hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:12]


def installed() -> Path:
    """Its Python; everything is installed first, when it is missing."""
    folder = environment()
    python, done = folder / "bin" / "python", folder / ".done"
    if not done.exists():
        sys.stderr.write("Installing the peers (once per machine; two of them build llama.cpp, which takes long)\n")
        venv.create(folder, with_pip=True)
        command = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "-q", "-r", str(REQUIREMENTS)]
        flags = _our_flags()
        subprocess.run(command, check=True, env=os.environ | _BUILD | {"CFLAGS": flags, "CXXFLAGS": flags})
        done.touch()
    return python


def _our_flags() -> str:
    """What the compiler was told of this processor beside "native", when our llama.cpp was built."""
    found = re.search(r"CMAKE_CXX_FLAGS=((?:-\S+ ?)+)", build_info().options)
    return found[1].strip() if found else ""
