"""How a magic's line is read: words, options, errors that name the option that was probably meant."""

from __future__ import annotations

import argparse
import keyword
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NoReturn

from ipyllama.errors import BadOption
from ipyllama.options import did_you_mean

Values = Literal["models", "chats", "entries", "turns", "ways", "bundles", "commands", "indexes"]
"""What Tab offers as a value."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its flags (the long one last), and a metavar if it takes a value."""

    flags: tuple[str, ...]
    metavar: str | None = None
    convert: Callable[[str], Any] = str
    help: str = ""
    repeat: bool = False
    values: Values | None = None
    choices: tuple[str, ...] = ()
    """the only values there are; Tab offers them"""


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand. Its argument is written NAME, [NAME] if it may be left out, NAME... if there may be several.

    One with `commands` is a group of them; written alone, it is the first.
    """

    name: str
    help: str
    argument: str | None = None
    options: tuple[Option, ...] = ()
    values: Values | None = None
    commands: tuple[Command, ...] = ()


def whole(text: str) -> int:
    """A whole number. Raises `BadOption`."""
    try:
        return int(text)
    except ValueError:
        raise BadOption(f"a whole number is needed: got '{text}'") from None


def positive(text: str) -> int:
    """A whole number of at least 1. Raises `BadOption`."""
    number = whole(text)
    if number < 1:
        raise BadOption(f"at least 1 is needed: got {number}")
    return number


def number(text: str) -> float:
    """A number. Raises `BadOption`."""
    try:
        return float(text)
    except ValueError:
        raise BadOption(f"a number is needed: got '{text}'") from None


def seed(text: str) -> int | str:
    """A whole number, or "random". Raises `BadOption`."""
    return text if text == "random" else whole(text)


def variable(text: str) -> str:
    """The name of a variable. Raises `BadOption`."""
    if not text.isidentifier() or keyword.iskeyword(text):
        raise BadOption(f"'{text}' cannot be the name of a variable")
    return text


def quoted(text: str) -> str:
    """A word as it is written on a magic's line."""
    return '"{}"'.format(text.replace('"', '\\"')) if re.search(r"[\s'\"]", text) else text


class OptionParser:
    """Reads words into a dict that holds only what was given. Every error is a `BadOption`."""

    def __init__(self, prog: str, options: Sequence[Option], argument: str | None = None) -> None:
        self.prog, self.options, self.argument = prog, tuple(options), argument
        self._argparse = _Argparse(prog=prog, add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
        for option in options:
            if option.metavar is None:
                self._argparse.add_argument(*option.flags, action="store_true")
            else:
                action = "append" if option.repeat else "store"
                self._argparse.add_argument(*option.flags, action=action, type=_named(option))
        self._valued = {flag: option.flags[-1] for option in options if option.metavar for flag in option.flags}
        self._flags = {flag for option in options for flag in option.flags}

    def parse(self, words: Sequence[str]) -> dict[str, Any]:
        """The values given, by option name; the argument under "argument", a tuple where there may be several."""
        namespace, rest = self._argparse.parse_known_args(self._join_values(words))
        values = vars(namespace)
        for word in rest:
            if word.startswith("-") and word != "-":
                self._refuse_option(word)
        if self.argument is not None and rest:
            several = "..." in self.argument
            values["argument"] = tuple(rest) if several else rest[0]
            rest = [] if several else rest[1:]
        if rest:
            self._refuse_word(rest[0])
        required = self.argument is not None and not self.argument.startswith("[")
        if required and "argument" not in values and "help" not in values:
            what = "name" if self.argument == "NAME" else self.argument
            raise BadOption(f"{self.prog} needs a {what}: {self.prog} {self.argument}")
        return values

    def _join_values(self, words: Sequence[str]) -> list[str]:
        """Write `--stop ---` as `--stop=---`: argparse takes any word with a leading dash for an option."""
        joined: list[str] = []
        queue = list(words)
        while queue:
            word = queue.pop(0)
            if word in self._valued and queue and queue[0] not in self._flags:
                word = f"{self._valued[word]}={queue.pop(0)}"
            joined.append(word)
        return joined

    def _refuse_option(self, word: str) -> NoReturn:
        name = word.partition("=")[0]
        hint = did_you_mean(name, self._flags) or self._known()
        raise BadOption(f"unknown option '{name}' of {self.prog}: {hint}")

    def _refuse_word(self, word: str) -> NoReturn:
        if self.prog.startswith("%%"):
            raise BadOption(
                f"'{word}' is not an option of {self.prog}: the prompt goes below this line, a model after --model, "
                'and a value with spaces in quotes, as in --system "Be brief."'
            )
        hint = f"a {self.argument.strip('[]').lower()} with spaces goes in quotes" if self.argument else self._known()
        raise BadOption(f"'{word}' is one word too many for {self.prog}: {hint}")

    def _known(self) -> str:
        return f"known are {', '.join(option.flags[-1] for option in self.options)}"


class _Argparse(argparse.ArgumentParser):
    """argparse that neither prints nor exits."""

    def error(self, message: str) -> NoReturn:
        raise BadOption(message.removeprefix("argument ").replace("expected one argument", "a value is missing"))


def _named(option: Option) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        try:
            return _chosen(option, option.convert(text))
        except BadOption as error:
            raise BadOption(f"{option.flags[-1]}: {error}") from None

    return convert


def _chosen(option: Option, value: Any) -> Any:
    if option.choices and value not in option.choices:
        hint = did_you_mean(value, option.choices) or f"there are {', '.join(option.choices)}"
        raise BadOption(f"unknown value '{value}': {hint}")
    return value


_PIECE: Final = re.compile(r"""\s+|"((?:\\"|[^"])*)"|'([^']*)'|([^\s"']+)""")


def split_line(line: str) -> list[str]:
    r"""The words of a line. Quotes group; `\"` is a quote inside double quotes.

    Every other backslash is itself, unlike in `shlex`, so that a Windows path is written as it is.
    Raises `BadOption` for a quote that is not closed.
    """
    words: list[str] = []
    position, glued = 0, False
    while position < len(line):
        piece = _PIECE.match(line, position)
        if piece is None:
            word = line[:position].rpartition(" ")[2] + line[position:]
            raise BadOption(
                f"the quote {line[position]} in {_shorten(word)} is not closed: a text with an apostrophe goes in "
                'double quotes, as in --system "You\'re terse."'
            )
        position = piece.end()
        if piece.lastindex is None:
            glued = False
            continue
        text = piece[1].replace('\\"', '"') if piece.lastindex == 1 else piece[piece.lastindex]
        words[-1:] = [words[-1] + text] if glued else [*words[-1:], text]
        glued = True
    return words


def _shorten(text: str, limit: int = 24) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
