"""From token bytes to text: whole characters only, and stop texts are never shown."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class TextAssembler:
    """Takes the bytes of sampled tokens and gives out text that is safe to show.

    A character spread over several tokens comes out when it is complete. Text that might be the beginning of a
    stop text is held back until it is known not to be.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._stop = tuple(stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.text = ""
        self.stopped = False

    def add(self, piece: bytes) -> str:
        """The new text to show after this token."""
        return self._give(self._decoder.decode(piece), final=False)

    def flush(self) -> str:
        """What was held back, at the end of generation; a character that was only begun is left out."""
        return self._give("", final=True)

    def _give(self, new: str, *, final: bool) -> str:
        if self.stopped:
            return ""
        pending = self._held + new
        cut = min((at for stop in self._stop if (at := pending.find(stop)) >= 0), default=None)
        if cut is not None:
            self.stopped = True
            shown, self._held = pending[:cut], ""
        else:
            keep = 0 if final else self._possible_stop(pending)
            shown, self._held = pending[: len(pending) - keep], pending[len(pending) - keep :]
        self.text += shown
        return shown

    def _possible_stop(self, text: str) -> int:
        """How many characters at the end of `text` may begin a stop text."""
        longest = max(map(len, self._stop), default=0)
        for n in range(min(len(text), longest - 1), 0, -1):
            if any(stop.startswith(text[-n:]) for stop in self._stop):
                return n
        return 0
