"""Where things are shown: a notebook's display, a terminal, or nowhere."""

from __future__ import annotations

import sys
from collections.abc import Callable
from shutil import get_terminal_size
from typing import Any, Final, Protocol, TextIO

from ipyllama.display.progress import Progress, line_bundle, progress_bundle, progress_text
from ipyllama.display.reply import reply_bundle, streaming_bundle
from ipyllama.display.text import body_text, footer, printable
from ipyllama.reply import Reply

Bundle = dict[str, str]
_CLEAR_LINE: Final = "\r\x1b[K"
_DIM, _NORMAL = "\x1b[2m", "\x1b[0m"


class View(Protocol):
    """One place on the screen. Each call replaces what the last one showed."""

    def progress(self, progress: Progress) -> None:
        """Show how far something is."""

    def line(self, line: str) -> None:
        """Show a line about something; an empty one takes away what was there."""

    def text(self, text: str, tokens: int = 0) -> None:
        """Show an answer as far as it is written: all of it, each time. `tokens` were sampled for it."""

    def reply(self, reply: Reply) -> None:
        """Show the complete answer with its footer."""

    def bundle(self, bundle: Bundle, *, final: bool) -> None:
        """Show something else in all its forms; what is not final is followed by another state of it."""

    def end(self) -> None:
        """Leave what is shown as it is: there will be no complete answer."""


class NotebookView:
    """One output of a cell. `display` shows the first bundle and returns what shows the following ones in its place."""

    def __init__(self, display: Callable[[Bundle], Callable[[Bundle], None]]) -> None:
        self._display = display
        self._update: Callable[[Bundle], None] | None = None

    def progress(self, progress: Progress) -> None:
        self.show(progress_bundle(progress))

    def line(self, line: str) -> None:
        self.show(line_bundle(line))

    def text(self, text: str, tokens: int = 0) -> None:
        self.show(streaming_bundle(text))

    def reply(self, reply: Reply) -> None:
        self.show(reply_bundle(reply))

    def bundle(self, bundle: Bundle, *, final: bool) -> None:
        self.show(bundle)

    def end(self) -> None: ...

    def show(self, bundle: Bundle) -> None:
        """Show this, in place of what was there."""
        if self._update is None:
            self._update = self._display(bundle)
        else:
            self._update(bundle)


class TerminalView:
    """A stream of text. Only what is new is written; progress keeps to one line, and to a real terminal."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stdout if stream is None else stream
        self._tty = self._stream.isatty()
        self._on_line = False
        self._written = ""

    def progress(self, progress: Progress) -> None:
        self._passing(progress_text(progress))

    def line(self, line: str) -> None:
        self._clear()
        if line:
            self._write(f"{self._dim(line)}\n")

    def text(self, text: str, tokens: int = 0) -> None:
        self._clear()
        self._write(printable(text[len(self._written) :]))
        self._written = text

    def reply(self, reply: Reply) -> None:
        self._clear()
        if reply.text.strip():
            self.text(reply.text)
        else:
            self._write(body_text(reply))
        self._write("" if reply.text.endswith("\n") and reply.text.strip() else "\n")
        for line in footer(reply).split("\n"):
            self._write(self._dim(f"— {line}") + "\n")

    def bundle(self, bundle: Bundle, *, final: bool) -> None:
        if final:
            self._clear()
            self._write(bundle["text/plain"] + "\n")

    def end(self) -> None: ...

    def _passing(self, line: str) -> None:
        if self._tty:
            width = get_terminal_size().columns - 1  # a line that wraps could not be taken back
            self._write(f"{_CLEAR_LINE}{self._dim(line[:width])}")
            self._on_line = True

    def _clear(self) -> None:
        if self._on_line:
            self._write(_CLEAR_LINE)
            self._on_line = False

    def _dim(self, line: str) -> str:
        return f"{_DIM}{line}{_NORMAL}" if self._tty else line

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class NullView:
    """Shows nothing."""

    def progress(self, progress: Progress) -> None: ...

    def line(self, line: str) -> None: ...

    def text(self, text: str, tokens: int = 0) -> None: ...

    def reply(self, reply: Reply) -> None: ...

    def bundle(self, bundle: Bundle, *, final: bool) -> None: ...

    def end(self) -> None: ...


def make_view(shell: Any, *, quiet: bool = False) -> View:
    """The view for an IPython shell: a notebook's if it has a kernel, else the terminal's."""
    if quiet:
        return NullView()
    return NotebookView(display_here) if getattr(shell, "kernel", None) is not None else TerminalView()


def display_here(bundle: Bundle) -> Callable[[Bundle], None]:
    """Show a bundle as output of the running cell; returns what shows others in its place."""
    from IPython import display as ipython

    show: Any = ipython.display
    handle = show(bundle, raw=True, display_id=True)
    return lambda following: handle.update(following, raw=True)
