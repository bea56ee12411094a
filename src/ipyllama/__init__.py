"""ipyllama: talk to a local GGUF model from a notebook; a prompt prefix is computed once.

    import ipyllama
    llm = ipyllama.load("smollm2")
    chat = llm.chat()
    chat.ask("What is a KV cache?")

In a notebook: `%load_ext ipyllama`, then `%%llama` cells.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from ipyllama._build import BuildInfo as BuildInfo
    from ipyllama._build import build_info as build_info
    from ipyllama.chat import Chat as Chat
    from ipyllama.chat import Turn as Turn
    from ipyllama.errors import Interrupted as Interrupted
    from ipyllama.errors import LlamaError as LlamaError
    from ipyllama.info import GgufInfo as GgufInfo
    from ipyllama.info import inspect as inspect
    from ipyllama.layout import Layout as Layout
    from ipyllama.llm import LLM as LLM
    from ipyllama.llm import load as load
    from ipyllama.llm import loaded as loaded
    from ipyllama.loading import LoadOptions as LoadOptions
    from ipyllama.models import list_models as list_models
    from ipyllama.options import GenerateOptions as GenerateOptions
    from ipyllama.reply import Reply as Reply

_HOME: Final = {
    "BuildInfo": "_build",
    "build_info": "_build",
    "Chat": "chat",
    "Turn": "chat",
    "GgufInfo": "info",
    "inspect": "info",
    "Layout": "layout",
    "LLM": "llm",
    "load": "llm",
    "loaded": "llm",
    "list_models": "models",
    "GenerateOptions": "options",
    "Reply": "reply",
    "LoadOptions": "loading",
    "LlamaError": "errors",
    "Interrupted": "errors",
}

__all__ = [
    "LLM",
    "BuildInfo",
    "Chat",
    "GenerateOptions",
    "GgufInfo",
    "Interrupted",
    "Layout",
    "LlamaError",
    "LoadOptions",
    "Reply",
    "Turn",
    "build_info",
    "inspect",
    "list_models",
    "load",
    "load_ipython_extension",
    "loaded",
    "unload_ipython_extension",
]

# Import is silent: whoever wants llama.cpp's log adds a handler to this logger.
logging.getLogger("ipyllama").addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    """Public names are imported when they are first used, so that `import ipyllama` is cheap."""
    if name == "__version__":
        from importlib.metadata import version

        return version("ipyllama")
    if name == "errors":
        from importlib import import_module

        return import_module("ipyllama.errors")
    if name == "_core":
        from ipyllama._openmp import load_core

        core = load_core()
        globals()[name] = core  # `arm` wants it
        from ipyllama.crash import arm

        arm()
        return core
    if name not in _HOME:
        raise AttributeError(f"module 'ipyllama' has no attribute '{name}'")
    from importlib import import_module

    value = getattr(import_module(f"ipyllama.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])


def load_ipython_extension(ipython: InteractiveShell) -> None:
    """`%load_ext ipyllama`: adds `%llama` and `%%llama`, their completion, and `%config Llama`."""
    from ipyllama.magics import register, show_crash

    register(ipython)
    show_crash(ipython)


def unload_ipython_extension(ipython: InteractiveShell) -> None:
    """`%unload_ext ipyllama`: takes everything away again and frees the models that the magics loaded."""
    from ipyllama.magics import unregister

    unregister(ipython)
