"""What kept prefixes end with, in words: shown only where the folder is one notebook's own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from ipyllama.prefix.listing import PrefixInfo, root_name
from ipyllama.prefix.location import BESIDE, origin

if TYPE_CHECKING:
    from ipyllama.prefix.memory import PrefixMemory
    from ipyllama.vocab import Vocabulary


class Reader(Protocol):
    """A loaded model, as far as its words matter; `LLM` is one."""

    memory: PrefixMemory
    vocab: Vocabulary


def texts_of(memory: PrefixMemory, prefixes: Iterable[PrefixInfo], readers: Sequence[Reader]) -> dict[str, str] | None:
    """What prefixes of these models end with, by name; None where others use the folder, too."""
    if memory.location is not None and origin(memory) != BESIDE:
        return None
    vocabularies = {root_name(reader.memory): reader.vocab for reader in readers}
    return {info.name: vocabularies[info.root].detokenize(info.tail) for info in prefixes if info.root in vocabularies}
