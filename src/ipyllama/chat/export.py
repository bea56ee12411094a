"""A conversation as a file for people or for programs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from ipyllama.errors import BadOption

if TYPE_CHECKING:
    from ipyllama.chat.conversation import Conversation


def export(chat: Conversation, path: str | os.PathLike[str]) -> None:
    """As `Chat.export`."""
    target = Path(path).expanduser()
    kind = target.suffix.lower()
    if kind == ".json":
        text = json.dumps(chat.messages, indent=2, ensure_ascii=False) + "\n"
    elif kind in (".md", ".markdown"):
        text = markdown(chat)
    else:
        raise BadOption(f"{target.name} ends in neither .md nor .json: the name says what to write")
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadOption(f"{target} cannot be written: {error.strerror or error}") from None


def markdown(chat: Conversation) -> str:
    """A heading for each turn, what the user said as a quotation, the answer as the model wrote it."""
    parts = [f"# {chat.name}", *([f"*{chat.system}*"] if chat.system else [])]
    for turn in chat.path():
        name = f" · {turn.name}" if turn.name else ""
        said = "\n".join(f"> {line}" for line in turn.message.split("\n"))
        parts.append(f"## {chat.number(turn)}{name}\n\n{said}\n\n{turn.text.strip()}")
    return "\n\n".join(parts) + "\n"
