"""Runs a command with another version of ipykernel in place of the installed one.

    python tests/on_ipykernel.py 6.31.0 -m pytest tests/kernel/test_stop.py
    python tests/on_ipykernel.py all -m pytest tests/browser -k stop

The version is fetched once, into the user cache; all other packages are this Python's. Kernels, and the servers that
start them, see it because PYTHONPATH comes before what is installed. `all` are those of `VERSIONS`, one after another.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distributions, version
from pathlib import Path

import platformdirs
from packaging.requirements import Requirement

VERSIONS = ("6.31.0", "7.0.1", "7.2.0", "7.3.0", "7.4.0")
"""One for each way in which messages of widgets come: 6 has no subshells, 7.0 to 7.3 handle them on one, 7.4 does
where the front end asks for it."""
ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    wanted, *arguments = sys.argv[1:]
    failed = [each for each in (VERSIONS if wanted == "all" else (wanted,)) if not passes(each, arguments)]
    if failed:
        sys.stderr.write(f"FAILED with ipykernel {', '.join(failed)}\n")
    return bool(failed)


def passes(wanted: str, arguments: list[str]) -> bool:
    sys.stderr.write(f"ipykernel {wanted}:\n")
    path = os.pathsep.join(filter(None, (str(overlay(wanted)), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"PYTHONPATH": path, "IPYLLAMA_IPYKERNEL": wanted}
    return subprocess.run([sys.executable, *arguments], env=environment, cwd=ROOT, check=False).returncode == 0


def overlay(wanted: str) -> Path:
    """A folder that holds this version, and what it needs that is not installed."""
    folder = Path(platformdirs.user_cache_dir("ipyllama")) / "ipykernels" / wanted
    complete = folder / ".complete"
    if not complete.exists():
        install(folder, f"ipykernel=={wanted}")
        (installed,) = distributions(name="ipykernel", path=[str(folder)])
        for each in missing(installed):
            install(folder, each)
        complete.touch()
    return folder


def install(folder: Path, what: str) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-qq", "install", "--no-deps", "--no-compile"]
    subprocess.run([*pip, "--upgrade", "--target", str(folder), what], check=True)


def missing(installed: Distribution) -> list[str]:
    """What a package requires and this Python has not."""
    found = []
    for requirement in map(Requirement, installed.requires or ()):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            if requirement.specifier.contains(version(requirement.name), prereleases=True):
                continue
        except PackageNotFoundError:
            pass
        found.append(f"{requirement.name}{requirement.specifier}")
    return found


if __name__ == "__main__":
    sys.exit(main())
