"""The tree of a conversation, live: it follows what is said, and what is done in it the next cell goes by."""

from __future__ import annotations

import re
import shlex
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import traitlets

from ipyllama.display.tree import LONGEST, ConversationTree, TreeRow, short
from ipyllama.display.units import plural
from ipyllama.errors import LlamaError, UnknownTurn
from ipyllama.widgets.play import PlayView
from ipyllama.widgets.rows import rows_script, rows_style
from ipyllama.widgets.view import Bundle

if TYPE_CHECKING:
    from ipyllama.chat import Chat, Turn
    from ipyllama.prefix.where import Where

DETAIL: Final = 1200
"""Characters of a message and of its answer that are shown of the turn that is looked at."""
AT_ONCE: Final = 100
"""Turns of which it is found out where they are kept before the view is shown; of more it is afterwards."""
PAUSE: Final = 0.05
"""Seconds in which several changes become one."""
_PLAIN: Final = re.compile(r"[\w.-]+")


class TreeView(PlayView):
    """The turns of a conversation. With `cells` it belongs to a notebook's cells, and a fork is told as a cell."""

    _esm = rows_script("tree")
    _css = rows_style("tree")
    title = traitlets.Unicode().tag(sync=True)
    rows: traitlets.List[Any] = traitlets.List(help="what is shown of each turn, see `packed`").tag(sync=True)
    said = traitlets.Unicode(help="what was done last").tag(sync=True)

    def __init__(self, chat: Chat, *, cells: bool = False) -> None:
        self.chat, self._cells = chat, cells
        self._where: dict[str, Where] = {}
        self._asked: set[str] = set()
        self._lock = threading.Lock()
        tree = chat.tree()
        if len(tree.rows) <= AT_ONCE:
            self._look(chat.all_turns)
        super().__init__(title=tree.title, rows=[packed(row) for row in tree.rows])
        self._unwatch = chat.watch(self._later)

    def bundle(self) -> Bundle:
        tree = self.chat.tree()
        rows = [replace(row, where=self._where[row.id].places) if row.id in self._where else row for row in tree.rows]
        return dict(ConversationTree(tree.title, rows)._repr_mimebundle_())

    def refresh(self) -> None:
        self._look(self.chat.all_turns)
        super().refresh()

    def close(self) -> None:
        self._unwatch()
        super().close()

    # -- what can be done ---------------------------------------------------------------------------------

    def go_to(self, turn: str | None) -> None:
        """The next turn continues from the one with this id; None is the beginning."""
        self.chat.goto(None if turn is None else self._turn(turn))
        self.said = "The next cell begins at the beginning" if turn is None else f"The head is {self._called(turn)} now"

    def rename(self, turn: str, name: str) -> None:
        """Give it another name; an empty one takes it away. Raises `BadOption`."""
        renamed = self.chat.rename(self._turn(turn), name.strip() or None)
        called = f"called {renamed.name}" if renamed.name else "without a name"
        self.said = f"Turn {self.chat.number(renamed)} is {called} now"

    def remove(self, turn: str) -> None:
        """Forget it and all that continue it."""
        called = self._called(turn)
        more = len(self.chat.remove(self._turn(turn))) - 1
        others = f" and {plural(more, 'turn')} that continued it" if more else ""
        back = "them" if more else "it"
        self.said = f"{called[0].upper()}{called[1:]}{others} removed; Undo brings {back} back"

    def undo(self) -> None:
        """Take the last change back."""
        self.said = "The last change is undone" if self.chat.undo() else "There is nothing to undo"

    def locate(self, turns: Iterable[str]) -> None:
        """Find out where the prefixes of the turns with these ids are kept, and tell the front end."""
        known = {turn.id: turn for turn in self.chat.all_turns}
        here = [known[each] for each in turns if each in known]
        self._look(here)
        places = {turn.id: _packed_where(self._where[turn.id]) for turn in here}
        self.send({"kind": "where", "places": places})

    # -- what the front end says --------------------------------------------------------------------------

    def told(self, content: dict[str, Any]) -> None:
        match content:
            case {"kind": "where", "turns": list(turns)}:
                with self._lock:
                    self._asked.update(turn for turn in turns if isinstance(turn, str))
                self.worker.do(self._locate_asked, key="where")
            case {"kind": "detail", "turn": str(turn)}:
                self.worker.do(lambda: self._detail(turn), key="detail")
            case {"kind": "goto", "turn": str() | None as goal}:
                self._try(lambda: self.go_to(goal))
            case {"kind": "rename", "turn": str(turn), "name": str(name)}:
                self._try(lambda: self.rename(turn, name))
            case {"kind": "remove", "turn": str(turn)}:
                self._try(lambda: self.remove(turn))
            case {"kind": "undo"}:
                self._try(self.undo)

    def _try(self, what: Callable[[], None]) -> None:
        """Do it on the worker: after each change the conversation is saved."""

        def attempt() -> None:
            self.problem = self.said = ""
            try:
                what()
            except LlamaError as error:
                self.problem = str(error)

        self.worker.do(attempt)

    def _locate_asked(self) -> None:
        with self._lock:
            asked, self._asked = self._asked, set()
        self.locate(asked)

    def _detail(self, turn: str) -> None:
        found = next((each for each in self.chat.all_turns if each.id == turn), None)
        if found is None:
            return
        self.send(
            {
                "kind": "detail",
                "turn": turn,
                "message": _cut(found.message),
                "answer": _cut(found.answer) or "(nothing)",
                "fork": self._fork_code(found),
            }
        )

    def _look(self, turns: Sequence[Turn]) -> None:
        found = self.chat.llm.where([turn.ledger for turn in turns])
        self._where |= dict(zip((turn.id for turn in turns), found, strict=True))

    # -- following the conversation -----------------------------------------------------------------------

    def _later(self) -> None:
        self.worker.do(self._follow, key="follow")

    def _follow(self) -> None:
        time.sleep(PAUSE)
        tree = self.chat.tree()
        rows = [packed(row) for row in tree.rows]
        if (tree.title, rows) != (self.title, self.rows):
            with self.hold_sync():
                self.title, self.rows = tree.title, rows
            self.changed()

    def _turn(self, turn_id: str) -> Turn:
        found = next((turn for turn in self.chat.all_turns if turn.id == turn_id), None)
        if found is None:
            raise UnknownTurn("that turn is not in the conversation any more")
        return found

    def _called(self, turn_id: str) -> str:
        turn = self._turn(turn_id)
        return f"turn {self.chat.number(turn)}" + (f" ({turn.name})" if turn.name else "")

    def _fork_code(self, turn: Turn) -> str:
        """What to write to go on from a turn, in a notebook's cell or in Python."""
        name = turn.name or turn.id[:8]
        if not self._cells:
            return f'chat[{name!r}].ask("…")'
        after = name if _PLAIN.fullmatch(name) else shlex.quote(name)
        chat = "" if self.chat.name == "default" else f" --chat {shlex.quote(self.chat.name)}"
        return f"%%llama --after {after}{chat}\n"


def packed(row: TreeRow) -> list[Any]:
    """What the front end draws of a turn."""
    marks = row.first + 2 * row.head + 4 * row.stale
    message, answer = short(row.message, LONGEST), short(row.answer, LONGEST) or "(nothing)"
    return [row.id, row.number, row.name or "", message, answer, row.depth, marks]


def _packed_where(where: Where) -> list[Any]:
    return [str(where), where.places]


def _cut(text: str) -> str:
    return text.strip() if len(text) <= DETAIL else f"{text[:DETAIL].strip()}…"
