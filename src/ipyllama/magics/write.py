"""A conversation as the code of cells: what `parse_cell_line` and `insert_variables` read, written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

from ipyllama.magics.body import escape_places, is_plain
from ipyllama.magics.options import CELL_OPTIONS
from ipyllama.options import GenerateOptions

if TYPE_CHECKING:
    from ipyllama.chat import Turn

_FLAGS: Final = {option.flags[-1].lstrip("-").replace("-", "_"): option.flags[-1] for option in CELL_OPTIONS}
_LOOKS: Final = {"logprobs"}
"""Options that change nothing of an answer."""
_DEFAULT: Final = GenerateOptions()


def write_cells(turns: Sequence[Turn], chat: str = "default") -> list[str]:
    """A `%%llama` cell for each turn, the first of which begins at the beginning, and before it a Python cell for what
    does not fit on a magic's line. Options that `%%llama` does not have are left out."""
    cells: list[str] = []
    system: str | None = None
    for number, turn in enumerate(turns):
        variables: dict[str, str] = {}
        words = ["%%llama"]
        if chat != "default":
            words += ["--chat", quoted(chat)]
        if number == 0:
            words += ["--after", "none"]
        if turn.system is not None and turn.system != system:
            system = turn.system
            words += ["--system", _on_line("system_prompt", turn.system, variables)]
        if turn.think is not None:
            words.append("--think" if turn.think else "--no-think")
        words += _options(turn.options, variables)
        cells += ["\n".join(f"{name} = {value!r}" for name, value in variables.items())] if variables else []
        cells.append(f"{' '.join(words)}\n{escape_places(turn.message)}")
    return cells


def quoted(word: str) -> str:
    """A word as `split_line` reads it. One that ends in a backslash and holds an apostrophe cannot be written."""
    if word and not any(each.isspace() or each in "\"'" for each in word):
        return word
    if word.endswith("\\"):
        return f"'{word}'"
    escaped = word.replace('"', '\\"')
    return f'"{escaped}"'


def _on_line(name: str, text: str, variables: dict[str, str]) -> str:
    """The text for an option that reads `{{name}}`: itself where it can stand on a line, else a variable."""
    if is_plain(text) and text.isprintable() and not text.endswith("\\"):
        return quoted(text)
    variables[name] = text
    return f'"{{{{{name}}}}}"'


def _options(options: GenerateOptions, variables: dict[str, str]) -> list[str]:
    words: list[str] = []
    for field in fields(options):
        value = getattr(options, field.name)
        if field.name not in _FLAGS.keys() - _LOOKS or value == getattr(_DEFAULT, field.name):
            continue
        for each in _values(field.name, value, variables):
            words += [_FLAGS[field.name], each]
    return words


def _values(name: str, value: Any, variables: dict[str, str]) -> list[str]:
    match name:
        case "grammar":
            variables["grammar"] = value
            return ['"{{grammar}}"']
        case "stop":
            return [quoted(text.replace("\n", "\\n").replace("\t", "\\t")) for text in value]
        case "logit_bias":
            return [quoted(f"{token}={bias}") for token, bias in value]
    return [quoted(str(value))]
