"""The vocabulary of a loaded model: text to token ids and back."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Protocol

from ipyllama import _core
from ipyllama.errors import BadArgument


class Tokenizer(Protocol):
    """What is asked of a vocabulary to tokenize with."""

    def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]: ...


class Remembering:
    """A tokenizer that reads each text once."""

    def __init__(self, vocab: Tokenizer) -> None:
        self._tokenize = cache(vocab.tokenize)

    def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        return self._tokenize(text, add_special, parse_special)


class Vocabulary:
    """Thread-safe; usable as long as the model is open."""

    def __init__(self, model: _core.Model) -> None:
        self._model = model
        self.bos, self.eos = model.bos, model.eos
        self.add_bos = model.add_bos
        self.n_tokens = model.n_vocab

    def tokenize(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of `text`. `add_special` puts BOS in front where the model wants it, never twice and never an
        EOS behind; `parse_special` reads control tokens written out in the text as such. Raises `BadArgument` for
        half a surrogate pair."""
        check_encodable(text)
        tokens = self._model.tokenize(text, add_special=False, parse_special=parse_special)
        if add_special and self.add_bos and self.bos >= 0 and tokens[:1] != [self.bos]:
            tokens.insert(0, self.bos)
        return tokens

    def detokenize(self, tokens: Iterable[int], special: bool = False) -> str:
        """The text of `tokens`; an incomplete character becomes U+FFFD. Control tokens show only if `special`."""
        return self._model.detokenize(list(tokens), special).decode("utf-8", "replace")

    def piece(self, token: int, special: bool = False) -> bytes:
        """The bytes of one token; a control token has none unless `special`."""
        return self._model.piece(token, special)

    def is_eog(self, token: int) -> bool:
        """True for tokens that end generation."""
        return self._model.is_eog(token)


def tokenize_after(vocab: Tokenizer, text: str, *, special: bool = True) -> list[int]:
    """Tokens of text that goes on after other text; control tokens written out in it count as such, if `special`.

    Some vocabularies put a space before the first word of whatever they are given; after a newline they do not.
    """
    lead, tokens = vocab.tokenize("\n", False, special), vocab.tokenize("\n" + text, False, special)
    return tokens[len(lead) :] if tokens[: len(lead)] == lead else vocab.tokenize(text, False, special)


def check_encodable(text: str) -> None:
    """Raise `BadArgument` for half a surrogate pair: no tokenizer could read it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"U+{ord(text[error.start]):04X}"
        raise BadArgument(f"character {error.start} of the text is {half}, half of a pair: remove it") from None
