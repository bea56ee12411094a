"""The sampling lab: a place in a text, the distribution of its next token, and draws that go on from there."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

from ipyllama import _core
from ipyllama.errors import BadOption
from ipyllama.options import GenerateOptions

if TYPE_CHECKING:
    from ipyllama.lens.next_token import NextToken

SLIDERS: Final = ("temperature", "top_k", "top_p", "min_p", "repeat_penalty")
"""The options that have a slider."""


class SamplingLab:
    """Made by `LLM.sampling_lab`. Draws under unchanged options are those of an answer: the same seed, the same tokens.

    `next` is the distribution of what comes next, and `drawn` what was appended so far.
    """

    def __init__(self, first: NextToken) -> None:
        self._drawn: list[tuple[int, NextToken, _core.Sampler]] = []  # each with what it was drawn from
        self._next, self._sampler = first, first.sampler()

    @property
    def next(self) -> NextToken:
        """The distribution of the next token under the present options."""
        return self._next

    @property
    def options(self) -> GenerateOptions:
        return self._next.options

    @property
    def drawn(self) -> tuple[int, ...]:
        """The tokens that were appended."""
        return tuple(token for token, *_ in self._drawn)

    @property
    def text(self) -> str:
        """What was appended, as text."""
        return self._next.vocab.detokenize(self.drawn, special=True)

    def set(self, **options: Any) -> None:
        """Change sampling options; nothing is evaluated. The draws begin anew with the seed. Raises `BadOption`."""
        self._set(self._next.with_options(**options))

    def draw(self, n: int = 1) -> tuple[int, ...]:
        """Draw the next `n` tokens and append them; fewer where one ends the text. Raises `BadOption` after its end."""
        found: list[int] = []
        while len(found) < n and not (found and self.ended):
            token = self._sampler.clone().apply(self._next.logits).selected
            assert token is not None
            self.append(token, drawn=True)
            found.append(token)
        return tuple(found)

    def append(self, token: int, *, drawn: bool = False) -> None:
        """Append a token of one's own choice. Raises `BadOption` and `PromptTooLong`."""
        if self.ended:
            raise BadOption("the text has ended here: undo takes its last token back")
        before, following = self._sampler.clone(), self._next.append(token)
        if drawn:
            self._sampler.apply(self._next.logits)  # the draw itself: random numbers are used up
        self._sampler.accept([token])
        self._drawn.append((token, self._next, before))
        self._next = following

    def undo(self) -> bool:
        """Take the last token back; False where there is none. The next draw is then the same again, if options are."""
        if not self._drawn:
            return False
        _, was, sampler = self._drawn.pop()
        if was.options == self.options:
            self._next, self._sampler = was, sampler
        else:
            self._set(
                was.with_options(**{item.name: getattr(self.options, item.name) for item in fields(self.options)})
            )
        return True

    @property
    def before(self) -> str:
        """The text before what was appended, control tokens written out."""
        ledger = self._next.ledger
        return self._next.vocab.detokenize(ledger.tokens[: len(ledger) - len(self._drawn)], special=True)

    @property
    def ended(self) -> bool:
        """Whether the last token ended the text."""
        return bool(self._drawn) and self._next.vocab.is_eog(self._drawn[-1][0])

    def __str__(self) -> str:
        return str(self._next)

    def __repr__(self) -> str:
        return str(self)

    def _ipython_display_(self) -> None:
        from ipyllama.widgets.lab import LabView

        LabView(self)._ipython_display_()

    def _set(self, following: NextToken) -> None:
        self._next, self._sampler = following, following.sampler()
