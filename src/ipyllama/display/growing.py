"""An answer that grows, as what has to be added to its HTML: a long one costs as much to send as a short one."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from ipyllama.display.markdown import closed_blocks
from ipyllama.display.reply import MUTED, SHOWN_LINES, folded
from ipyllama.display.text import n_words
from ipyllama.display.units import plural
from ipyllama.thinking import split_thinking


@dataclass(frozen=True, slots=True)
class Growth:
    """What is new: blocks that will not change any more, then the block that is being written, which begins with the
    first `keep` UTF-16 units of its last state (0 where there are new blocks) and goes on with `tail`."""

    blocks: str
    keep: int
    tail: str


class GrowingHTML:
    """Renders an answer while it is written. Blocks of Markdown that are closed are rendered once.

    What is shown equals `markdown_html` of the text, but for links that are defined later and formulas that hold empty
    lines.
    """

    def __init__(self) -> None:
        self._done = 0  # characters of the answer that lie in closed blocks
        self._tail = ""
        self._thought = False

    def grow(self, text: str) -> Growth:
        """The text as far as it is written; it begins with what it was at the last call."""
        parts = split_thinking(text)
        if not parts.ended:
            return self._growth("", _thinking_html(parts.thinking))
        blocks = ""
        if parts.thinking and not self._thought:
            self._thought = True
            blocks = folded(parts.thinking)
        closed, tail, length = closed_blocks(parts.answer[self._done :])
        self._done += length
        return self._growth(blocks + closed, tail)

    def _growth(self, blocks: str, tail: str) -> Growth:
        common = 0 if blocks else _common(self._tail, tail)
        self._tail = tail
        keep = len(tail[:common].encode("utf-16-le")) // 2
        return Growth(blocks, keep, tail[common:])


def _common(old: str, new: str) -> int:
    """How many characters two texts have in common at their beginning."""
    least, most = 0, min(len(old), len(new))
    while least < most:
        middle = (least + most + 1) // 2
        if old[least:middle] == new[least:middle]:
            least = middle
        else:
            most = middle - 1
    return least


def _thinking_html(thinking: str) -> str:
    lines = "<br>".join(escape(line) for line in thinking.split("\n")[-SHOWN_LINES:])
    count = plural(n_words(thinking), "word")
    return f'<div style="{MUTED}">thinking: {count}<div style="margin:.4em 0 0 1em">{lines}</div></div>'
