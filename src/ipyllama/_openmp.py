"""How long llama.cpp's threads spin before they sleep, which has to be said before the extension is loaded.

llama.cpp's threads meet after every operation, some hundreds of times per token. By default GNU OpenMP lets the ones
that wait spin for milliseconds: fine on an idle machine, a disaster on a busy one, where the thread that is waited
for cannot run because of them. Measured on two cores with SmolLM2, tokens per second decoded with the default and
with this setting: alone 116 and 118, beside one busy process 29 and 40, beside two 0.3 and 27. With a second model
loaded GNU OpenMP hardly spins at all, unless the policy is "active": 71 without and 102 with it.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Final

SETTINGS: Final = {"GOMP_SPINCOUNT": "5000", "OMP_WAIT_POLICY": "ACTIVE"}


def load_core() -> ModuleType:
    """Import `ipyllama._core` under our settings, unless the user made some. The environment is left as it was."""
    if any(name in os.environ for name in SETTINGS) or not _uses_libgomp():
        return import_module("ipyllama._core")
    os.environ.update(SETTINGS)
    try:
        return import_module("ipyllama._core")
    finally:
        for name in SETTINGS:
            del os.environ[name]


def _uses_libgomp() -> bool:
    """LLVM's OpenMP knows only the policy, and would spin for ever under it."""
    if sys.platform != "linux":
        return False
    spec = find_spec("ipyllama._core")
    return spec is not None and spec.origin is not None and b"libgomp.so" in Path(spec.origin).read_bytes()
