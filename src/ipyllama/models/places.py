"""Models that are on this machine already: where other programs keep theirs, read-only."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ipyllama.models.cache import models_dir
from ipyllama.models.header import model_stem
from ipyllama.models.registry import REGISTRY
from ipyllama.models.walk import Budget, files, ggufs

VARIABLES = (
    "HOME",
    "IPYLLAMA_CACHE_DIR",
    "HF_HUB_CACHE",
    "HUGGINGFACE_HUB_CACHE",
    "HF_HOME",
    "OLLAMA_MODELS",
    "LLAMA_CACHE",
    "XDG_CACHE_HOME",
)
"""environment variables that say where models lie"""

_REMEMBER_SECONDS = 5.0
_MAX_MANIFEST = 1 << 20
_OLLAMA_MODEL = "application/vnd.ollama.image.model"


@dataclass(frozen=True, slots=True)
class Found:
    """A model file somewhere on this machine; its header has not been read."""

    name: str
    path: Path
    source: str
    """who keeps it: "ipyllama", "folder", "Hugging Face", "Ollama", "LM Studio", "llama.cpp" """
    aliases: tuple[str, ...] = ()
    """longer names that mean it too"""

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)


_remembered: dict[tuple[str, ...], tuple[float, list[Found]]] = {}


def discover(seconds: float = 3.0) -> list[Found]:
    """Every model file in the usual places, each once, every name once; looks for at most `seconds`.

    The answer is remembered for some seconds, so that completion and listing do not search again.
    """
    key = (str(_here()), *(os.environ.get(name, "") for name in VARIABLES))
    when, found = _remembered.get(key, (-_REMEMBER_SECONDS, []))
    if time.monotonic() - when < _REMEMBER_SECONDS:
        return found
    found = _unique(_everywhere(time.monotonic() + seconds))
    _remembered.clear()
    _remembered[key] = (time.monotonic(), found)
    return found


def forget() -> None:
    """Search again at the next `discover`, after something was fetched, say."""
    _remembered.clear()


def _unique(everything: Iterator[Found]) -> list[Found]:
    seen: set[str] = set()
    names: set[str] = set()
    unique: list[Found] = []
    for found in everything:
        real = os.path.realpath(found.path)
        if real in seen:
            continue
        seen.add(real)
        free = next((name for name in (*found.names, str(found.path)) if name.lower() not in names), str(found.path))
        names.add(free.lower())
        unique.append(replace(found, name=free, aliases=tuple(n for n in found.names if n != free)))
    return unique


def _everywhere(deadline: float) -> Iterator[Found]:
    """Each place has entries of its own to look at, so that one vast folder does not hide the others."""
    yield from _own_cache(Budget(deadline))
    yield from _plain(_here(), "folder", 0, Budget(deadline))
    yield from _plain(_here() / "models", "folder", 3, Budget(deadline))
    for hub in _hub_folders():
        yield from _hugging_face(hub, Budget(deadline))
    for store in _ollama_folders():
        yield from _ollama(store, Budget(deadline))
    for folder in _lm_studio_folders():
        yield from _plain(folder, "LM Studio", 4, Budget(deadline))
    yield from _plain(_llama_cpp_folder(), "llama.cpp", 1, Budget(deadline))


def _plain(root: Path, source: str, depth: int, budget: Budget) -> Iterator[Found]:
    for path in ggufs(root, depth, budget):
        inner = path.relative_to(root).as_posix()
        yield Found(model_stem(path.name), path, source, tuple(dict.fromkeys((inner, path.name))))


def _own_cache(budget: Budget) -> Iterator[Found]:
    short = {model.file: model.name for model in REGISTRY.values()}
    for found in _plain(models_dir(), "ipyllama", 1, budget):
        known = short.get(found.path.name)
        yield replace(found, name=known, aliases=found.names) if known else found


def _hugging_face(hub: Path, budget: Budget) -> Iterator[Found]:
    """`models--OWNER--REPO/snapshots/COMMIT/FILE`; of several commits the one that `refs/main` names comes first."""
    listed: set[str] = set()
    for repo_folder in _folders(hub, budget):
        if not repo_folder.name.startswith("models--"):
            continue
        repo = repo_folder.name.removeprefix("models--").replace("--", "/")
        main = _read(repo_folder / "refs" / "main").strip()
        snapshots = _folders(repo_folder / "snapshots", budget)
        for snapshot in sorted(snapshots, key=lambda folder: folder.name != main):
            for path in ggufs(snapshot, 3, budget):
                full = f"{repo}/{path.relative_to(snapshot).as_posix()}"
                if full not in listed:
                    listed.add(full)
                    yield Found(model_stem(path.name), path, "Hugging Face", (full, path.name))


def _ollama(store: Path, budget: Budget) -> Iterator[Found]:
    """`manifests/HOST/NAMESPACE/MODEL/TAG` is JSON that names the blob with the weights by its digest."""
    root = store / "manifests"
    for manifest in files(root, 6, budget):
        *parts, tag = manifest.relative_to(root).parts
        digest = _ollama_digest(_read(manifest))
        blob = store / "blobs" / f"sha256-{digest}"
        if len(parts) < 2 or not digest or not os.path.isfile(blob):
            continue
        for usual in ("registry.ollama.ai", "library"):  # Ollama leaves these out of a name
            parts = parts[1:] if parts[0] == usual else parts
        name = "/".join(parts)
        yield Found(f"{name}:{tag}", blob, "Ollama", (name,) if tag == "latest" else ())


def _ollama_digest(text: str) -> str:
    """The hexadecimal digest of the weights; "" if the manifest has none or is damaged."""
    try:
        layers = json.loads(text)["layers"]
        digests = [str(layer["digest"]) for layer in layers if layer["mediaType"] == _OLLAMA_MODEL]
    except (ValueError, TypeError, KeyError, RecursionError):
        return ""
    match = re.fullmatch(r"sha256:([0-9a-f]{64})", digests[0]) if digests else None
    return match[1] if match else ""


def _hub_folders() -> list[Path]:
    """Hugging Face's cache; llama.cpp keeps the same layout under its own variable."""
    env = os.environ.get
    hub = env("HF_HUB_CACHE") or env("HUGGINGFACE_HUB_CACHE")
    if not hub:
        home = env("HF_HOME") or os.path.join(env("XDG_CACHE_HOME") or "~/.cache", "huggingface")
        hub = os.path.join(home, "hub")
    return [_user(folder) for folder in (hub, env("LLAMA_CACHE")) if folder]


