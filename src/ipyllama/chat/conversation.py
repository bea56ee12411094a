"""A conversation as it stands: its tree of turns, looked at, changed and saved. `Chat` asks in it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from types import EllipsisType
from typing import TYPE_CHECKING, Any

from ipyllama.chat.messages import Messages, conversation
from ipyllama.chat.outline import children_of, located, tree_rows
from ipyllama.chat.speaker import Speaker
from ipyllama.chat.tree import Tree
from ipyllama.chat.turn import Turn, check_name
from ipyllama.errors import BadOption, UnknownTurn

if TYPE_CHECKING:
    from ipyllama.chat.saved import SavedChat
    from ipyllama.display.tree import ConversationTree


class Conversation:
    """The turns of a conversation and its head, the turn that the next one continues from."""

    def __init__(self, llm: Speaker, system: str | None, name: str) -> None:
        self._llm, self.name = llm, name
        self._system = system
        self._saved: SavedChat | None = None
        self._watchers: list[Callable[[], None]] = []
        self._tree = Tree(self._save)

    @property
    def llm(self) -> Speaker:
        """The model that answers; where it was unloaded and loaded again, it goes on."""
        self._llm = self._llm.standing()
        return self._llm

    @property
    def head(self) -> Turn | None:
        """The turn that the next one continues from, None at the beginning."""
        return self._tree.head

    def path(self) -> tuple[Turn, ...]:
        """The turns from the beginning of the conversation to the head."""
        return self.head.path if self.head else ()

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The turns from the beginning of the conversation to the head."""
        return self.path()

    @property
    def all_turns(self) -> tuple[Turn, ...]:
        """The turns of every branch, in the order of their first running; without what a cell answered earlier."""
        return self._tree.turns

    @property
    def stale(self) -> tuple[Turn, ...]:
        """Turns that answered after one which has since been answered differently."""
        return self._tree.stale()

    @property
    def begun(self) -> bool:
        """Whether anything was ever said here, be it forgotten again."""
        return self._tree.begun

    def tree(self, *, where: bool = False) -> ConversationTree:
        """The whole tree, to look at; with `where` each turn tells where its prefix is kept."""
        from ipyllama.display.tree import ConversationTree
        from ipyllama.display.units import plural

        rows, here = tree_rows(self._tree), len(self)
        if where:
            rows = located(rows, self)
        title = f"Chat {self.name!r} with {self.llm.name}: {plural(len(rows), 'turn')}"
        return ConversationTree(title + (f", {here} of them on the way to the head" if here != len(rows) else ""), rows)

    def children(self) -> dict[str | None, list[Turn]]:
        """By the id of a turn, those that continue it, in the order of their first running; under None those at the
        beginning."""
        return children_of(self._tree)

    def cells(self) -> list[str]:
        """The code of notebook cells that ask what was asked up to the head, one for each turn, and Python cells where
        they need variables."""
        from ipyllama.magics.write import write_cells

        return write_cells(self.path(), self.name)

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` after every change of the tree, on the thread that made it: it has to be quick. Returns what
        ends that."""
        self._watchers.append(changed)
        return lambda: self._watchers.remove(changed) if changed in self._watchers else None

    def __getitem__(self, name: str) -> Turn:
        """A turn by its name, its number, its cell, or the beginning of its id or its cell's. Raises `UnknownTurn`."""
        return self._tree.named(name)

    def keep(self, folder: str | os.PathLike[str]) -> None:
        """Save the conversation in a folder, now and after every change. Kernels may share it."""
        from ipyllama.chat.saved import SavedChat

        self._saved = SavedChat(folder, lambda problem: warnings.warn(problem, stacklevel=2))
        if self.all_turns:
            self._save(self._tree)

    def use(self, llm: Speaker) -> None:
        """Let this model answer from now on. One with other weights reads anew what was said."""
        if llm.weights != self.llm.weights:
            from ipyllama.chat.saved import Saved, reread

            there = reread(Saved(self._tree.turns, self._tree.head, self._tree.replaced, llm.name, 0.0))
            self._tree = Tree(self._save)
            self._tree.adopt(there.turns, there.head, there.replaced)
            self._tree.settle()
        changed, self._llm = llm.weights != self.llm.weights, llm
        if changed:
            self._tell()

    def number(self, turn: Turn) -> int:
        """The number of a turn in the tree, from 1; 0 for one that is not in it any more."""
        return next((n for n, other in enumerate(self.all_turns, start=1) if other.id == turn.id), 0)

    def export(self, path: str | os.PathLike[str]) -> None:
        """Write what was said up to the head: Markdown into a file that ends in .md, messages into one that ends in
        .json. Raises `BadOption` for other names and for what cannot be written."""
        from ipyllama.chat.export import export

        export(self, path)

    def goto(self, turn: Turn | str | None) -> None:
        """Let the next turn continue from this one; None is the beginning."""
        self._tree.go_to(None if turn is None else self._present(turn))

    def remove(self, turn: Turn | str) -> tuple[Turn, ...]:
        """Forget a turn and all that continue it; returns them. `undo` brings them back."""
        return self._tree.remove(self._present(turn))

    def rename(self, turn: Turn | str, name: str | None) -> Turn:
        """Give a turn another name, or none. A name belongs to one turn: another that had it loses it."""
        if name is not None:
            check_name(name)
        return self._tree.rename(self._present(turn), name)

    def undo(self) -> bool:
        """Take back the last change of the tree: an answer, `goto`, `remove` or `rename`. False if there is none."""
        return self._tree.undo()

    @property
    def system(self) -> str | None:
        """The system prompt that the next turn inherits."""
        return self.head.system if self.head else self._system

    @property
    def messages(self) -> Messages:
        """The conversation up to the head, as OpenAI-style dicts."""
        return self.head.messages if self.head else conversation(self._system, ())

    def reset(self, system: str | EllipsisType | None = ...) -> None:
        """Forget every turn: back to the beginning, with the system prompt of the beginning or with another one. What
        was kept on disk stays there: `resume` brings it back.

        A job that is still running then ends without a place in the conversation.
        """
        if system is not ...:
            self._system = system
        self._tree = Tree(self._save)
        if self._saved is not None:
            self._saved = self._saved.begin()
        self._tell()

    def __len__(self) -> int:
        return len(self.turns)

    def __bool__(self) -> bool:
        return True  # a chat without turns is still a chat

    def __repr__(self) -> str:
        return f"<{self._title()}>"

    def _title(self) -> str:
        return f"Chat {self.name!r} with {self.llm.name}: {len(self)} turn{'s' * (len(self) != 1)}"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        from ipyllama.display.history import history_bundle

        return history_bundle(self._title(), self.messages)

    def _present(self, turn: Turn | str) -> Turn:
        """A turn by what names it in `self[...]`, or one that somebody holds, as it is now. Raises `UnknownTurn`."""
        if isinstance(turn, str):
            return self[turn]
        if not isinstance(turn, Turn):
            raise BadOption(f"a turn or what it is called is needed: got {type(turn).__name__}")
        found = self._tree.newest(turn)
        if self.number(found):
            return found
        if turn.chat is not None and turn.chat is not self:
            raise UnknownTurn(f"this turn is of another conversation, '{turn.chat.name}': turn.ask continues it there")
        raise UnknownTurn("this turn is no longer in the conversation: undo brings back what was removed")

    def _save(self, tree: Tree) -> None:
        if tree is not self._tree:
            return
        if self._saved is not None:
            self._saved.save(tree, self.llm)
        self._tell()

    def _tell(self) -> None:
        for changed in tuple(self._watchers):
            changed()
