"""The KV map: every cell of a context, coloured by where its state came from, while it fills."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from typing import Any, Final

import numpy as np
import traitlets

from ipyllama.display.kv import ORIGINS, kv_bundle
from ipyllama.engine import KVBoard, KVMap
from ipyllama.errors import ClosedError
from ipyllama.vocab import Vocabulary
from ipyllama.widgets.view import Bundle, WidgetView, script, style

INTERVAL: Final = 0.15
"""Seconds between two states that are sent."""
QUIET: Final = 1.0
"""Seconds without a change after which the static form is brought up to date."""


class KVView(WidgetView):
    """A live view of a context. It reads the engine's bookkeeping, on a thread of its own, and never waits for it."""

    _esm = script("kv")
    _css = style("kv")
    state = traitlets.Any(help="everything, for a page that is new").tag(
        sync=True, to_json=lambda value, widget: widget._whole()
    )
    colours = traitlets.Dict({name: colour for name, (_, colour) in ORIGINS.items()}).tag(sync=True)

    def __init__(self, read: Callable[[], KVMap], board: KVBoard, vocab: Vocabulary) -> None:
        self._read, self._board, self._vocab = read, board, vocab
        self._sent: tuple[int, ...] = ()
        self._texts: dict[int, str] = {}  # of all tokens that were sent: a model that is gone tells of none
        self._following: Follow | None = None
        super().__init__()

    def bundle(self) -> Bundle:
        return kv_bundle(self._read())

    def close(self) -> None:
        if self._following is not None:
            self._following.end()
        super().close()

    def show_live(self) -> None:
        super().show_live()
        self._following = Follow(self, self._board)

    def send_changes(self) -> None:
        """Send what is new since the last time."""
        kv = self._read()
        tokens = _tokens(kv)
        keep = _common(self._sent, tokens)
        new = set(tokens[keep:]) - self._texts.keys()
        self.send({**_described(kv), "keep": keep, "pieces": self._pieces(new)}, [_packed(tokens[keep:])])
        self._sent = tokens

    def _whole(self) -> dict[str, Any]:
        kv = self._read()
        tokens = _tokens(kv)
        return {**_described(kv), "pieces": self._pieces(self._texts.keys() | set(tokens)), "tokens": _packed(tokens)}

    def _pieces(self, tokens: set[int]) -> dict[str, str]:
        """The texts of tokens, as a page wants them once."""
        for token in tokens - self._texts.keys():
            self._texts[token] = self._vocab.piece(token, special=True).decode("utf-8", "replace")
        return {str(token): self._texts[token] for token in tokens}


class Follow:
    """A thread that lets a view send what has changed, as long as the view is there."""

    def __init__(self, view: KVView, board: KVBoard) -> None:
        self._view, self._board = weakref.ref(view), board
        self._changed, self._ended = threading.Event(), False
        board.listen(self._changed.set)
        run = copy_context().run  # see worker.py
        threading.Thread(target=run, args=(self._follow,), name="ipyllama-kv-view", daemon=True).start()

    def end(self) -> None:
        self._ended = True
        self._board.forget(self._changed.set)
        self._changed.set()

    def _follow(self) -> None:
        stale = False
        while True:
            changed = self._changed.wait(QUIET if stale else None)
            self._changed.clear()
            view = self._view()
            if self._ended or view is None:
                return
            if changed:
                with suppress(ClosedError):  # unloaded just now: there is another change when it is gone
                    view.send_changes()
                threading.Event().wait(INTERVAL)
            else:
                view.refresh()
            stale = changed
            del view


def _described(kv: KVMap) -> dict[str, Any]:
    runs = [[len(run.tokens), run.start, list(run.sequences), run.origin] for run in kv.runs]
    return {"total": kv.n_cells, "runs": runs, "model": kv.model, "note": kv.note}


def _tokens(kv: KVMap) -> tuple[int, ...]:
    return tuple(token for run in kv.runs for token in run.tokens)


def _packed(tokens: tuple[int, ...]) -> bytes:
    """32 bits each, little-endian: what JavaScript reads."""
    return np.asarray(tokens, "<i4").tobytes()


def _common(old: tuple[int, ...], new: tuple[int, ...]) -> int:
    if new[: len(old)] == old:
        return len(old)
    return next((n for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
