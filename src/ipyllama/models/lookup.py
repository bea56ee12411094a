"""From what a person types to a model: a path, a registry name, a model that is here already, a file on the hub."""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass
from pathlib import Path

from ipyllama.errors import BadModelFile, ModelNotFound
from ipyllama.models.fetch import fetch_model, fetched_path
from ipyllama.models.fit import Fit, available_memory, default_n_ctx, fits
from ipyllama.models.header import GgufHeader, model_stem, read_header
from ipyllama.models.hub import fetch_hub_file, is_hub_name
from ipyllama.models.places import Found, discover
from ipyllama.models.progress import Progress
from ipyllama.models.registry import REGISTRY, RegistryModel
from ipyllama.models.walk import is_model_name

_COMPLETE_SECONDS = 0.3
_MAX_NAMED = 6


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model file that is here and whose header is sound."""

    name: str
    path: Path
    """the file; of a split model its first part"""
    source: str
    """who keeps it: "path", or a source of `places.Found` """
    header: GgufHeader


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A row of `list_models`: what is here, or why it cannot be used."""

    name: str
    path: Path
    source: str
    size: int
    """bytes of all parts"""
    header: GgufHeader | None = None
    fit: Fit | None = None
    """with the context that `load` would choose"""
    problem: str = ""
    """why the file cannot be loaded, in one line; "" for a sound one"""

    @property
    def quantisation(self) -> str:
        return self.header.quantisation if self.header else ""

    @property
    def n_ctx_train(self) -> int:
        """0 where unknown"""
        return self.header.n_ctx_train if self.header else 0

    @property
    def fits(self) -> bool:
        return self.fit is not None and self.fit.ok


def resolve(name_or_path: str | os.PathLike[str], *, progress: Progress | None = None) -> LocalModel:
    """The model that a path, a registry name, a name of something here, or `hf:owner/repo/file.gguf` means.

    Names are compared without case, and an unambiguous beginning is enough. Registry and hub models are fetched if
    they are not here; `progress(done_bytes, total_bytes, label)` is called meanwhile, by default a bar on stderr.

    Raises ModelNotFound (with the closest names), BadModelFile, FetchError.
    """
    name = os.fspath(name_or_path).strip()
    if is_hub_name(name):
        path = fetch_hub_file(name, progress)
        return _sound(Found(model_stem(path.name), path, "Hugging Face"))
    if not isinstance(name_or_path, os.PathLike) and (model := REGISTRY.get(name.lower())):
        return _sound(Found(model.name, fetch_model(model, progress), "ipyllama"))
    return _sound(_found(name_or_path))


def find_here(name_or_path: str | os.PathLike[str]) -> LocalModel:
    """Like `resolve`, but fetches nothing, and takes a GGUF of any kind: an adapter, a projector, a vocabulary.

    Raises ModelNotFound and BadModelFile.
    """
    name = os.fspath(name_or_path).strip()
    model = None if isinstance(name_or_path, os.PathLike) else REGISTRY.get(name.lower())
    if model is not None:
        path = fetched_path(model)
        if path is None:
            raise ModelNotFound(f"{model.name} is not on this machine yet. ipyllama.load({model.name!r}) fetches it.")
        found = Found(model.name, path, "ipyllama")
    else:
        found = _found(name[3:] if is_hub_name(name) else name_or_path)  # the hub's cache is one of the places
    header = read_header(found.path)
    return LocalModel(found.name, header.path, found.source, header)


def list_models() -> list[ModelEntry]:
    """What is on this machine, in the order in which names are looked up; files that are no models are left out."""
    available = available_memory()
    entries = (_entry(found, available) for found in discover())
    return [entry for entry in entries if entry is not None]


def not_fetched() -> list[RegistryModel]:
    """The registry models that are not in the user cache yet."""
    return [model for model in REGISTRY.values() if fetched_path(model) is None]


