"""Runs a command with the extension of a CMake preset in place of the installed one.

    python tests/on_build.py dev -m pytest tests/native
    python tests/on_build.py asan -m fuzz gguf --cases 1000

The preset must be built (`make asan` does it). Packages come from this Python's environment, ours from `src`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# The editable install finds ipyllama before PYTHONPATH does; Python runs this file at every start, after that.
NOT_INSTALLED = """\
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "ScikitBuildRedirectingFinder"]
"""


def main() -> int:
    preset, *arguments = sys.argv[1:]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(overlay(preset)), str(ROOT / "tests")))}
    if preset == "asan":
        environment |= sanitizers()
    return subprocess.run([sys.executable, *arguments], env=environment, cwd=ROOT, check=False).returncode


def overlay(preset: str) -> Path:
    """A folder that holds ipyllama with the extension of the preset."""
    build = ROOT / "build" / preset
    extension = next(build.glob("_core*.so"))
    package = build / "python" / "ipyllama"
    package.mkdir(parents=True, exist_ok=True)
    for link in package.iterdir():
        link.unlink()
    for file in (*(ROOT / "src" / "ipyllama").iterdir(), extension):
        if file == extension or not file.name.startswith(("_core.c", "__pycache__")):
            (package / file.name).symlink_to(file)
    (package.parent / "sitecustomize.py").write_text(NOT_INSTALLED)
    return package.parent


def sanitizers() -> dict[str, str]:
    """The interpreter is not built with the sanitizers, so their runtime goes in first, and C++'s for its exceptions.

    Leaks are not looked for: CPython leaves memory to the system at exit. Any other report ends the process.
    """
    names = ("libasan.so", "libstdc++.so")
    found = [
        subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
        for name in names
    ]
    suppressions = ROOT / "tests" / "native" / "ubsan.supp"
    return {
        "LD_PRELOAD": " ".join(found),
        "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=1:strict_string_checks=1",
        "UBSAN_OPTIONS": f"halt_on_error=1:print_stacktrace=1:suppressions={suppressions}",
    }


if __name__ == "__main__":
    sys.exit(main())