def _ollama_folders() -> list[Path]:
    chosen = os.environ.get("OLLAMA_MODELS")
    return [_user(chosen or "~/.ollama/models"), Path("/usr/share/ollama/.ollama/models")]


def _lm_studio_folders() -> list[Path]:
    moved = _read(_user("~/.lmstudio-home-pointer")).strip()
    folders = [_user(folder) for folder in ("~/.lmstudio/models", "~/.cache/lm-studio/models")]
    return [Path(moved) / "models", *folders] if moved else folders


def _llama_cpp_folder() -> Path:
    env = os.environ.get
    if chosen := env("LLAMA_CACHE"):
        return _user(chosen)
    if sys.platform == "darwin":
        return _user("~/Library/Caches/llama.cpp")
    cache = env("LOCALAPPDATA") if sys.platform == "win32" else env("XDG_CACHE_HOME")
    return _user(cache or "~/.cache") / "llama.cpp"


def _here() -> Path:
    try:
        return Path.cwd()
    except OSError:  # the folder was deleted
        return Path(os.curdir)


def _user(path: str) -> Path:
    return Path(os.path.expanduser(path))


def _folders(root: Path, budget: Budget) -> list[Path]:
    try:
        return sorted(path for path in root.iterdir() if budget.spend() and os.path.isdir(path))
    except OSError:
        return []


def _read(path: Path) -> str:
    """The text of a small regular file; "" if it is not one."""
    try:
        if not os.path.isfile(path) or path.stat().st_size > _MAX_MANIFEST:
            return ""
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
