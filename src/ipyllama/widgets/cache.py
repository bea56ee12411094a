"""The prefix memory, live: what is kept, what it spares; pin, delete, verify, set the limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import traitlets

from ipyllama.display.cache import cache_table, pinned_text, prefix_table, preview
from ipyllama.display.progress import INTERVAL, Progress, line_bundle
from ipyllama.display.units import format_ago, format_bytes, format_count, format_limit, format_seconds, plural
from ipyllama.errors import LlamaError
from ipyllama.prefix.ends import texts_of
from ipyllama.prefix.listing import PrefixInfo, entries, remove
from ipyllama.prefix.location import origin
from ipyllama.prefix.pins import pinned_bytes
from ipyllama.prefix.sizes import parse_bytes
from ipyllama.widgets.front import in_notebook
from ipyllama.widgets.play import PlayView
from ipyllama.widgets.rows import rows_script, rows_style
from ipyllama.widgets.view import Bundle
from ipyllama.widgets.worker import Worker

if TYPE_CHECKING:
    from ipyllama.prefix.memory import PrefixMemory
    from ipyllama.prefix.records import Stats

UNDO: Final = 8.0
"""Seconds in which a deletion can be taken back: only then it is done."""
AT_ONCE: Final = 0.3
"""Seconds that a cell waits for a small store to be read."""
IN_TEXT: Final = 50
"""Rows of the static forms."""
READING: Final = "reading what is kept"


class _Stopped(Exception):
    """The reader of the view has stopped it."""


class CacheView(PlayView):
    """What a prefix memory keeps. Whatever reads the store does so on a thread of its own."""

    _esm = rows_script("cache")
    _css = rows_style("cache")
    title = traitlets.Unicode().tag(sync=True)
    facts = traitlets.Dict(help="of the whole store, see `_facts`").tag(sync=True)
    rows: traitlets.List[Any] = traitlets.List(help="what is shown of each prefix, see `packed`").tag(sync=True)
    reading = traitlets.Dict(help="what is under way: label, line, share; empty if nothing is").tag(sync=True)
    said = traitlets.Unicode(help="what was done last").tag(sync=True)
    undoable = traitlets.Bool(help="there is a deletion that can be taken back").tag(sync=True)
    question = traitlets.Dict(help="what is to be confirmed: limit, line; empty if nothing is").tag(sync=True)

    def __init__(self, memory: PrefixMemory) -> None:
        self.memory = memory
        self.prefixes: list[PrefixInfo] | None = None
        self._texts: dict[str, str] | None = None
        self._stats: Stats | None = None
        self._going: list[str] = []
        self._timer: threading.Timer | None = None
        self._stop = threading.Event()
        self._verifier = Worker("ipyllama-verify")
        where = str(memory.location or "RAM only")
        self._model = memory.model
        super().__init__(
            title=f"Prefix memory in {where} ({origin(memory)})", reading={"label": READING, "line": READING}
        )

    def bundle(self) -> Bundle:
        if self.prefixes is None and not self.slot:
            self.read()
        if self.prefixes is None or self._stats is None:
            return line_bundle(READING)
        on, place = not self.memory.paused, self.memory.location or "RAM"
        status = cache_table(self._stats, origin(self.memory), on=on, model=self._model)._repr_mimebundle_()
        empty = f"nothing is kept in {place} yet"
        listed = prefix_table(self.prefixes, self._texts, now=time.time(), number=IN_TEXT, empty=empty)
        table = listed._repr_mimebundle_()
        return {
            "text/plain": f"{status['text/plain']}\n\n{table['text/plain']}",
            "text/html": f'{status["text/html"]}\n<div style="height:.8em"></div>\n{table["text/html"]}',
        }

    def close(self) -> None:
        self._stop.set()
        if self._timer is not None:
            self._timer.cancel()
            self.worker.do(self._delete)  # who closes the view does not take it back
        super().close()

    # -- what can be done ---------------------------------------------------------------------------------

    def read(self) -> None:
        """Look at everything anew: reads the header of each block."""
        from ipyllama.llm import loaded

        stats = self.memory.stats()
        prefixes = entries(self.memory, progress=self._told_by(READING, "prefixes"))
        texts = texts_of(self.memory, prefixes, loaded())
        self._stats, self.prefixes, self._texts = stats, prefixes, texts
        now, going = time.time(), set(self._going)
        rows = [packed(info, texts, now) for info in prefixes if info.name not in going]
        with self.hold_sync():
            self.facts, self.rows, self.reading = self._facts(stats), rows, {}

    def pin(self, name: str) -> None:
        """Keep a prefix whatever the limits."""
        self.memory.pin(name)
        self.said = f"{name} is pinned: no limit and no age deletes it"

    def unpin(self, name: str) -> None:
        """Let the limits hold for it again."""
        self.memory.unpin(name)
        self.said = f"{name} is not pinned any more"

    def delete(self, names: Sequence[str]) -> None:
        """Delete prefixes, unless `undo` comes within a few seconds."""
        if pinned := [info.name for info in self.prefixes or () if info.name in names and pinned_text(info) == "yes"]:
            self.problem = f"{', '.join(pinned)} is pinned: unpin it first"
            return
        if self._timer is not None:
            self._timer.cancel()
        self._going += [name for name in names if name not in self._going]
        self.rows = [row for row in self.rows if row[0] not in self._going]
        self.undoable = True
        self.said = f"{', '.join(self._going)} will be deleted in {UNDO:.0f} s"
        self._timer = threading.Timer(UNDO, lambda: self._try(self._delete))
        self._timer.daemon = True
        self._timer.start()

    def undo(self) -> None:
        """Take a deletion back that is not done yet."""
        if self._timer is None:
            self.said = "There is nothing to undo"
            return
        self._timer.cancel()
        kept, self._going, self._timer, self.undoable = ", ".join(self._going), [], None, False
        self.said = f"{kept} stays"

    def set_limit(self, limit: str, *, sure: bool = False) -> None:
        """Another limit on disk, or in RAM where nothing is on disk. Where that deletes something, it is asked about
        first, unless `sure`. Raises `BadOption` and `StoreFull`."""
        self.question = {}
        wanted = parse_bytes(limit)
        memory, stats = self.memory, self.memory.stats()
        held = stats.disk_bytes if memory.location else stats.ram_bytes
        if held > wanted and not sure:
            line = f"{format_bytes(held - wanted)} have no room in {format_limit(wanted)}: what spares least is deleted"
            self.question = {"limit": limit, "line": line}
            return
        if memory.location:
            memory.bytes_limit = wanted
            deleted = memory.reduce_size()
        else:
            deleted = stats.ram_blocks
            memory.ram.reduce(wanted)
            deleted -= len(memory.ram)
        over = f"; {plural(deleted, 'block')} deleted" if deleted else ""
        self.said = f"The limit is {format_limit(wanted)} in this session{over}"

    def verify(self) -> None:
        """Read everything on disk; what is damaged is set aside."""
        self._stop.clear()
        self.memory.flush()
        try:
            damaged = self.memory.verify(self._told_by("checking", "blocks"))
        except _Stopped:
            self.said = "The check was stopped"
        else:
            self.said = f"{plural(len(damaged), 'block')} damaged and set aside" if damaged else "All blocks are sound"
        finally:
            self.reading = {}

    # -- what the front end says --------------------------------------------------------------------------

    def told(self, content: dict[str, Any]) -> None:
        match content:
            case {"kind": "pin", "name": str(name)}:
                self._try(lambda: self.pin(name))
            case {"kind": "unpin", "name": str(name)}:
                self._try(lambda: self.unpin(name))
            case {"kind": "delete", "name": str(name)}:
                self._try(lambda: self.delete([name]), reads=False)
            case {"kind": "undo"}:
                self._try(self.undo)
            case {"kind": "limit", "limit": str(limit), "sure": bool(sure)}:
                self._try(lambda: self.set_limit(limit, sure=sure))
            case {"kind": "keep"}:
                self.question = {}
            case {"kind": "verify"}:
                self._verifier.do(lambda: self._attempt(self.verify), key="verify")
            case {"kind": "stop"}:
                self._stop.set()
            case {"kind": "read"}:
                self._try(lambda: None)
            case {"kind": "look"}:
                self.worker.do(self._look, key="look")

    def _ipython_display_(self) -> None:
        if self.prefixes is None and in_notebook():
            done = threading.Event()
            self.worker.do(lambda: self._first(done))
            if not done.wait(AT_ONCE):
                super()._ipython_display_()
                self.worker.do(self.refresh)
                return
        super()._ipython_display_()

    def _first(self, done: threading.Event) -> None:
        self._attempt(lambda: None)
        done.set()

    def _look(self) -> None:
        """Read again if something has changed."""
        if self.memory.stats() != self._stats:
            self._attempt(lambda: None)

    def _try(self, what: Callable[[], None], *, reads: bool = True) -> None:
        self.worker.do(lambda: self._attempt(what, reads=reads))

    def _attempt(self, what: Callable[[], None], *, reads: bool = True) -> None:
        self.problem = ""
        for step in (what, self.read) if reads else (what,):  # also what could not be done: the rows may be old
            try:
                step()
            except LlamaError as error:
                self.problem, self.reading = str(error), {}
        self.changed()

    def _delete(self) -> None:
        going, self._going, self._timer, self.undoable = self._going, [], None, False
        if not going:
            return
        gone = remove(self.memory, going)
        self.said = f"{plural(gone.prefixes, 'prefix', 'prefixes')} deleted: {format_bytes(gone.nbytes)}"

    def _told_by(self, label: str, unit: str) -> Callable[[int, int | None, str], None]:
        """Shows progress, ten times a second at most."""
        shown = time.monotonic()

        def progress(done: int, total: int | None, name: str) -> None:
            nonlocal shown
            if self._stop.is_set() and label != READING:
                raise _Stopped
            if (now := time.monotonic()) - shown >= 2 * INTERVAL:
                shown = now
                at = Progress(label, done, total or 0, unit)
                self.reading = {"label": label, "line": str(at), "share": at.share}

        return progress

    def _facts(self, stats: Stats) -> dict[str, Any]:
        disk = self.memory.location is not None
        used, limit = (stats.disk_bytes, stats.bytes_limit) if disk else (stats.ram_bytes, stats.ram_limit)
        blocks = stats.disk_blocks if disk else stats.ram_blocks
        pinned = pinned_bytes(self.memory)
        spared = f" · {format_seconds(stats.counts.seconds)} spared in this session" if stats.counts.hits else ""
        beside = f" · {format_bytes(stats.ram_bytes)} in RAM" if disk else ""
        held = f" · {format_bytes(pinned)} pinned" if pinned else ""
        place = "on disk" if disk else "in RAM"
        line = f"{format_bytes(used)} of {format_limit(limit)} {place}, {plural(blocks, 'block')}{held}{beside}{spared}"
        shares = [min(1.0, part / limit) if limit else 0.0 for part in (pinned, used)]
        off = "" if not self.memory.paused else "off: nothing is looked up or saved (%llama cache on)"
        return {
            "line": line,
            "pinned": shares[0],
            "used": shares[1],
            "limit": format_limit(limit).replace("iB", ""),
            "disk": disk,
            "texts": self._texts is not None,
            "problem": stats.problem or off,
        }


def packed(info: PrefixInfo, texts: dict[str, str] | None, now: float) -> list[Any]:
    """What the front end draws of a prefix: numbers to sort by, and how they are written."""
    numbers = [info.n_tokens, info.own_bytes, 0.0 if info.problem else info.seconds, info.hits, info.used or now]
    written = [
        format_count(info.n_tokens) if info.n_tokens else "?",
        format_bytes(info.own_bytes),
        "" if info.problem else format_seconds(info.seconds),
        format_count(info.hits) if info.hits else "",
        "now" if info.used is None else format_ago(max(0.0, now - info.used)),
    ]
    shared = format_bytes(info.shared_bytes) if info.shared_bytes else ""
    text = "" if texts is None else preview(info, texts)
    places = ", ".join(info.places)
    return [info.name, info.model or "?", numbers, written, shared, places, pinned_text(info), text, info.problem]
