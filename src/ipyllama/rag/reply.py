"""An answer from documents: which it could see, and which it cites."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

from ipyllama.rag.frame import NOT_FOUND
from ipyllama.reply import Reply

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ipyllama.lens.divergence import Divergence
    from ipyllama.rag.types import Hit

_GAP: Final = r"[ \t\u00a0]*"
_WORD: Final = rf"(?:(?:documents?|docs?\.?|sources?|chunks?){_GAP}|#)?"
_ITEM: Final = rf"{_WORD}(\d{{1,4}})(?:{_GAP}(?:[-–—]|to){_GAP}(\d{{1,4}}))?"
_AND: Final = rf"{_GAP}(?:[,;，；、]{_GAP}(?:and{_GAP})?|(?:and|&){_GAP})"
_BRACKETS: Final = rf"[\[【]{_GAP}{_ITEM}(?:{_AND}{_ITEM})*{_GAP}[\]】]"
_CODE: Final = rf"```.*?(?:```|\Z)|`(?!{_BRACKETS}`)[^`\n]+`"
"""Brackets in code are places in a list."""
_CITED: Final = re.compile(rf"{_CODE}|(?P<brackets>{_BRACKETS})", re.IGNORECASE | re.DOTALL)
_NUMBERS: Final = re.compile(_ITEM, re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Citation:
    """A number in brackets in an answer. `hit` is None where there is no document of that number."""

    number: int
    start: int
    """where the brackets begin in the answer's text, in characters"""
    end: int
    hit: Hit | None


@dataclass(frozen=True, slots=True)
class RagReply(Reply):
    """A `Reply` to a question about documents; document [1] is `hits[0]`."""

    question: str = ""
    hits: tuple[Hit, ...] = ()
    """what was found, in the order in which the model read it"""
    divergence: Divergence | None = field(default=None, repr=False, compare=False)
    """how far it is from the exact answer, where that was asked for"""
    order: str = ""
    """what order of the documents would have spared, empty where it was the best one"""

    @classmethod
    def of(cls, reply: Reply, question: str, hits: tuple[Hit, ...], order: str = "") -> RagReply:
        """`reply` with what was found, and with notes on what it cites."""
        values = {item.name: getattr(reply, item.name) for item in fields(reply)}
        answer = cls(**values | {"question": question, "hits": hits, "order": order})
        return answer._with(notes=(*reply.notes, *answer._remarks()))

    @property
    def citations(self) -> tuple[Citation, ...]:
        """What it cites, in the order of the text, each number by itself: [1], [1, 3], [1-3], [Document 2], 【2】.
        Numbers in parentheses, and brackets in code, are no citations."""
        return tuple(
            Citation(number, match.start(), match.end(), self.hits[number - 1] if known else None)
            for match in _CITED.finditer(self.text)
            for number in _numbers(match["brackets"] or "", len(self.hits))
            for known in [0 < number <= len(self.hits)]
        )

    @property
    def cited(self) -> tuple[int, ...]:
        """The numbers of the documents that it cites, ascending."""
        return tuple(sorted({each.number for each in self.citations if each.hit is not None}))

    @property
    def unknown(self) -> tuple[int, ...]:
        """The numbers that it cites and that are none of the documents', ascending."""
        return tuple(sorted({each.number for each in self.citations if each.hit is None}))

    @property
    def not_found(self) -> bool:
        """Whether the model says that the documents do not hold the answer, or there was none to read."""
        return not self.hits or NOT_FOUND.rstrip(".").lower() in self.answer.lower()

    def checked(self, divergence: Divergence) -> RagReply:
        """The same, with how far it is from the exact answer."""
        return self._with(divergence=divergence)

    def sources_bundle(self) -> dict[str, str]:
        """The documents alone, to be shown below the answer."""
        from ipyllama.display.rag import sources_bundle

        return sources_bundle(self)

    def _with(self, **changes: Any) -> RagReply:
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return RagReply(**values | changes)

    def _remarks(self) -> list[str]:
        if not self.hits:
            return ["no document was found: the answer is from none"]
        remarks = []
        if self.unknown:
            numbers = ", ".join(f"[{number}]" for number in self.unknown)
            remarks.append(f"it cites {numbers}: there is no document of that number, only {len(self.hits)}")
        if self.not_found:
            remarks.append("the model says that this is not in the documents below")
        elif not self.cited and self.text.strip() and self.finish_reason == "stop":
            remarks.append("it cites no document: check it against those below")
        return remarks

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        from ipyllama.display.rag import rag_bundle

        return rag_bundle(self)


def _numbers(brackets: str, n_hits: int) -> Iterator[int]:
    """The numbers in brackets. A range stands for the documents in it, and for its ends."""
    for match in _NUMBERS.finditer(brackets):
        first, last = int(match[1]), int(match[2] or match[1])
        within = range(max(first, 1), min(last, n_hits) + 1)
        yield from sorted({first, *within, last}) if first < last else dict.fromkeys((first, last))
