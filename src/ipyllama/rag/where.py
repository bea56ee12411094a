"""Filters on metadata: a dict of conditions as the expression that LanceDB evaluates.

What is in a chunk's metadata under a key stands in columns of its own, one for each kind of value, so that numbers
compare as numbers. Their names hold the key in hexadecimal: no key can be anything but a name.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final

from ipyllama.errors import BadOption
from ipyllama.options import did_you_mean
from ipyllama.rag.sources import simple

Where = Mapping[str, Any]
"""key -> a value, a list of values (any of them), or {"<": value}, with <, <=, >, >=, !=. All must hold."""
TYPES: Final = {"s": "string", "n": "double", "b": "boolean"}
"""kind of a column -> its SQL type"""
MOST_KEYS: Final = 100
_SIGNS: Final = ("<", "<=", ">", ">=", "!=")


def column(key: str, value: object) -> str | None:
    """The column for a value under this key; None where values of its type cannot be filtered by."""
    match value:
        case bool():
            kind = "b"
        case int() | float() if abs(value) <= sys.float_info.max:  # they are kept as doubles: so no infinity
            kind = "n"
        case str():
            kind = "s"
        case _:
            return None
    return f"m_{key.encode().hex()}_{kind}"


def key_of(name: str) -> str | None:
    """The key that a column is for; None for one of another kind."""
    match name.split("_"):
        case ["m", key, kind] if kind in TYPES:
            return bytes.fromhex(key).decode()
    return None


def expression(where: Where | None, columns: Iterable[str]) -> str | None:
    """The condition over these columns. Raises `BadOption` for keys that no chunk has, and for other values."""
    if where is None:
        return None
    if not isinstance(where, Mapping):
        raise BadOption(f"where must be a dict such as {{'year': 2024}}: got {where!r:.80}")
    known = set(columns)
    keys = {key for key in map(key_of, known) if key is not None} | {"source", "title"}
    terms = [_term(key, value, known, keys) for key, value in where.items()]
    return " AND ".join(terms) or None


def literal(value: bool | float | str) -> str:
    """A value as SQL has it."""
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return json.dumps(value if isinstance(value, bool) else float(value))


def _term(key: str, value: Any, known: set[str], keys: set[str]) -> str:
    if key not in keys:
        hint = did_you_mean(str(key), sorted(keys)) or f"known are {', '.join(sorted(keys))}"
        raise BadOption(f"no chunk has metadata {key!r}: {hint}")
    if isinstance(value, Mapping):
        if not value or not set(value) <= set(_SIGNS):
            raise BadOption(f"where[{key!r}] compares by {', '.join(_SIGNS)}: got {value!r:.80}")
        return " AND ".join(_compared(key, sign, each, known) for sign, each in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return "(" + (" OR ".join(_compared(key, "=", each, known) for each in value) or "false") + ")"
    return _compared(key, "=", value, known)


def _compared(key: str, sign: str, value: Any, known: set[str]) -> str:
    value = simple(value)
    name = key if key in ("source", "title") and isinstance(value, str) else column(key, value)
    if name is None:
        raise BadOption(
            f"where[{key!r}] must be a text, a number, a date, a truth value or a list of them: got {value!r:.80}"
        )
    if name not in known and name != key:
        return "true" if sign == "!=" else "false"  # no chunk has a value of this kind there
    comparison = f"{name} {sign} {literal(value)}"
    return f"({comparison} OR {name} IS NULL)" if sign == "!=" else f"({comparison})"
