"""Conversations on disk: an immutable file for each turn, and one for each kernel that says which of them count.

    turns/ID.json       what was asked and answered; only the difference to the turn before it
    trees/KERNEL.json   turns in their order, the head, names; written anew after each change

Files are written whole or not at all, so whoever is killed loses at most the last change. Two kernels on a notebook
share turns and never write the same file otherwise. Nothing that is read is executed or trusted to be well formed.

A turn's file is deleted when no tree has the turn and this kernel cannot undo its removal; another kernel that can
writes it again. Whoever writes, reads or deletes turns holds the folder's lock, so that none goes between the two.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from ipyllama.chat.parents import with_all_before
from ipyllama.chat.tree import Tree
from ipyllama.chat.turn import Turn
from ipyllama.chat.written import checked, is_id, of_turn, to_turn
from ipyllama.errors import BadOption, BadState, StoreError
from ipyllama.prefix.store.local import LocalBackend

if TYPE_CHECKING:
    from ipyllama.chat.chat import Chat
    from ipyllama.chat.speaker import Speaker

FORMAT: Final = 1
TREES: Final = 10
"""Of the latest kernels that are kept."""
UNUSED: Final = 64
"""Turns that this kernel forgets before it looks which files nobody needs."""
_LARGEST: Final = 64 << 20
"""Bytes of a file that is read."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A conversation as it was left."""

    turns: tuple[Turn, ...]
    head: Turn | None
    replaced: Mapping[str, str]
    """of turns that current ones continue, by id, what came in their place"""
    model: str
    """name of the model that answered"""
    when: float
    """seconds since the epoch"""
    n_before: int = 0
    """how many older ones there are"""
    reread: bool = False
    """other weights answered: the turns are without tokens, what was said is read anew"""


