"""What a prefix memory holds, as people see it: chains of blocks, each listed by its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Literal

from ipyllama.errors import BadOption, BadState, StoreError
from ipyllama.prefix.store.evict import held
from ipyllama.prefix.store.heads import holding, release

if TYPE_CHECKING:
    from ipyllama.models import Progress
    from ipyllama.prefix.memory import PrefixMemory
    from ipyllama.prefix.records import Place
    from ipyllama.prefix.store.block import Block
    from ipyllama.prefix.store.blocks import BlockStore, Entry

Sort = Literal["age", "size", "saved"]
TAIL: Final = 48
"""Tokens that tell one prefix from another."""
SHORT: Final = 8
"""Hex digits of a name, more where two begin alike."""
_ROOT: Final = 16
"""Hex digits by which the name of a file tells the block before it."""


@dataclass(frozen=True, slots=True)
class PrefixInfo:
    """A prefix that is kept: the blocks from the beginning to one that no other stands on."""

    name: str
    """hex digits of its last block's key, enough to tell it from the others"""
    root: str
    """hex digits that stand for the model and its settings"""
    model: str
    """the model's name; empty where nobody knows it"""
    n_tokens: int
    own_bytes: int
    """of blocks that no other prefix needs"""
    shared_bytes: int
    """of blocks that other prefixes stand on as well"""
    seconds: float
    """what computing all of it took"""
    used: float | None
    """when it was last read or written, seconds since the epoch; None where it is in RAM only"""
    places: tuple[Place, ...]
    """where its last block is"""
    tail: tuple[int, ...]
    """its last token ids"""
    problem: str = ""
    """why it cannot be used, empty where it can"""
    pinned: int = 0
    """how many of its tokens are pinned, from the beginning: all, or those that it shares with a pinned prefix"""
    hits: int = 0
    """how often what only it holds was restored since the memory was made"""


@dataclass(frozen=True, slots=True)
class Removed:
    """What `remove` has deleted."""

    prefixes: int
    blocks: int
    nbytes: int


def entries(
    memory: PrefixMemory, *, model: str | None = None, sort: Sort = "age", progress: Progress | None = None
) -> list[PrefixInfo]:
    """Every prefix on disk and in RAM. Reads the header of each block.

    `model` leaves only the prefixes of one. `sort`: "age", last used first; "size", by bytes that only it holds;
    "saved", by seconds. `progress` is called with (done, total, label), in prefixes.
    """
    chains = Chains(memory)
    models = {root.hex()[:_ROOT]: binding.model for root, binding in memory.bindings.items()}
    infos = []
    for done, end in enumerate(chains.ends):
        if progress:
            progress(done, len(chains.ends), "prefixes read")
        infos.append(chains.info(end, models))
    shown = [info for info in infos if model is None or info.model.lower() == model.lower()]
    return sorted(shown, key=_SORTS[sort], reverse=True)


def names(memory: PrefixMemory) -> list[str]:
    """The names that `entries` gives, without reading a file."""
    return list(Chains(memory).ends.values())


def remove(memory: PrefixMemory, wanted: Iterable[str]) -> Removed:
    """Delete prefixes by name, or by enough of its first digits, and of their blocks those that no other needs.

    Raises `BadOption` for a name that is not there, fits several or is pinned, before anything is deleted, and
    `StoreError`. What is pinned of others stays.
    """
    memory.flush()
    chains = Chains(memory)
    ends = {resolved(name, chains.ends) for name in wanted}
    if pinned := [chains.ends[end] for end in ends if chains.is_pinned(end)]:
        raise BadOption(f"{', '.join(pinned)} is pinned: %llama cache unpin {pinned[0]} first")
    gone = [node for node in chains.only_in(ends) if node.name not in chains.pinned]
    if memory.store is not None:
        _delete(memory.store, [node.entry for node in gone if node.entry is not None])
    for node in gone:
        for ram in memory.rams:
            ram.drop(node.key)
    return Removed(len(ends), len(gone), sum(node.nbytes for node in gone))


def root_name(memory: PrefixMemory) -> str:
    """The `PrefixInfo.root` of the model that a memory is bound to."""
    return memory.binding.root.hex()[:_ROOT]


def _delete(store: BlockStore, entries: Sequence[Entry]) -> None:
    try:
        with store.locked():
            sharing = store.heads.all()
            bases = holding(sharing)
            freed = 0  # what shares a beginning goes before the block that holds it
            for entry in sorted(entries, key=lambda entry: entry.short not in sharing):
                if entry.short in bases:
                    freed -= release(store, entry)
                    bases = holding(store.heads.all())
                store.delete(entry)
                freed += entry.nbytes
            if usage := store.usage():
                store.set_usage(replace(usage, nbytes=usage.nbytes - freed))
    except OSError as error:
        raise StoreError(f"the prefixes could not be deleted: {error.strerror or error}") from error


_SORTS: Final[dict[Sort, Callable[[PrefixInfo], float]]] = {
    "age": lambda info: float("inf") if info.used is None else info.used,
    "size": lambda info: info.own_bytes,
    "saved": lambda info: info.seconds,
}


@dataclass(frozen=True, slots=True)
class Node:
    """A block on disk, in RAM, or both."""

    key: bytes
    parent: str
    nbytes: int
    used: float | None = None
    entry: Entry | None = None
    block: Block | None = None

    @property
    def name(self) -> str:
        return self.key.hex()[:_ROOT]

    @property
    def places(self) -> tuple[Place, ...]:
        on_disk: tuple[Place, ...] = ("disk",) if self.entry else ()
        return (*on_disk, "RAM") if self.block else on_disk


