"""Runs a command with the extension of a CMake preset in place of the installed one.

    python tests/on_build.py dev -m pytest tests/native
    python tests/on_build.py asan -m fuzz gguf --cases 1000

The preset must be built (`make asan` does it). Packages come from this Python's environment, ours from `src`.
What a sanitizer reports ends the process it happens in. AddressSanitizer's reports go to build/asan/reports and are
summed up at the end; those of the other go to stderr, where a test that looks after a process shows them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
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
    reports = ROOT / "build" / preset / "reports"
    shutil.rmtree(reports, ignore_errors=True)
    reports.mkdir()
    if preset == "asan":
        environment |= sanitizers(reports)
    done = subprocess.run([sys.executable, *arguments], env=environment, cwd=ROOT, check=False)
    found = Counter(first_line(report) for report in reports.iterdir())
    for line, n in found.most_common():
        sys.stderr.write(f"reported by {n} processes, see {reports.relative_to(ROOT)}: {line}\n")
    return done.returncode or bool(found)


def first_line(report: Path) -> str:
    """What went wrong and where, without the number of the process."""
    lines = [line for line in report.read_text(errors="replace").splitlines() if "error" in line or "ERROR" in line]
    return re.sub(r"==\d+==|0x[0-9a-f]+", "", lines[0]) if lines else report.name


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


def sanitizers(reports: Path) -> dict[str, str]:
    """The interpreter is not built with the sanitizers, so their runtime goes in first, and C++'s for its exceptions.

    Leaks are not looked for: CPython leaves memory to the system at exit.
    """
    names = ("libasan.so", "libstdc++.so")
    found = [
        subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
        for name in names
    ]
    presets = json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]
    flags = next(preset["cacheVariables"] for preset in presets if preset["name"] == "asan")
    suppressions = ROOT / "tests" / "native" / "ubsan.supp"
    return {
        "LD_PRELOAD": " ".join(found),
        # for the oracle: bits are equal only where the same compiler made the same code of llama.cpp
        "CFLAGS": flags["CMAKE_C_FLAGS"],
        "CXXFLAGS": flags["CMAKE_CXX_FLAGS"],
        "ASAN_OPTIONS": f"detect_leaks=0:detect_stack_use_after_return=1:log_path={reports / 'report'}",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1:"
        f"suppressions={suppressions}:log_path={reports / 'report'}",
    }


if __name__ == "__main__":
    sys.exit(main())
