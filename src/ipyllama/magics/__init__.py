"""The magics: parse, call, show. What they do, a plain Python call does too."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from IPython.core.magic import Magics, cell_magic, line_magic, magics_class, no_var_expand
from traitlets import TraitError

from ipyllama.crash import take_note
from ipyllama.display import make_view
from ipyllama.errors import Interrupted
from ipyllama.magics.asked import leave, listen
from ipyllama.magics.cell import run_cell
from ipyllama.magics.commands import llama_subcommands
from ipyllama.magics.complete import make_matcher
from ipyllama.magics.config import Llama
from ipyllama.magics.line import run_line
from ipyllama.magics.options import llama_arguments
from ipyllama.magics.rag import index_names
from ipyllama.magics.session import Session
from ipyllama.stop import Stop
from ipyllama.widgets.front import FrontEnd, allow

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


@magics_class
class LlamaMagics(Magics):
    """`%llama` and `%%llama` of one shell."""

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        self.session, self.defaults, self.front = Session(), Llama(parent=shell), FrontEnd(shell)
        self.matcher = make_matcher(
            {
                "models": self._model_names,
                "chats": lambda: self.session.chat_names,
                "entries": self._prefix_names,
                "turns": lambda: self.session.turn_names,
                "ways": lambda: ("error", "drop-oldest", "shift", "summarise-by"),
                "indexes": index_names,
                "bundles": lambda: sorted(path.name for path in Path().glob("*.kv")),
            }
        )

    @no_var_expand
    @line_magic("llama")  # type: ignore[arg-type]
    @llama_subcommands
    def line(self, line: str) -> None:
        with Stop(), _one_line():
            run_line(self.shell, self.session, self.defaults, line)

    @no_var_expand
    @cell_magic("llama")  # type: ignore[arg-type]
    @llama_arguments
    def cell(self, line: str, cell: str) -> None:
        with Stop(), _one_line():
            run_cell(self.shell, self.session, self.defaults, self.front, line, cell)

    def _model_names(self) -> list[str]:
        from ipyllama.models import complete_names

        loaded = [llm.name for llm in self.session.loaded]
        return [*loaded, *(name for name in complete_names("") if name not in loaded)]

    def _prefix_names(self) -> list[str]:
        from ipyllama.prefix.listing import names

        return names(self.session.memory)


@contextmanager
def _one_line() -> Iterator[None]:
    """Ctrl-C is told in one line, wherever it falls; "run all" stops at it."""
    try:
        yield
    except Interrupted:
        raise
    except KeyboardInterrupt:
        raise Interrupted from None


def register(shell: Any) -> None:
    """Add the magics, their completion and `%config Llama` to a shell. A second time replaces the first."""
    magics = _make(shell)
    unregister(shell)
    shell.register_magics(magics)
    listen(shell)
    shell.configurables.append(magics.defaults)
    if shell.Completer is not None:
        shell.Completer.custom_matchers.append(magics.matcher)
    magics.front.greet()


def show_crash(shell: Any) -> None:
    """Say, once, if llama.cpp ended the kernel that this notebook had before."""
    if note := take_note():
        make_view(shell).line(str(note))


def _make(shell: Any) -> LlamaMagics:
    try:
        return LlamaMagics(shell)
    except TraitError as error:  # IPython keeps a value that `%config` was refused
        shell.config.pop(Llama.__name__, None)
        warnings.warn(f"%config Llama begins with its defaults again: {error}", stacklevel=2)
        return LlamaMagics(shell)


def unregister(shell: Any) -> None:
    """Take away what `register` added, and free the models that were loaded through it."""
    leave(shell)
    magics = shell.magics_manager.registry.pop(LlamaMagics.__name__, None)
    if magics is None:
        return
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("llama", None)
    for configurable in (magics, magics.defaults):  # `Magics` puts itself there
        shell.configurables.remove(configurable)
    if magics.matcher in (matchers := shell.Completer.custom_matchers):
        matchers.remove(magics.matcher)
    magics.front.close()
    allow(True)
    magics.session.close()
