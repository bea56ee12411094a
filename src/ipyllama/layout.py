"""A prompt with documents: a frame that never changes, the documents, and what is asked about them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ipyllama.engine import Moved
from ipyllama.errors import BadOption
from ipyllama.ledger import Ledger
from ipyllama.vocab import Tokenizer, tokenize_after


@dataclass(frozen=True, slots=True)
class Layout:
    """`frame`, then `chunks`, each after its label, then `question`: the order in which prompts share most.

    `label` stands before each chunk, with `{n}` in the place of its number from 1 on; it is not part of the chunk,
    whose tokens are the same in every place. Control tokens count as such in the frame and the question. In chunks and
    labels they are text, whoever wrote it.
    """

    frame: str
    chunks: tuple[str, ...]
    question: str
    label: str = "[{n}] "

    def __post_init__(self) -> None:
        if isinstance(self.chunks, str) or not isinstance(self.chunks, Iterable):
            raise BadOption(f"chunks must be several texts, such as a list: got {type(self.chunks).__name__}")
        object.__setattr__(self, "chunks", tuple(self.chunks))
        for name, text in (("frame", self.frame), ("question", self.question), ("label", self.label)):
            if not isinstance(text, str):
                raise BadOption(f"{name} must be a text: got {type(text).__name__}")
        for number, text in enumerate(self.chunks):
            if not isinstance(text, str):
                raise BadOption(f"chunks[{number}] must be a text: got {type(text).__name__}")

    def read(self, vocab: Tokenizer) -> tuple[Ledger, tuple[Moved, ...]]:
        """The prompt, a segment for each part; and for each chunk the prompt in which it is computed once: the frame
        and, under the first label, the chunk alone."""
        frame = Ledger().append_prompt(vocab.tokenize(self.frame, True, True))
        first = self._label(vocab, 1)
        ledger, moved = frame, []
        for number, chunk in enumerate(self.chunks, start=1):
            body = tokenize_after(vocab, chunk, special=False)
            ledger = ledger.append_prompt([*self._label(vocab, number), *body])
            if len(body) > 1:  # the last token of a prompt is evaluated in any case
                moved.append(Moved(frame.append_prompt([*first, *body]), len(ledger) - len(body), len(body)))
        return ledger.append_prompt(tokenize_after(vocab, self.question)), tuple(moved)

    def _label(self, vocab: Tokenizer, number: int) -> list[int]:
        text = self.label.replace("{n}", str(number))
        return tokenize_after(vocab, text, special=False) if text else []
