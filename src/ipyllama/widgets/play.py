"""Views that change by what is done in them. Their static form is brought up to date when they are left: it would be
drawn anew under the reader's hand otherwise."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import traitlets

from ipyllama.errors import ClosedError
from ipyllama.widgets.say import hear, hear_no_more
from ipyllama.widgets.view import STATIC, WidgetView, script
from ipyllama.widgets.worker import Worker


def play_script(name: str) -> str:
    """The module of static/NAME.js, with what all such views share before it."""
    return f"{script('play')}\n{(STATIC / f'{name}.js').read_text('utf-8')}"


class PlayView(WidgetView):
    """A subclass defines `told`; what takes a while it gives to `worker`, and it calls `changed` when it looks another
    way than the static form."""

    dirty = traitlets.Bool(help="the static form is not up to date").tag(sync=True)
    problem = traitlets.Unicode(help="what could not be done, and why").tag(sync=True)

    def __init__(self, **values: Any) -> None:
        self.worker = Worker(f"ipyllama-{type(self).__name__}")
        super().__init__(**values)
        self.on_msg(self._message)

    def told(self, content: dict[str, Any]) -> None:
        """A message of the front end. It comes on any thread, between cells or beside them: return at once."""
        raise NotImplementedError

    def changed(self) -> None:
        self.dirty = True

    def refresh(self) -> None:
        self.dirty = False
        super().refresh()

    def close(self) -> None:
        hear_no_more(self.slot)
        super().close()

    def show_live(self) -> None:
        super().show_live()
        hear(self.slot, self._take)

    def __str__(self) -> str:
        return self.bundle()["text/plain"]

    def __repr__(self) -> str:
        return str(self)

    def _message(self, view: Any, content: Any, buffers: Any) -> None:
        if isinstance(content, dict):
            self._take(content)

    def _take(self, content: dict[str, Any]) -> None:
        if content.get("kind") != "left":
            self.told(content)
        elif self.dirty:
            self.worker.do(self._left)

    def _left(self) -> None:
        with suppress(ClosedError):  # a model that is gone has no texts: the form stays as it was
            self.refresh()
