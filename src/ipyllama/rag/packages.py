"""Packages that only retrieval needs."""

from __future__ import annotations

import sys
import warnings
from contextlib import suppress
from importlib import import_module
from typing import Any, Final

from ipyllama.errors import MissingPackage
from ipyllama.stop import held_back

_IMPORTED_BY: Final = {"lancedb": ("pyarrow", "pandas")}
"""What a package imports later, if it is there: pyarrow imports pandas at its first array, and loses a Ctrl-C there."""


def takes_a_while() -> bool:
    """Whether what an index needs is still to be imported, which takes seconds."""
    return "lancedb" not in sys.modules


def needed(module: str, what: str, extra: str = "rag") -> Any:
    """The module, imported. Raises `MissingPackage`, which says what to install, where it is not there."""
    try:
        with held_back():  # a large package takes seconds, and an import that was interrupted cannot be repeated
            found = import_module(module)
            for other in _IMPORTED_BY.get(module, ()):
                with suppress(ImportError):
                    import_module(other)
        if module == "lancedb":  # `!ls` in a cell forks, and starts another program at once: nothing to be warned of
            warnings.filterwarnings("ignore", "lancedb fork support", RuntimeWarning, "pty")
        return found
    except ImportError as error:
        package = (error.name or module).partition(".")[0]
        raise MissingPackage(
            f"{what} needs the package {package}, which is not installed: pip install 'ipyllama[{extra}]'"
        ) from None
