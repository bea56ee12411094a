"""The front end of a kernel: whether it can show live views, and where in a notebook the running cell is."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ipyllama.widgets.live import LiveAnswers

_counted: tuple[object, int] = (None, 0)
_allowed = True


def allow(live: bool) -> None:
    """Whether there may be live views at all."""
    global _allowed  # noqa: PLW0603 - a process has one notebook
    _allowed = live


def running_cell(shell: Any) -> str | None:
    """The front end's id of the running cell, None where it gives none (a terminal, nbclient)."""
    header = getattr(shell, "parent_header", None)
    cell = header.get("metadata", {}).get("cellId") if isinstance(header, dict) else None
    return cell if isinstance(cell, str) else None


def in_notebook() -> bool:
    """Whether a cell of a notebook runs that somebody has open, and live views are wanted."""
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    return _allowed and getattr(shell, "kernel", None) is not None and running_cell(shell) is not None


def next_slot() -> str:
    """A name for a place in the running cell's output: the same each time that the cell runs, so that a notebook that
    is run again does not differ in it."""
    from IPython.core.getipython import get_ipython

    global _counted  # noqa: PLW0603 - a process has one notebook
    shell = get_ipython()
    execution = getattr(shell, "parent_header", {}).get("header", {}).get("msg_id")
    number = _counted[1] + 1 if _counted[0] == execution else 0
    _counted = (execution, number)
    return f"{running_cell(shell)}-{number}"


def placed(html: str, slot: str) -> str:
    """Static HTML in a slot: while there is a live view of this name, it is shown there instead."""
    return f'<div class="ipyllama-slot" data-ipyllama="{escape(slot)}">\n{html}\n</div>'


class FrontEnd:
    """Knows whether whoever shows the notebook runs live views: asked once, it has to answer."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._live: LiveAnswers | None = None
        self._answered = False

    def greet(self) -> None:
        """Ask, at the first time in a notebook's cell. The answer comes when the kernel has time for it."""
        if self._live is None and getattr(self._shell, "kernel", None) is not None and running_cell(self._shell):
            from ipyllama.widgets.live import LiveAnswers

            self._live = LiveAnswers(self._hello)

    @property
    def live(self) -> LiveAnswers | None:
        """Where answers are shown while they are written; None as long as the front end has not said that it can."""
        self.greet()
        return self._live if self._answered and _allowed else None

    @property
    def is_asked(self) -> bool:
        """Whether it may still say so."""
        return self._live is not None and not self._answered and _allowed

    @property
    def can_show(self) -> bool:
        """Whether the front end runs live views."""
        return self.live is not None

    def close(self) -> None:
        """Take away what was opened."""
        if self._live is not None:
            from ipyllama.widgets.view import WidgetView

            self._live.leave()
            WidgetView.close_all()
            self._live, self._answered = None, False

    def _hello(self) -> None:
        from ipyllama.display.markdown import markdown_html

        markdown_html("")  # the parser takes a third of a second to import: not when the first word is to be shown
        self._answered = True  # it may come on any thread
