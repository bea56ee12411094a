"""The live answer: how far the prompt is, the text as it comes, Stop; then the static forms, which can be copied."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from typing import Any, Final

import anywidget
import traitlets
from ipykernel.connect import get_connection_file

from ipyllama.display.growing import GrowingHTML
from ipyllama.display.progress import Progress, line_bundle
from ipyllama.display.reply import reply_bundle, streaming_bundle
from ipyllama.display.units import format_rate, plural
from ipyllama.display.views import Bundle, NotebookView, View
from ipyllama.reply import Reply
from ipyllama.widgets.front import placed
from ipyllama.widgets.say import can_hear, hear, hear_no_more
from ipyllama.widgets.view import script, style

Show = Callable[[Bundle], Callable[[Bundle], None]]
_WAITING: Final = "an answer is being written"
_KERNEL_ID: Final = re.compile(r"kernel-([\w-]+)\.json")


class LiveAnswers(anywidget.AnyWidget):
    """What draws live answers, one for all of them: it is in the page before the first of them comes. Says hello."""

    _esm = script("live")
    _css = style("live")
    slot = traitlets.Unicode("answers", help="who says hello").tag(sync=True)
    hears = traitlets.Bool(help="the kernel hears what is said on its control channel").tag(sync=True)
    kernel_id = traitlets.Unicode(help="for front ends that interrupt through the server").tag(sync=True)

    def __init__(self, greeted: Callable[[], None]) -> None:
        """`greeted` is called when a front end has said hello, on any thread."""
        found = _KERNEL_ID.fullmatch(os.path.basename(get_connection_file()))
        hear(self.slot, lambda content: greeted())
        super().__init__(kernel_id=found[1] if found else "", hears=can_hear())
        self.on_msg(lambda *message: greeted())

    def leave(self) -> None:
        """Take it out of the page, and of what ipywidgets holds."""
        hear_no_more(self.slot)
        self.layout.close()
        self.close()


class LateView:
    """An answer in a front end that has not said hello yet: shown in the simple way until it does, and live then.

    `begin(show)` makes the live view, None as long as there can be none.
    """

    def __init__(self, simple: NotebookView, begin: Callable[[Show], LiveView | None]) -> None:
        self._simple, self._begin = simple, begin
        self._live: LiveView | None = None

    def progress(self, progress: Progress) -> None:
        self._now.progress(progress)

    def line(self, line: str) -> None:
        self._now.line(line)

    def text(self, text: str, tokens: int = 0) -> None:
        self._now.text(text, tokens)

    def reply(self, reply: Reply) -> None:
        self._now.reply(reply)

    def bundle(self, bundle: Bundle, *, final: bool) -> None:
        self._now.bundle(bundle, final=final)

    def end(self) -> None:
        self._now.end()

    @property
    def _now(self) -> View:
        if self._live is None:
            self._live = self._begin(self._go_on)
        return self._simple if self._live is None else self._live

    def _go_on(self, bundle: Bundle) -> Callable[[Bundle], None]:
        """In the output that is there."""
        self._simple.show(bundle)
        return self._simple.show


class LiveView:
    """An answer on its way, in a slot of the cell's output. `send` reaches what draws it, `show` is the display."""

    def __init__(
        self,
        send: Callable[[dict[str, Any]], None],
        slot: str,
        show: Show,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._send, self._slot, self._display, self._clock = send, slot, show, clock
        self._update: Callable[[Bundle], None] | None = None
        self._growing = GrowingHTML()
        self._text = ""
        self._first: tuple[float, int] | None = None  # when the first text came, and after how many tokens

    def progress(self, progress: Progress) -> None:
        self._tell("progress", line=str(progress), label=progress.label, share=progress.share)

    def line(self, line: str) -> None:
        self._tell("progress", line=line, label="", share=None)

    def text(self, text: str, tokens: int = 0) -> None:
        growth = self._growing.grow(text)
        self._text = text
        self._tell("text", blocks=growth.blocks, keep=growth.keep, tail=growth.tail, line=self._speed(tokens))

    def reply(self, reply: Reply) -> None:
        self._end(reply_bundle(reply), reply.answer)

    def bundle(self, bundle: Bundle, *, final: bool) -> None:
        self._end(bundle, "")

    def end(self) -> None:
        if self._update is not None:
            self._end(streaming_bundle(self._text) if self._text else line_bundle(""), self._text)

    def restart(self) -> None:
        """Tell all of it again with what comes next: somebody has come late."""
        self._growing, self._update = GrowingHTML(), None

    def _speed(self, tokens: int) -> str:
        """`120 tokens · 48/s`."""
        if not tokens:
            return ""
        now = self._clock()
        if self._first is None:
            self._first = now, tokens
        seconds, written = now - self._first[0], tokens - self._first[1]
        rate = f" · {format_rate(written / seconds)}" if written and seconds > 0 else ""
        return f"{plural(tokens, 'token')}{rate}"

    def _tell(self, kind: str, **what: Any) -> None:
        if self._update is None:
            self._send({"slot": self._slot, "kind": "begin"})
            bundle = line_bundle(_WAITING)
            self._update = self._display(bundle | {"text/html": placed(bundle["text/html"], self._slot)})
        self._send({"slot": self._slot, "kind": kind, **what})

    def _end(self, bundle: Bundle, copy: str) -> None:
        """The static forms, in the same slot: beside them the front end offers to copy the text."""
        self._send({"slot": self._slot, "kind": "end", "copy": copy})
        shown = bundle | {"text/html": placed(bundle["text/html"], self._slot)} if "text/html" in bundle else bundle
        if self._update is None:
            self._update = self._display(shown)
        else:
            self._update(shown)
