"""Conversations on disk: an immutable file for each turn, and one for each kernel that says which of them count.

    turns/ID.json       what was asked and answered; only the difference to the turn before it
    trees/KERNEL.json   turns in their order, the head, names; written anew after each change

Files are written whole or not at all, so whoever is killed loses at most the last change. Two kernels on a notebook
share turns and never write the same file otherwise. Nothing that is read is executed or trusted to be well formed.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final

from ipyllama.chat.tree import Tree, with_all_before
from ipyllama.chat.turn import Place, Turn
from ipyllama.errors import BadOption, BadState, StoreError
from ipyllama.ledger import Ledger, Segment, common_prefix
from ipyllama.options import GenerateOptions
from ipyllama.prefix.store.local import LocalBackend
from ipyllama.reply import Reply, Timings, Usage

if TYPE_CHECKING:
    from ipyllama.chat.chat import Chat
    from ipyllama.chat.speaker import Speaker

FORMAT: Final = 1
TREES: Final = 10
"""Of the latest kernels that are kept."""
_PLACE: Final = ("message", "system", "cell", "run", "sample", "n_samples", "think", "dropped", "summary", "moved")
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
    reread: bool = False
    """other weights answered: the turns are without tokens, what was said is read anew"""


class SavedChat:
    """The files of one conversation. Making one touches nothing."""

    def __init__(self, folder: str | os.PathLike[str], warn: Callable[[str], None]) -> None:
        self._backend, self._warn = LocalBackend(folder), warn
        self._own = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{secrets.token_hex(3)}"
        self._written: dict[str, tuple[str, ...]] = {}  # the notes of each turn: all else follows from its id
        self._failed = False

    def save(self, tree: Tree, llm: Speaker) -> None:
        """Write down what is new. Where nothing can be written that is told once, and the conversation goes on."""
        try:
            for turn in with_all_before(tree.turns):
                if self._written.get(turn.id) != turn.notes:
                    self._write(f"turns/{turn.id}.json", _of_turn(turn))
                    self._written[turn.id] = turn.notes
            first = not self._backend.exists(f"trees/{self._own}.json")
            self._write(f"trees/{self._own}.json", _of_tree(tree, llm))
            if first:
                self._forget_old()
        except (StoreError, OSError) as error:
            if not self._failed:
                self._failed = True
                self._warn(f"this conversation is not saved: {error}")

    def begin(self) -> SavedChat:
        """The same folder, for a conversation that begins anew."""
        return SavedChat(self._backend.folder, self._warn)

    def load(self, chat: Chat) -> Saved | None:
        """What was left there last, by another kernel or before `begin`, as turns of `chat`; None where there is
        nothing. One that took everything back left nothing. Raises `BadState` where it cannot be read."""
        for name, _ in self._trees():
            if name != f"trees/{self._own}.json" and (saved := self._read_tree(name, chat)).turns:
                return saved
        return None

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
            content = self._read(f"turns/{_checked(at)}.json")
            missing.append((at, content))
            at = content["parent"]
        for each, content in reversed(missing):
            parent = known[content["parent"]] if content["parent"] is not None else None
            known[each] = _to_turn(each, content, parent, chat)
        return known[wanted]

    def _trees(self) -> list[tuple[str, float]]:
        """The tree files and when they were written, the latest first."""
        found = [(item.name, item.used) for item in self._backend.items("trees") if item.name.endswith(".json")]
        return sorted(found, key=lambda each: -each[1])

    def _forget_old(self) -> None:
        for name, _ in self._trees()[TREES:]:
            self._backend.delete(name)

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


def _of_tree(tree: Tree, llm: Speaker) -> dict[str, Any]:
    return {
        "model": llm.name,
        "weights": llm.weights,
        "when": time.time(),
        "turns": [turn.id for turn in tree.turns],
        "head": tree.head.id if tree.head else None,
        "names": {turn.id: turn.name for turn in tree.turns if turn.name},
        "replaced": tree.replaced,
    }


def _of_turn(turn: Turn) -> dict[str, Any]:
    parent = turn.parent
    before = parent.ledger if parent else Ledger()
    kept = _kept(before, turn.ledger)
    n_prompt = common_prefix(parent.prompt, turn.prompt) if parent else 0
    return {
        "parent": parent.id if parent else None,
        "kept": kept,
        "segments": [[s.sampled, s.together, s.tokens] for s in _after(turn.ledger, kept)],
        "prompt": [n_prompt, turn.prompt[n_prompt:]],
        "place": {key: getattr(turn, key) for key in _PLACE},
        "options": asdict(turn.options),
        "reply": {
            field.name: getattr(turn, field.name)
            for field in fields(Reply)
            if field.name not in ("usage", "timings", "why", "replayed", "logprobs")
        },
        "usage": asdict(turn.usage),
        "timings": asdict(turn.timings),
    }


def _to_turn(turn_id: str, content: dict[str, Any], parent: Turn | None, chat: Chat) -> Turn:
    ledger = (parent.ledger if parent else Ledger()).head(content["kept"])
    segments = [
        Segment(_ids(tokens), bool(sampled), bool(together)) for sampled, together, tokens in content["segments"]
    ]
    n, rest = content["prompt"]
    options = content["options"]
    reply = content["reply"] | {"tokens": _ids(content["reply"]["tokens"]), "notes": tuple(content["reply"]["notes"])}
    known: dict[str, Any] = content["place"]
    place = Place(
        parent=parent,
        chat=chat,
        prompt=(parent.prompt[:n] if parent else "") + str(rest),
        options=GenerateOptions().replace_from(options),
        **(known | {"summary": tuple(known["summary"]) if known["summary"] else None}),
    )
    made = Turn.of(
        Reply(usage=Usage(**content["usage"]), timings=Timings(**content["timings"]), **reply),
        place,
        Ledger((*ledger.segments, *segments)),
    )
    if made.id != turn_id:
        raise ValueError("its id is not that of its content")
    return made


def _kept(before: Ledger, ledger: Ledger) -> int:
    """How many leading tokens both have, cut into the same segments."""
    kept = 0
    for one, other in zip(before.segments, ledger.segments, strict=False):
        if one != other:
            break
        kept += len(one.tokens)
    return kept


def _after(ledger: Ledger, kept: int) -> list[Segment]:
    found, at = [], 0
    for segment in ledger.segments:
        if at >= kept:
            found.append(segment)
        at += len(segment.tokens)
    return found


def _ids(tokens: list[Any]) -> tuple[int, ...]:
    if not all(isinstance(token, int) and token >= 0 for token in tokens):
        raise ValueError("token ids are whole numbers")
    return tuple(tokens)


def _checked(turn_id: str) -> str:
    if len(turn_id) != 16 or not set(turn_id) <= set("0123456789abcdef"):
        raise ValueError(f"{turn_id!r} is not the id of a turn")
    return turn_id
