"""Several answers to one message: beside each other in HTML, one after the other in text."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from html import escape
from typing import Final

from ipyllama.display.progress import INTERVAL
from ipyllama.display.reply import MUTED, answer_html
from ipyllama.display.text import body_text, cost, one_line, printable
from ipyllama.display.units import plural
from ipyllama.display.views import View
from ipyllama.reply import Delta, Event, Finished, Reply

_FOOTER: Final = (
    "margin-top:.7em;padding-top:.35em;line-height:1.5;"
    "border-top:1px solid var(--jp-border-color2,rgba(127,127,127,.3))"
)
_COLUMN: Final = (
    "flex:1 1 16em;min-width:0;border-left:2px solid var(--jp-border-color2,rgba(127,127,127,.3));padding:0 .8em"
)


def answers_bundle(labels: Sequence[str], replies: Sequence[Reply]) -> dict[str, str]:
    """`text/plain` and `text/html` of complete answers. `labels` tell them apart."""
    heads = [f"{_name(reply)}{label}{_ending(reply)}" for label, reply in zip(labels, replies, strict=True)]
    blocks = [f"[{head}]\n{body_text(reply)}" for head, reply in zip(heads, replies, strict=True)]
    columns = [_column(head, answer_html(reply)) for head, reply in zip(heads, replies, strict=True)]
    footer = _footer(replies)
    lines = "<br>\n".join(map(escape, footer))
    return {
        "text/plain": "\n\n".join([*blocks, "\n".join(f"— {line}" for line in footer)]),
        "text/html": f'{_row(columns)}\n<div style="{_FOOTER};{MUTED}">{lines}</div>',
    }


def writing_bundle(labels: Sequence[str], texts: Sequence[str]) -> dict[str, str]:
    """The same while they are being written."""
    columns = [
        _column(label, f'<div style="white-space:pre-wrap">{escape(text)}</div>')
        for label, text in zip(labels, texts, strict=True)
    ]
    plain = [f"[{label}]\n{printable(text)}" for label, text in zip(labels, texts, strict=True)]
    return {"text/plain": "\n\n".join(plain), "text/html": _row(columns)}


class AnswersStream:
    """Shows the events of several jobs: `gather(jobs, stream.feed)`, then `finish(replies)`."""

    def __init__(
        self, view: View, labels: Sequence[str], *, stream: bool = True, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._view, self._labels, self._clock, self._stream = view, labels, clock, stream
        self._texts = [""] * len(labels)
        self._replies: dict[int, Reply] = {}
        self._next_update = float("-inf")

    def feed(self, number: int, event: Event) -> None:
        """Take one event in, and show it if it is due."""
        if isinstance(event, Delta):
            self._texts[number] += event.text
        if isinstance(event, Finished):
            self._replies[number] = event.reply
        if self._stream and isinstance(event, Delta | Finished) and self._clock() >= self._next_update:
            self._view.bundle(writing_bundle(self._labels, self._texts), final=False)
            self._next_update = self._clock() + INTERVAL

    def stop(self) -> list[Reply]:
        """Show how far the answers came, and return them; empty where some have not ended."""
        if len(self._replies) < len(self._labels):
            return []
        replies = [self._replies[number] for number in range(len(self._labels))]
        self.finish(replies)
        return replies

    def finish(self, replies: Sequence[Reply]) -> None:
        """Show the complete answers."""
        self._view.bundle(answers_bundle(self._labels, replies), final=True)


def _name(reply: Reply) -> str:
    """What to call it to continue it: a turn may have a name."""
    name = getattr(reply, "name", None)
    return f"{name} · " if name else ""


def _ending(reply: Reply) -> str:
    ended = {"interrupted": ", interrupted", "length": ", stopped at max_tokens", "context": ", the context is full"}
    return f" · {plural(reply.usage.generated, 'token')}{ended.get(reply.finish_reason, '')}"


def _footer(replies: Sequence[Reply]) -> list[str]:
    """The cost of reading, which only the first pays, and the notes that each has."""
    notes = dict.fromkeys(one_line(note) for reply in replies for note in reply.notes)
    generated = sum(reply.usage.generated for reply in replies)
    first = cost(replies[0]).partition(" · ")[0]
    return [f"{first} · {plural(len(replies), 'answer')} at once, {plural(generated, 'token')}", *notes]


def _row(columns: Sequence[str]) -> str:
    return '<div style="display:flex;flex-wrap:wrap;gap:.8em 0">\n' + "\n".join(columns) + "\n</div>"


def _column(label: str, body: str) -> str:
    return f'<div style="{_COLUMN}"><div style="{MUTED}">{escape(label)}</div>\n{body}</div>'
