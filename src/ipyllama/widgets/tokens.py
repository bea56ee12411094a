"""The tokens of an answer, live: hover or move to one for its numbers, click an alternative to branch there."""

from __future__ import annotations

import threading
import time
from typing import Any, Final

import numpy as np
import traitlets

from ipyllama.chat import Turn
from ipyllama.display.progress import INTERVAL
from ipyllama.display.tokens import (
    TokenList,
    likely_level,
    open_level,
    summary,
    token_text,
    token_texts,
    tokens_html,
    tokens_text,
)
from ipyllama.engine import Job
from ipyllama.errors import LlamaError
from ipyllama.reply import Delta, Event, Reply
from ipyllama.widgets.play import PlayView, play_script
from ipyllama.widgets.view import Bundle, style

NOTHING: Final[dict[str, Any]] = {}
COLUMNS: Final = ("ids", "logprobs", "entropies", "likely", "open", "others", "chances", "known")
"""What is bytes of a packed answer, in the order in which it is sent."""


class TokenView(PlayView):
    """An answer, and below it the branches that were made here; each of them is a turn, and can be branched itself.

    `replies` are the answers that it shows.
    """

    _esm = play_script("tokens")
    _css = style("tokens")
    answers: traitlets.List[Any] = traitlets.List(help="what is shown of each answer, see `packed`").tag(sync=True)
    running = traitlets.Dict(help="the branch that is being written: label, text so far; empty if none").tag(
        sync=True, to_json=lambda value, view: value and value | {"text": view.written}
    )

    def __init__(self, reply: Reply) -> None:
        self.replies: list[Reply] = [reply]
        self.written = ""  # of the branch that runs; the front end is told what is added
        self._job: Job | None = None
        self._stopped = threading.Event()
        super().__init__(answers=[packed(reply, "")])

    def bundle(self) -> Bundle:
        lists = [TokenList(_title(reply, label), reply.logprobs or ()) for reply, label in self._labelled()]
        return {
            "text/plain": "\n\n".join(map(tokens_text, lists)),
            "text/html": '\n<div style="height:1em"></div>\n'.join(map(tokens_html, lists)),
        }

    def branch(self, answer: int, at: int, token: int) -> None:
        """Begin a branch of one of `replies` and return at once; it is shown as it is written, and is among `replies`
        then."""
        stopped = self._stopped = threading.Event()
        self.worker.do(lambda: self._branch(answer, at, token, stopped))

    def stop(self) -> None:
        """End the branch that was begun last; what there is stays, as a turn."""
        self._stopped.set()
        if (job := self._job) is not None:
            job.cancel()

    def _labelled(self) -> list[tuple[Reply, str]]:
        return [(reply, shown["label"]) for reply, shown in zip(self.replies, self.answers, strict=True)]

    def told(self, content: dict[str, Any]) -> None:
        match content:
            case {"kind": "branch", "answer": int(answer), "at": int(at), "token": int(token)}:
                self.branch(answer, at, token)
            case {"kind": "stop"}:
                self.stop()

    def _branch(self, answer: int, at: int, token: int, stopped: threading.Event) -> None:
        self.problem = ""  # the same problem once more is a change, too
        try:
            turn = self.replies[answer]
            if not isinstance(turn, Turn) or turn.chat is None or turn.logprobs is None:
                self.problem = "this answer belongs to no conversation: it cannot be branched"
                return
            self._job = turn.chat.start_branch(turn, at, token)
            label = f'Branch at token {at}: "{_piece(turn, at, token)}"'
            self.written, self.running = "", {"label": label}
            if stopped.is_set():
                self._job.cancel()
            self._add(self._job.run(_Growing(self)), label)
        except (LlamaError, IndexError) as error:
            self.problem = str(error)
        finally:
            self._job, self.running = None, NOTHING
            self.send({"kind": "ended"})  # also where it never ran

    def _add(self, reply: Reply, label: str) -> None:
        if not reply.tokens:
            return
        if isinstance(reply, Turn) and reply.chat is not None:
            label += f" · turn {reply.chat.number(reply)}, the next cell continues from it"
        self.replies.append(reply)
        new = packed(reply, label)
        self.answers.append(new)  # for a page that is new; those that are there have the others
        texts = {key: value for key, value in new.items() if key not in COLUMNS}
        self.send({"kind": "answer", "answer": texts}, [new[key] for key in COLUMNS])
        self.changed()


class _Growing:
    """Shows the events of a branch, at most twenty times a second."""

    def __init__(self, view: TokenView) -> None:
        self._view, self._text, self._next = view, "", 0.0  # the text that is not sent yet

    def __call__(self, event: Event) -> None:
        if isinstance(event, Delta):
            self._text += event.text
            if (now := time.monotonic()) >= self._next:
                self._next = now + INTERVAL
                self._view.written += self._text
                self._view.send({"kind": "text", "text": self._text})
                self._text = ""


def packed(reply: Reply, label: str) -> dict[str, Any]:
    """What the front end draws of an answer: texts, and numbers by column.

    `ids`, `logprobs`, `entropies`: shape (n,), int32 and float32; `likely` and `open`: levels of colour, uint8;
    `others` and `chances`: shape (n, k), the alternatives, int32 with -1 where there are fewer, and float32. `known`:
    all ids in order, int32; `known_texts` and `known_bytes`: a line for each of them.
    """
    tokens = reply.logprobs or ()
    k = max((len(each.top) for each in tokens), default=0)
    others, chances = np.full((len(tokens), k), -1, np.int32), np.zeros((len(tokens), k), np.float32)
    for row, each in enumerate(tokens):
        others[row, : len(each.top)] = [other.id for other in each.top]
        chances[row, : len(each.top)] = [other.logprob for other in each.top]
    known = sorted({other.id: other.bytes for each in tokens for other in (each, *each.top)}.items())
    return {
        "title": _title(reply, label),
        "label": label,
        "summary": summary(tokens),
        "branches": isinstance(reply, Turn) and reply.chat is not None,
        "texts": token_texts(each.bytes for each in tokens),
        "known": np.array([token for token, _ in known], np.int32).tobytes(),
        "known_texts": "\n".join(token_text(piece) for _, piece in known),
        "known_bytes": "\n".join(piece.hex(" ") for _, piece in known),
        "n_top": k,
        "ids": np.array([each.id for each in tokens], np.int32).tobytes(),
        "logprobs": np.array([each.logprob for each in tokens], np.float32).tobytes(),
        "entropies": np.array([each.entropy for each in tokens], np.float32).tobytes(),
        "likely": bytes(likely_level(each.probability) for each in tokens),
        "open": bytes(open_level(each.entropy) for each in tokens),
        "others": others.tobytes(),
        "chances": chances.tobytes(),
    }


def _piece(turn: Turn, at: int, token: int) -> str:
    found = next((each for each in (turn.logprobs or ())[at].top if each.id == token), None)
    return str(token) if found is None else token_text(found.bytes)


def _title(reply: Reply, label: str) -> str:
    return label or reply.token_title()
