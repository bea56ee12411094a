"""Which text of a rendered conversation is the template's and which the replies'."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from ipyllama.chat.messages import Messages


@dataclass(frozen=True, slots=True)
class Layout:
    """A rendering taken apart: chunk 0, reply 0, chunk 1, reply 1, ..., last chunk; joined they are the whole text."""

    chunks: tuple[str, ...]
    """the template's text with the user's messages in it, one more than there are replies"""
    replies: tuple[str, ...]
    """each reply as the template rendered it"""

    def before(self, index: int) -> str:
        """The text up to reply `index`."""
        pairs = zip(self.chunks[:index], self.replies[:index], strict=True)
        return "".join(chunk + reply for chunk, reply in pairs) + self.chunks[index]


def lay_out(render: Callable[[Messages], str], messages: Messages, text: str) -> Layout | None:
    """The layout of `text`, which is `messages` rendered; None where a template shuffles, drops or repeats replies."""
    said = [message["content"] for message in messages if message["role"] == "assistant"]
    stem, numbers = _stem(text), count()
    masked = [{**m, "content": f"<{stem}~{next(numbers)}>"} if m["role"] == "assistant" else m for m in messages]
    chunks = _split(render(masked), stem, len(said))
    replies = _between(text, chunks, said) if chunks else None
    return Layout(tuple(chunks), tuple(replies)) if chunks and replies is not None else None


def _stem(text: str) -> str:
    """What marks begin with: it is not in `text`, and trimming leaves it alone."""
    stem = "reply"
    while stem in text:
        stem += "~reply"
    return stem


def _split(masked: str, stem: str, n: int) -> list[str] | None:
    """What stands between the marks; None unless each of the `n` is there once, in their order."""
    parts = re.split(f"<{stem}~([0-9]+)>", masked)
    return parts[::2] if parts[1::2] == [str(index) for index in range(n)] else None


def _between(text: str, chunks: list[str], said: list[str]) -> list[str] | None:
    """What stands between the chunks in `text`; `said` are the replies one expects there."""
    if not text.startswith(chunks[0]):
        return None
    at, replies = len(chunks[0]), []
    for reply, chunk in zip(said[:-1], chunks[1:-1], strict=True):
        end = _end(text, at, reply, chunk)
        if end < 0:
            return None
        replies.append(text[at:end])
        at = end + len(chunk)
    end = len(text) - len(chunks[-1])
    return [*replies, text[at:end]] if end >= at and text.endswith(chunks[-1]) else None


def _end(text: str, at: int, reply: str, chunk: str) -> int:
    """Where the reply at `at` ends and `chunk` begins; -1 where it nowhere does."""
    for expected in (reply, reply.strip()):
        if text.startswith(expected + chunk, at):
            return at + len(expected)
    return text.find(chunk, at)
