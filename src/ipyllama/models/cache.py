"""The user's cache folder for ipyllama, and what lies where in it."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """The user's cache folder for ipyllama: `IPYLLAMA_CACHE_DIR`, else the platform's usual place. Not created."""
    if chosen := os.environ.get("IPYLLAMA_CACHE_DIR"):
        return Path(chosen).expanduser()
    import platformdirs

    return platformdirs.user_cache_path("ipyllama", appauthor=False)


def models_dir() -> Path:
    """Where fetched models land. Not created."""
    return cache_dir() / "models"


def crash_dir() -> Path:
    """Where notes about crashes lie. Not created."""
    return cache_dir() / "crashes"
