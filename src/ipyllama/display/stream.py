"""An answer shown while it is being written, at most twenty updates a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from ipyllama.display.progress import INTERVAL, SHOW_AFTER, Progress
from ipyllama.display.units import plural
from ipyllama.display.views import View
from ipyllama.reply import Delta, Event, Finished, Prefill, Queued

SHARE: Final = 9
"""How much longer nothing is shown than showing took: the model needs the processor, too."""
LONGEST: Final = 0.5
"""Seconds without an update at most, where there is something new."""


class ReplyStream:
    """Shows a job's events in a view: `job.run(stream.feed)`, and `flush()` where that ends in an error.

    The first text and the end are shown at once; in between no more often than every 50 ms, less often where showing
    it takes long. The prompt's progress
    appears when it takes longer than a second. With `stream=False` only the complete answer is shown.
    """

    def __init__(self, view: View, *, stream: bool = True, clock: Callable[[], float] = time.monotonic) -> None:
        self._view, self._stream, self._clock = view, stream, clock
        self._pieces: list[str] = []
        self._tokens = 0
        self._next_update = float("-inf")
        self._pending = False
        self._passing = False  # progress is on show, which must not outlive the job

    @property
    def text(self) -> str:
        """What has been written so far."""
        return "".join(self._pieces)

    def feed(self, event: Event) -> None:
        """Show one event, if it is due."""
        match event:
            case Finished(reply):
                self._pending = self._passing = False
                self._view.reply(reply)
            case _ if not self._stream:
                pass
            case Delta(text, tokens):
                self._add(text, tokens)
            case Queued(place) if place > 0:
                self._passing = True
                self._view.line(f"waiting: {plural(place, 'answer')} ahead")
            case Queued() if self._passing:
                self._view.line("")
            case Prefill() if event.seconds >= SHOW_AFTER and self._due():
                self._passing = True
                self._view.progress(
                    Progress(
                        "reading the prompt",
                        event.done,
                        event.total,
                        eta=event.eta if event.done < event.total else None,
                    )
                )
            case _:
                pass

    def flush(self) -> None:
        """Show text that was held back; where there is none, take away what only said how far the job was. Nothing
        follows."""
        if self._pending:
            self._show()
        elif self._passing:
            self._view.line("")
        self._view.end()
        self._pending = self._passing = False

    def _add(self, text: str, tokens: int) -> None:
        first = not self._pieces
        self._tokens = tokens
        self._pieces.append(text)
        self._pending = True
        if self._due() or first:
            self._show()

    def _show(self) -> None:
        begun = self._clock()
        self._view.text(self.text, self._tokens)
        self._pending = self._passing = False
        now = self._clock()
        self._next_update = now + min(max(INTERVAL, SHARE * (now - begun)), LONGEST)

    def _due(self) -> bool:
        """Whether an update may be shown now; one that is counts from now on."""
        now = self._clock()
        if now < self._next_update:
            return False
        self._next_update = now + INTERVAL
        return True
