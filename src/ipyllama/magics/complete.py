"""Tab completion on lines that begin with `%llama` or `%%llama`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ipyllama.magics.commands import COMMANDS
from ipyllama.magics.options import CELL_OPTIONS
from ipyllama.magics.parser import Command, Option, Values, quoted

if TYPE_CHECKING:
    from IPython.core.completer import CompletionContext, SimpleMatcherResult

Names = Callable[[], Iterable[str]]

_MAGIC: Final = re.compile(r"(%%llama(?=\s)|\s*%llama(?=\s))")
_WORD: Final = re.compile(r"""(?:"[^"]*(?:"|$)|'[^']*(?:'|$)|[^\s"'])+""")


def complete(line: str, cursor: int, names: Mapping[Values, Names]) -> list[str]:
    """The words that could stand in place of the one that ends at the cursor; none on any other line.

    Each of `names` is only called where such a name is wanted. A name with spaces comes in quotes.
    """
    before = line[:cursor]
    magic = _MAGIC.match(before)
    if magic is None:
        return []
    fragment = word_before(line, cursor)
    words = [word.removesuffix("=") for word in _WORD.findall(before[magic.end() : len(before) - len(fragment)])]
    if magic[0].strip() == "%%llama":
        return _options_or_values(words, fragment, CELL_OPTIONS, names)
    return _subcommand(words, fragment, COMMANDS, names)


def _subcommand(
    words: Sequence[str], fragment: str, commands: Sequence[Command], names: Mapping[Values, Names]
) -> list[str]:
    if not words:
        return _starting(fragment, [command.name for command in commands])
    command = next((command for command in commands if command.name == words[0]), None)
    if command is None:
        return []
    rest = words[1:]
    if command.commands and (rest or not fragment.startswith("-")):
        return _subcommand(rest, fragment, command.commands, names)
    if command.values == "commands":
        return _starting(fragment, _members(rest))
    several = "..." in (command.argument or "") and command.values != "indexes"  # one index, and then something else
    more = several or not _has_argument(rest, command.options)
    if command.values and more and not fragment.startswith("-") and not _awaits(rest, command.options):
        offered = (name for name in names[command.values]() if name not in rest)
        return _starting(fragment, [quoted(name) for name in offered])
    return _options_or_values(rest, fragment, command.options, names)


def _members(path: Sequence[str]) -> list[str]:
    """The subcommands that a path of words leads to."""
    known: Sequence[Command] = COMMANDS
    for word in path:
        known = next((command.commands for command in known if command.name == word), ())
    return [command.name for command in known]


def word_before(line: str, cursor: int) -> str:
    """The word that ends at the cursor, with its open quote; empty after a space. `--model=sm` gives `sm`."""
    last: str = ["", *_WORD.findall(line[:cursor])][-1]
    if not line[:cursor].endswith(last):
        return ""
    return last.partition("=")[2] if last.startswith("--") and "=" in last else last


def make_matcher(names: Mapping[Values, Names]) -> Any:
    """A matcher for `ip.Completer.custom_matchers` (IPython 8.6 or newer)."""
    from IPython.core.completer import SimpleCompletion, context_matcher

    @context_matcher(identifier="ipyllama", priority=100)  # type: ignore[untyped-decorator]
    def match(context: CompletionContext) -> SimpleMatcherResult:
        line, cursor = context.line_with_cursor, context.cursor_position
        if not _is_magic_line(context.full_text, context.cursor_line):
            return {"completions": []}
        found = complete(line, cursor, names)
        return {
            "completions": [SimpleCompletion(text, type="param") for text in found],
            "matched_fragment": word_before(line, cursor),
            "suppress": True,
            "ordered": True,
        }

    return match


def _is_magic_line(text: str, line_number: int) -> bool:
    """Whether IPython would read the line as a magic: the body of a cell magic is not Python."""
    lines = text.split("\n")
    first = next((number for number, line in enumerate(lines) if line.strip()), 0)
    return line_number == first if lines[first].startswith("%%") else not lines[line_number].startswith("%%")


def _options_or_values(
    words: Sequence[str], fragment: str, options: Sequence[Option], names: Mapping[Values, Names]
) -> list[str]:
    awaiting = _awaits(words, options)
    if awaiting is not None:
        offered = names[awaiting.values]() if awaiting.values else awaiting.choices
        return _starting(fragment, [quoted(name) for name in offered])
    given = {word.partition("=")[0] for word in words}
    free = [option for option in options if option.repeat or not given.intersection(option.flags)]
    return _starting(fragment, [option.flags[-1] for option in free])


def _awaits(words: Sequence[str], options: Sequence[Option]) -> Option | None:
    """The option whose value comes next."""
    last = words[-1] if words else ""
    return next((option for option in options if option.metavar and last in option.flags), None)


def _has_argument(words: Sequence[str], options: Sequence[Option]) -> bool:
    return any(
        not word.startswith("-") and _awaits(words[:number], options) is None for number, word in enumerate(words)
    )


def _starting(fragment: str, words: Iterable[str]) -> list[str]:
    typed = fragment.lstrip("\"'")
    return [word for word in words if word.lstrip('"').startswith(typed)]
