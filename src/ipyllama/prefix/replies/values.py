"""Small results as JSON and `.npy`: whatever a file holds, reading it runs no code."""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from ipyllama.errors import BadState

FORMAT: Final = 1
_ARRAY: Final = "$npy"
_NAME: Final = re.compile(r"[0-9a-f]{64}\.npy")


def encode(call: Sequence[str], value: Any) -> tuple[bytes, dict[str, bytes]]:
    """A value as a JSON document, and its arrays by file name; `call` says whose value it is.

    Values are None, truth values, numbers, texts, arrays, and lists, tuples (read back as lists) and dicts of them,
    the keys texts. Raises `TypeError` for others.
    """
    arrays: dict[str, bytes] = {}
    body = {"format": FORMAT, "call": list(call), "value": _pack(value, arrays)}
    return json.dumps({"sha256": _digest(_canonical(body)), "result": body}).encode(), arrays


def decode(call: Sequence[str], document: bytes, read: Callable[[str], bytes]) -> Any:
    """The value of `call` in a document; `read` gives the content of an array's file.

    Raises `BadState` for a document that is damaged, of another call or of another format.
    """
    try:
        content = json.loads(document)
        body, checksum = content["result"], content["sha256"]
        if _digest(_canonical(body)) != checksum:
            raise BadState("it is damaged: its checksum is another")
        if body["format"] != FORMAT or body["call"] != list(call):
            raise BadState("it is of another version, or another call's")
        return _unpack(body["value"], read)
    except (BadState, OSError):
        raise
    except Exception as error:  # whatever a hostile document provokes in the parsers is damage
        raise BadState(f"it is damaged: {error}") from error


def _canonical(body: Any) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _pack(value: Any, arrays: dict[str, bytes]) -> Any:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case np.ndarray() if not value.dtype.hasobject:
            content = io.BytesIO()
            np.save(content, value, allow_pickle=False)
            name = f"{_digest(content.getvalue())}.npy"
            arrays[name] = content.getvalue()
            return {_ARRAY: name}
        case list() | tuple():
            return [_pack(item, arrays) for item in value]
        case dict() if _ARRAY not in value and all(isinstance(key, str) for key in value):
            return {key: _pack(item, arrays) for key, item in value.items()}
    raise TypeError(f"only JSON values and arrays can be kept: got {type(value).__name__}")


def _unpack(value: Any, read: Callable[[str], bytes]) -> Any:
    match value:
        case list():
            return [_unpack(item, read) for item in value]
        case dict() if _ARRAY in value:
            return _array(value[_ARRAY], read)
        case dict():
            return {key: _unpack(item, read) for key, item in value.items()}
    return value


def _array(name: str, read: Callable[[str], bytes]) -> Any:
    if not _NAME.fullmatch(name):
        raise BadState("it is damaged: it names another file than an array's")
    content = read(name)
    if name != f"{_digest(content)}.npy":
        raise BadState("it is damaged: the checksum of an array is another")
    return np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
