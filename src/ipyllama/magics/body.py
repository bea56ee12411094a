"""`{{name}}` in a prompt: a Python variable's text, put in without evaluating anything."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from ipyllama.options import did_you_mean

_PATH: Final = r"""[^\W\d]\w*(?:\.[^\W\d]\w*|\[-?\d+\]|\['[^'\n]*'\]|\["[^"\n]*"\])*"""
_PLACE: Final = re.compile(r"(\\?)\{\{[ \t]*(" + _PATH + r")[ \t]*\}\}")
_EXPRESSION: Final = re.compile(r"(?<!\\)\{\{[ \t]*([^\W\d]\w*)[^{}\n]*\}\}")
_STEP: Final = re.compile(r"""\.?(?P<name>\w+)|\[(?P<index>-?\d+)\]|\[(?P<quote>['"])(?P<key>.*?)(?P=quote)\]""")


def insert_variables(body: str, namespace: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    r"""Replace each `{{name}}` by `str(value)` of the variable; returns the text and notes for the reader.

    Attributes (`{{a.b}}`), indices (`{{a[0]}}`) and keys (`{{a['k']}}`) are followed; nothing is called or
    evaluated, and inserted text is not searched again. `\{{name}}` stays as `{{name}}`. What cannot be found
    stays as written, with a note. All other text passes byte for byte.
    """
    parts, notes = insert_parts(body, namespace)
    return "".join(parts), notes


def insert_parts(body: str, namespace: Mapping[str, Any]) -> tuple[list[str], tuple[str, ...]]:
    """As `insert_variables`, with the text in parts: each ends with what was inserted, the last with the text."""
    notes: dict[str, None] = {}  # an ordered set: the same mistake twice is told once
    parts, at, last = [], 0, ""
    for place in _PLACE.finditer(body):
        written, escaped, path = place[0], place[1], place[2]
        last, at = last + body[at : place.start()], place.end()
        if escaped:
            last += written[1:]
            continue
        try:
            parts.append(last + str(_look_up(path, namespace)))
            last = ""
        except Exception as error:  # noqa: BLE001 (whatever the user's own __getitem__ or __str__ raises)
            notes[_note(path, error, namespace)] = None
            last += written
    for other in _EXPRESSION.finditer(_PLACE.sub("", body)):  # a variable was meant, and more than inserting it
        if other[1] in namespace:
            notes[f"{other[0]} was sent as written: only names, .attributes and [indices] are inserted"] = None
    return [*parts, last + body[at:]], tuple(notes)


def escape_places(text: str) -> str:
    r"""The text from which `insert_variables` makes this one: `{{name}}` becomes `\{{name}}`."""
    return _PLACE.sub(lambda place: f"\\{place[0]}", text)


def is_plain(text: str) -> bool:
    """Whether nothing in the text would be replaced."""
    return _PLACE.search(text) is None


def _look_up(path: str, namespace: Mapping[str, Any]) -> Any:
    first, *rest = _STEP.finditer(path)
    value = namespace[first["name"]]
    for step in rest:
        if step["name"]:
            value = getattr(value, step["name"])
        else:
            value = value[step["key"] if step["quote"] else int(step["index"])]
    return value


def _note(path: str, error: Exception, namespace: Mapping[str, Any]) -> str:
    place = "{{" + path + "}}"
    name = re.split(r"[.\[]", path, maxsplit=1)[0]
    if name not in namespace:
        hint = did_you_mean(name, (known for known in namespace if not known.startswith("_")))
        return f"{place} is not a variable here: sent as written" + (f" ({hint})" if hint else "")
    reason = " ".join(str(error).split())
    return f"{place} cannot be inserted ({type(error).__name__}: {reason}): sent as written"
