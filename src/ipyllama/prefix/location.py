"""Where prefix states are kept: beside the notebook, else in the user's cache folder."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from ipyllama.models import cache_dir
from ipyllama.prefix.memory import PrefixMemory

Cache = str | os.PathLike[str] | PrefixMemory | bool | None
"""True: the usual place. False, None: RAM only. A text with "://" in it is a remote."""
VARIABLE: Final = "IPYLLAMA_PREFIX_DIR"
"""Of the environment: another usual place; "off" keeps prefix states in RAM only."""
BESIDE: Final = "beside the notebook"
"""The `origin` of a place that is one notebook's own."""
_NOT_IN_NAMES: Final = re.compile(r"[^\w. -]+")
_memories: dict[Path | str, PrefixMemory] = {}


def notebook() -> Path | None:
    """The notebook that this kernel belongs to, as Jupyter named it when the kernel started."""
    name = os.environ.get("JPY_SESSION_NAME", "")
    path = Path(name)
    return path if path.is_absolute() and path.suffix == ".ipynb" and os.path.isdir(path.parent) else None


def usual_location() -> Path | str | None:
    """`IPYLLAMA_PREFIX_DIR`, else `.ipyllama/NOTEBOOK/` beside the notebook, else the user's cache folder. Not created;
    None where it is turned off."""
    if chosen := os.environ.get(VARIABLE):
        return None if chosen.lower() == "off" else _place(chosen)
    found = notebook()
    if found is None:
        return cache_dir() / "prefix"
    return found.parent / ".ipyllama" / file_name(found.stem) / "prefix"


def file_name(name: str) -> str:
    """A name as a file's: without what some system does not take."""
    return _NOT_IN_NAMES.sub("_", name).strip(". ")[:100] or "notebook"


def chats_location() -> Path | None:
    """Where conversations are kept: beside the prefix states, if those lie in a folder of this machine."""
    location = usual_location()
    if not isinstance(location, Path):
        return None
    return location.with_name("chats") if location.name == "prefix" else location / "chats"


def rag_location() -> Path:
    """Where indexes of documents are kept: beside the prefix states, if those lie in a folder of this machine, else
    beside the notebook, else in the user's cache folder."""
    location = usual_location()
    if isinstance(location, Path):
        return location.with_name("rag") if location.name == "prefix" else location / "rag"
    found = notebook()
    return found.parent / ".ipyllama" / file_name(found.stem) / "rag" if found else cache_dir() / "rag"


def origin(memory: PrefixMemory) -> str:
    """Why a memory is where it is, in a few words."""
    place = memory.location or (memory.remote.name if memory.remote else None)
    if str(place) != str(usual_location()):
        return "chosen when the model was loaded"
    if os.environ.get(VARIABLE):
        return f"{VARIABLE} says so"
    return BESIDE if notebook() else "the user's cache, because no notebook is known"


def memory_for(cache: Cache) -> PrefixMemory:
    """The memory that a model is loaded with. Models that keep to the same folder share it."""
    if isinstance(cache, PrefixMemory):
        return cache
    if cache is None or cache is False:
        return PrefixMemory(None)
    location = usual_location() if cache is True else _place(os.fspath(cache))
    if location is None:
        return PrefixMemory(None)
    if location not in _memories:
        _memories[location] = PrefixMemory(location)
    return _memories[location]


def _place(chosen: str) -> Path | str:
    if "://" in chosen:
        return chosen
    return Path(os.path.expanduser(chosen)).absolute()  # a user who is not there is a folder's name, as in a shell