class Chains:
    """The blocks of a memory by the first digits of their keys, and the ends of chains with their names."""

    def __init__(self, memory: PrefixMemory) -> None:
        self._store = memory.store
        self._nodes: dict[str, Node] = {}
        self._known: dict[bytes, tuple[int, tuple[int, ...], float]] = {}
        for entry in self._store.entries() if self._store else ():
            self._nodes[entry.key.hex()[:_ROOT]] = Node(entry.key, entry.parent, entry.nbytes, entry.used, entry)
        for block in memory.ram.blocks():
            name, parent = block.link.key.hex()[:_ROOT], block.link.parent.hex()[:_ROOT]
            node = self._nodes.get(name) or Node(block.link.key, parent, block.nbytes)
            self._nodes[name] = replace(node, block=block)
        on_disk = [node.entry for node in self._nodes.values() if node.entry]
        names = held(on_disk, self._store.pins(), {}) if self._store else set()  # a beginning can be had elsewhere
        self.pinned = {entry.key.hex()[:_ROOT] for entry in on_disk if entry.name in names}
        self._hits = memory.hits
        inner = {node.parent for node in self._nodes.values()}
        self.ends = _shortened([node.key.hex() for name, node in self._nodes.items() if name not in inner])
        self._standing = Counter(name for end in self.ends for name in self._path(end))

    def info(self, end: str, models: Mapping[str, str]) -> PrefixInfo:
        path = self.nodes(end)
        alone = [node for node in path if self._standing[node.name] == 1]
        own = sum(node.nbytes for node in alone)
        n_tokens, seconds, problem, pinned = 0, 0.0, "", 0
        tail: tuple[int, ...] = ()
        start = 0
        for node in path:
            try:
                start, tokens, cost = self._told(node)
            except (BadState, OSError) as error:
                problem = f"damaged: {error}" if isinstance(error, BadState) else "gone in the meantime"
                break
            n_tokens = n_tokens or start + len(tokens)
            seconds += cost
            if node.name in self.pinned:
                pinned = pinned or start + len(tokens)
            if len(tail) < TAIL:
                tail = (tokens + tail)[-TAIL:]
        if not problem and start > 0:
            problem = "what came before is gone"
        last = path[0]
        return PrefixInfo(
            name=self.ends[end],
            root=path[-1].parent,
            model=models.get(path[-1].parent, ""),
            n_tokens=n_tokens,
            own_bytes=own,
            shared_bytes=sum(node.nbytes for node in path) - own,
            seconds=seconds,
            used=last.used,
            places=last.places,
            tail=tail,
            problem=problem,
            pinned=pinned,
            hits=max(self._hits[node.key] for node in alone or path),
        )

    def is_pinned(self, end: str) -> bool:
        return end[:_ROOT] in self.pinned

    def only_in(self, ends: Collection[str]) -> list[Node]:
        """The blocks that no chains but these need, ends first."""
        paths = [self._path(end) for end in ends]
        inside = Counter(name for path in paths for name in path)
        depth = {name: len(path) - place for path in paths for place, name in enumerate(path)}
        gone = (name for name, count in inside.items() if count == self._standing[name])
        return [self._nodes[name] for name in sorted(gone, key=lambda name: -depth[name])]

    def nodes(self, end: str) -> list[Node]:
        """The blocks from an end to the beginning."""
        return [self._nodes[name] for name in self._path(end)]

    def _path(self, end: str) -> list[str]:
        """From an end to the beginning."""
        path: dict[str, None] = {}  # an ordered set: names of files may lead in a circle
        name = end[:_ROOT]
        while name in self._nodes and name not in path:
            path[name] = None
            name = self._nodes[name].parent
        return list(path)

    def _told(self, node: Node) -> tuple[int, tuple[int, ...], float]:
        """Start, tokens and cost of a block. Many chains stand on the same ones: each is read once."""
        if node.key not in self._known:
            if node.block is not None:
                link, seconds = node.block.link, node.block.seconds
            else:
                assert node.entry is not None
                assert self._store is not None
                header = self._store.header(node.entry)
                link, seconds = header.link, header.seconds
            self._known[node.key] = link.start, link.tokens, seconds
        return self._known[node.key]


def _shortened(keys: Sequence[str]) -> dict[str, str]:
    """Each key's name: its first digits, as many as tell it from its neighbours."""
    ordered = sorted(keys)
    shared = [0, *(_alike(a, b) for a, b in pairwise(ordered)), 0]
    return {key: key[: max(SHORT, 1 + max(shared[i : i + 2]))] for i, key in enumerate(ordered)}


def _alike(a: str, b: str) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))


def resolved(name: str, ends: Mapping[str, str]) -> str:
    """The end that a name, or its first digits, stand for."""
    fitting = [key for key in ends if key.startswith(name.lower())] if name else []
    if len(fitting) == 1:
        return fitting[0]
    if not fitting:
        raise BadOption(f"no prefix is called '{name}': %llama cache ls shows the names")
    some = ", ".join(ends[key] for key in sorted(fitting)[:4])
    more = f" and {len(fitting) - 4} more" if len(fitting) > 4 else ""
    raise BadOption(f"'{name}' fits {len(fitting)} prefixes, write more of it: {some}{more}")
