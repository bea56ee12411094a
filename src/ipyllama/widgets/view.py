"""The base of the widgets: a live view over a static form.

JupyterLab does not save the state of widgets, and shows an error in place of one whose kernel is gone. So the output of
a cell never holds a widget here. It holds static HTML in a named slot, and the widget's script draws its view over it
for as long as the kernel is there (static/view.js).
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any, ClassVar, Final

import anywidget
import traitlets

from ipyllama.widgets.front import in_notebook, next_slot, placed
from ipyllama.widgets.say import can_hear

Bundle = dict[str, str]
STATIC: Final = Path(__file__).parent / "static"
MOST_OPEN: Final = 64
"""Views that are live at once; older ones show their static form again."""


def script(name: str) -> str:
    """The module of static/NAME.js, with what all share before it."""
    return f"{(STATIC / 'view.js').read_text('utf-8')}\n{(STATIC / f'{name}.js').read_text('utf-8')}"


def style(name: str) -> str:
    """The style sheet of static/NAME.css, with what all share before it."""
    return f"{(STATIC / 'view.css').read_text('utf-8')}\n{(STATIC / f'{name}.css').read_text('utf-8')}"


class WidgetView(anywidget.AnyWidget):
    """A view with a static form. A subclass sets `_esm = script(NAME)` and `_css = style(NAME)`, defines `bundle`, and
    calls `refresh` when what is saved with the notebook should be what the view shows by then."""

    slot = traitlets.Unicode(help="the name of the place where the view is shown").tag(sync=True)
    hears = traitlets.Bool(help="the kernel hears what is said on its control channel").tag(sync=True)

    _all: ClassVar[deque[WidgetView]] = deque()

    def __init__(self, **values: Any) -> None:
        self._handles: list[Any] = []
        super().__init__(**values)

    def bundle(self) -> Bundle:
        """The static forms as they are now: `text/plain`, and `text/html` without script."""
        raise NotImplementedError

    def refresh(self) -> None:
        """Bring the static forms in the notebook up to date."""
        for handle in self._handles:
            handle.update(self._saved(), raw=True)

    def open(self) -> None:
        """A view is opened when it is shown, not when it is made."""

    def close(self) -> None:
        """Let the static form stand alone."""
        if self in self._all:
            self._all.remove(self)
        self._handles = []
        super().close()

    @classmethod
    def close_all(cls) -> None:
        """Close every view that is shown."""
        while cls._all:
            cls._all[0].close()

    def show_live(self) -> None:
        """Called when it is shown first, where somebody can see it live."""
        slot = next_slot()
        for earlier in [view for view in self._all if view.slot == slot]:  # the cell was run again
            earlier.close()
        self.slot, self.hears = slot, can_hear()
        super().open()
        self._all.append(self)
        if len(self._all) > MOST_OPEN:
            self._all[0].close()

    def _saved(self) -> Bundle:
        bundle = self.bundle()
        return bundle | {"text/html": placed(bundle["text/html"], self.slot)} if self.slot else bundle

    def _ipython_display_(self) -> None:
        from IPython import display as ipython

        if self.comm is None and in_notebook():
            self.show_live()
        show: Any = ipython.display
        self._handles.append(show(self._saved(), raw=True, display_id=True))
