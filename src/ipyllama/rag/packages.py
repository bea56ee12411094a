"""Packages that only retrieval needs."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ipyllama.errors import MissingPackage


def needed(module: str, what: str, extra: str = "rag") -> Any:
    """The module, imported. Raises `MissingPackage`, which says what to install, where it is not there."""
    try:
        return import_module(module)
    except ImportError as error:
        package = (error.name or module).partition(".")[0]
        raise MissingPackage(
            f"{what} needs the package {package}, which is not installed: pip install 'ipyllama[{extra}]'"
        ) from None
