"""Models by name: from what a person types to a checked GGUF file. Submodules load at first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ipyllama.models.cache import cache_dir, models_dir
    from ipyllama.models.fetch import fetch_model
    from ipyllama.models.fit import Fit, available_memory, default_n_ctx, fits
    from ipyllama.models.header import GgufHeader, read_header
    from ipyllama.models.kv import KV_TYPES, PLAIN_KV_TYPES, kv_bytes
    from ipyllama.models.lookup import (
        LocalModel,
        ModelEntry,
        complete_names,
        find_here,
        list_models,
        not_fetched,
        resolve,
    )
    from ipyllama.models.progress import Progress
    from ipyllama.models.registry import DEFAULT_MODEL, REGISTRY, RegistryModel

__all__ = [
    "DEFAULT_MODEL",
    "KV_TYPES",
    "PLAIN_KV_TYPES",
    "REGISTRY",
    "Fit",
    "GgufHeader",
    "LocalModel",
    "ModelEntry",
    "Progress",
    "RegistryModel",
    "available_memory",
    "cache_dir",
    "complete_names",
    "default_n_ctx",
    "fetch_model",
    "find_here",
    "fits",
    "kv_bytes",
    "list_models",
    "models_dir",
    "not_fetched",
    "read_header",
    "resolve",
]

_HOMES = {
    "cache": ("cache_dir", "models_dir"),
    "fetch": ("fetch_model",),
    "fit": ("Fit", "available_memory", "default_n_ctx", "fits"),
    "header": ("GgufHeader", "read_header"),
    "kv": ("KV_TYPES", "PLAIN_KV_TYPES", "kv_bytes"),
    "lookup": ("LocalModel", "ModelEntry", "complete_names", "find_here", "list_models", "not_fetched", "resolve"),
    "progress": ("Progress",),
    "registry": ("DEFAULT_MODEL", "REGISTRY", "RegistryModel"),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