class SavedChat:
    """The files of one conversation. Making one touches nothing."""

    def __init__(self, folder: str | os.PathLike[str], warn: Callable[[str], None]) -> None:
        self._backend, self._warn = LocalBackend(folder), warn
        self._own = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{secrets.token_hex(3)}"
        self._written: dict[str, tuple[Turn, str]] = {}  # and the digest of what is in its file
        self._listed: set[str] = set()  # turns that the own tree file has, so that nobody deletes them
        self._look_at = UNUSED
        self._failed = False

    def save(self, tree: Tree, llm: Speaker) -> None:
        """Write down what is new. Where nothing can be written that is told once, and the conversation goes on."""
        try:
            with self._alone() as alone:
                if first := not self._backend.exists(f"trees/{self._own}.json"):
                    self._listed = set()
                turns = with_all_before(tree.turns)
                for turn in turns:
                    self._save_turn(turn)
                self._write(f"trees/{self._own}.json", _of_tree(tree, turns, llm))
                self._listed = {turn.id for turn in turns}
                if alone and (first or self._n_unused() >= self._look_at):
                    self._forget(tree.undoable())
        except (StoreError, OSError) as error:
            if not self._failed:
                self._failed = True
                self._warn(f"this conversation is not saved: {error}")

    def begin(self) -> SavedChat:
        """The same folder, for a conversation that begins anew."""
        return SavedChat(self._backend.folder, self._warn)

    def load(self, chat: Chat, nth: int = 1) -> Saved | None:
        """What was left there last, by another kernel or before `begin`, as turns of `chat`; with `nth` 2 the time
        before. None where there is nothing. One that took everything back left nothing. Raises `BadState` where it
        cannot be read."""
        if not self._trees():
            return None
        with self._alone():
            left = [name for name, _ in self._trees() if name != f"trees/{self._own}.json" and not self._is_empty(name)]
            return replace(self._read_tree(left[nth - 1], chat), n_before=len(left) - nth) if nth <= len(left) else None

    def _is_empty(self, name: str) -> bool:
        """Whether it is known to have no turns."""
        try:
            return self._read(name).get("turns") == []
        except BadState:
            return False

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        """Without other processes in the folder; False where it cannot be locked."""
        with ExitStack() as stack:
            try:
                stack.enter_context(self._backend.lock())
                alone = True
            except StoreError:
                alone = False
            yield alone

    def _save_turn(self, turn: Turn) -> None:
        turn_before, digest_before = self._written.get(turn.id, (None, ""))
        there = turn.id in self._listed or (turn_before and self._backend.exists(f"turns/{turn.id}.json"))
        if there and turn is turn_before:
            return
        content = of_turn(turn)
        digest = _digest(content)
        if not there or digest != digest_before:
            self._write(f"turns/{turn.id}.json", content)
        self._written[turn.id] = turn, digest

    def _read_tree(self, name: str, chat: Chat) -> Saved:
        content = self._read(name)
        turns: dict[str, Turn] = {}
        try:
            names = {str(key): str(value) for key, value in content["names"].items()}
            order = [str(each) for each in content["turns"]]
            current = [self._read_turn(each, turns, chat).with_name(names.get(each)) for each in order]
            head = next((turn for turn in current if turn.id == content["head"]), None)
            known = {turn.id for turn in current}
            replaced = {old: new for old, new in content["replaced"].items() if old not in known and new in known}
            saved = Saved(tuple(current), head, replaced, str(content["model"]), float(content["when"]))
            return saved if content["weights"] == chat.llm.weights else reread(saved)
        except (KeyError, TypeError, ValueError, AttributeError, BadOption) as error:
            raise BadState(f"the saved conversation in {self._backend.folder / name} is damaged: {error!r}") from error

    def _read_turn(self, wanted: str, known: dict[str, Turn], chat: Chat) -> Turn:
        """A turn with all before it; `known` are those that were read already."""
        missing: list[tuple[str, dict[str, Any]]] = []
        at: str | None = wanted
        while at is not None and at not in known:
            if any(at == seen for seen, _ in missing):
                raise ValueError("a turn comes before itself")
            content = self._read(f"turns/{checked(at)}.json")
            missing.append((at, content))
            at = content["parent"]
        for each, content in reversed(missing):
            parent = known[content["parent"]] if content["parent"] is not None else None
            known[each] = to_turn(each, content, parent, chat)
            self._written[each] = known[each], _digest(content)
        return known[wanted]

    def _trees(self) -> list[tuple[str, float]]:
        """The tree files and when they were written, the latest first."""
        found = [(item.name, item.used) for item in self._backend.items("trees") if item.name.endswith(".json")]
        return sorted(found, key=lambda each: -each[1])

    def _n_unused(self) -> int:
        return len(self._written) - len(self._listed)

    def _forget(self, undoable: set[str]) -> None:
        """Delete trees but the latest, then turns that none of these has and that cannot come back here."""
        for name, _ in self._trees()[TREES:]:
            self._backend.delete(name)
        try:
            trees = [self._read(name) for name, _ in self._trees()]
            needed = undoable.union(*(each["turns"] + each["before"] for each in trees))
        except (BadState, KeyError, TypeError):
            return  # one cannot be read: nobody knows what it has
        for item in list(self._backend.items("turns")):
            turn_id = PurePosixPath(item.name).stem
            if turn_id not in needed and is_id(turn_id) and item.name == f"turns/{turn_id}.json":
                self._backend.delete(item.name)
                self._written.pop(turn_id, None)
        self._look_at = self._n_unused() + UNUSED

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        data = json.dumps({"format": FORMAT, "sha256": _digest(content), "content": content}, separators=(",", ":"))
        self._backend.write(name, [memoryview(data.encode())])

    def _read(self, name: str) -> dict[str, Any]:
        try:
            with self._backend.open(name) as file:
                content = json.loads(file.read(_LARGEST))
        except (OSError, ValueError, RecursionError) as error:
            raise BadState(f"the saved conversation cannot be read: {self._backend.folder / name}: {error}") from error
        match content:
            case {"format": format, "sha256": str(digest), "content": dict(inner)} if (
                format == FORMAT and digest == _digest(inner)
            ):
                return inner
        raise BadState(f"{self._backend.folder / name} is damaged, or no saved conversation of this version")


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()


def reread(saved: Saved) -> Saved:
    """The same without token ids, which are another vocabulary's: what was said is put into tokens when it is next
    read."""
    made: dict[str, Turn] = {}
    for turn in with_all_before(saved.turns):
        parent = made[turn.parent.id] if turn.parent else None
        made[turn.id] = turn.without_tokens(parent)
    return replace(
        saved,
        turns=tuple(made[turn.id] for turn in saved.turns),
        head=made[saved.head.id] if saved.head else None,
        replaced={made[old].id: made[new].id for old, new in saved.replaced.items() if old in made},
        reread=True,
    )


def _of_tree(tree: Tree, turns: Sequence[Turn], llm: Speaker) -> dict[str, Any]:
    """`turns` are those of the tree and all before them."""
    current = [turn.id for turn in tree.turns]
    return {
        "model": llm.name,
        "weights": llm.weights,
        "when": time.time(),
        "turns": current,
        "before": sorted({turn.id for turn in turns}.difference(current)),
        "head": tree.head.id if tree.head else None,
        "names": {turn.id: turn.name for turn in tree.turns if turn.name},
        "replaced": tree.replaced,
    }
