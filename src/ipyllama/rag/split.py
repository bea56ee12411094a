"""Documents to chunks of a size that is counted in tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ipyllama.errors import BadOption
from ipyllama.rag.documents import Document, Form
from ipyllama.rag.packages import needed
from ipyllama.rag.types import Chunk, chunk_id

CHUNK_TOKENS: Final = 256
OVERLAP: Final = 32
_CHARS_PER_TOKEN: Final = 8
"""Most characters of a chunk for each token: to some tokenizers a long run of letters is one unknown word."""
_WINDOW: Final = 1 << 16
"""Characters that are cut at a time: the work grows faster than the text."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How documents are cut."""

    chunk_tokens: int = CHUNK_TOKENS
    overlap: int = OVERLAP

    def __post_init__(self) -> None:
        if type(self.chunk_tokens) is not int or not 16 <= self.chunk_tokens <= 8192:
            raise BadOption(f"chunk_tokens must be a whole number between 16 and 8,192: got {self.chunk_tokens!r}")
        if type(self.overlap) is not int or not 0 <= self.overlap <= self.chunk_tokens // 2:
            raise BadOption(f"overlap must be a whole number up to half of chunk_tokens: got {self.overlap!r}")


class Splitter:
    """Cuts documents where they best can be: at headings, blank lines, sentences, words, in this order."""

    def __init__(self, cut: Cut, count: Callable[[str], int]) -> None:
        """`count` is the number of tokens in a text."""
        package = needed("semantic_text_splitter", "cutting documents")

        def size(text: str) -> int:
            return max(count(text), -(-len(text) // _CHARS_PER_TOKEN))

        self._cutters: Mapping[Form, Any] = {
            "text": package.TextSplitter.from_callback(size, cut.chunk_tokens, cut.overlap),
            "markdown": package.MarkdownSplitter.from_callback(size, cut.chunk_tokens, cut.overlap),
        }

    def split(self, source: str, document: Document, metadata: Mapping[str, Any]) -> Iterator[Chunk]:
        """The chunks of a document, in its order. What stands there twice is one chunk."""
        seen: set[str] = set()
        cutter = self._cutters[document.form]
        for section in document.sections:
            both = {**metadata, **section.metadata}
            for start, window in _windows(section.text):
                for offset, text in cutter.chunk_indices(window):
                    key = chunk_id(source, text)
                    if key not in seen:
                        seen.add(key)
                        yield Chunk(key, text, source, section.title, section.start + start + offset, both)


def _windows(text: str) -> Iterator[tuple[int, str]]:
    """A text in pieces, cut at the end of a paragraph, line or word where there is one."""
    start = 0
    while len(text) - start > _WINDOW:
        half, end = start + _WINDOW // 2, start + _WINDOW
        cuts = (text.rfind(sign, half, end) for sign in ("\n\n", "\n", " "))
        cut = next((cut + 1 for cut in cuts if cut >= 0), end)
        yield start, text[start:cut]
        start = cut
    yield start, text[start:]