def complete_names(prefix: str) -> list[str]:
    """Names and paths that begin with prefix, for Tab; reads no file, fetches nothing, takes a moment at most."""
    if _looks_like_path(prefix):
        return _complete_path(prefix)
    names = [*REGISTRY, *(found.name for found in discover(_COMPLETE_SECONDS))]
    return [name for name in dict.fromkeys(names) if name.lower().startswith(prefix.lower())]


def _looks_like_path(name: str) -> bool:
    return os.path.isabs(name) or name.startswith(("~", "./", "../", ".\\", "..\\")) or name in (".", "..")


def _found(name_or_path: str | os.PathLike[str]) -> Found:
    """What is here under a path or a name. Raises ModelNotFound."""
    name = os.fspath(name_or_path).strip()
    if isinstance(name_or_path, os.PathLike) or _looks_like_path(name):
        return _at_path(name)
    if found := _by_name(name):
        return found
    if name and os.path.exists(name):
        return _at_path(name)
    raise ModelNotFound(_not_found(name))


def _at_path(name: str) -> Found:
    path = Path(name).expanduser()
    if path.is_dir():
        inside = sorted(p for p in path.iterdir() if is_model_name(p.name))
        if len(inside) != 1:
            what = f"holds {len(inside)} models: {_some([p.name for p in inside])}" if inside else "holds no .gguf file"
            raise ModelNotFound(f"the folder {path} {what}. Give the path of one file.")
        path = inside[0]
    if not path.exists():
        near = _near(path.name, [p.name for p in path.parent.glob("*.gguf")])
        raise ModelNotFound(f"there is no file {path}.{near or ' `%llama models` lists what is here.'}")
    return Found(model_stem(path.name), path.absolute(), "path")


def _sound(found: Found) -> LocalModel:
    """The model with its header, which proves that llama.cpp can be given the file."""
    header = read_header(found.path)
    if header.kind != "model":
        raise BadModelFile(f"{found.path.name} holds no model but a GGUF of kind {header.kind!r}. Give a model file.")
    return LocalModel(found.name, header.path, found.source, header)


def _entry(found: Found, available: int) -> ModelEntry | None:
    try:
        header = read_header(found.path)
    except BadModelFile as error:
        size = os.stat(found.path).st_size if os.path.isfile(found.path) else 0
        return ModelEntry(found.name, found.path, found.source, size, problem=str(error))
    if header.kind != "model":
        return None
    fit = fits(header, default_n_ctx(header, available), available)
    return ModelEntry(found.name, found.path, found.source, header.file_size, header, fit)


def _by_name(name: str) -> Found | None:
    """A model here by one of its names, else the only one that has a name which begins like this."""
    wanted, here = name.lower(), discover()
    exact = [found for found in here if wanted in (n.lower() for n in found.names)]
    if exact:
        return exact[0]
    begins = [found for found in here if wanted and any(n.lower().startswith(wanted) for n in found.names)]
    if len(begins) > 1:
        raise ModelNotFound(f"{name!r} can mean {_some([found.name for found in begins])}. Write more of the name.")
    return begins[0] if begins else None


def _not_found(name: str) -> str:
    here = [found.name for found in discover()]
    everything = list(dict.fromkeys([*REGISTRY, *here]))
    known = f"{_near(name, everything)} Known: {_some(everything)}"
    return f"no model {name!r}.{known}; or give the path of a .gguf file, or hf:owner/repo/file.gguf."


def _near(name: str, candidates: list[str]) -> str:
    by_lower = {candidate.lower(): candidate for candidate in candidates}
    close = [by_lower[n] for n in difflib.get_close_matches(name.lower(), by_lower, 3)]
    return f" Did you mean {' or '.join(close)}?" if close else ""


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more


def _complete_path(prefix: str) -> list[str]:
    """Folders and model files; the part before the last slash stays as it was typed."""
    folder, name = os.path.split(prefix)
    try:
        with os.scandir(os.path.expanduser(folder) or ".") as entries:
            matches = [e for e in entries if e.name.startswith(name) and (e.is_dir() or is_model_name(e.name))]
    except OSError:
        return []
    return sorted(os.path.join(folder, e.name) + ("/" if e.is_dir() else "") for e in matches)
