"""A list of messages, as frameworks hand it over, as a conversation of ours and what is to be asked next."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ipyllama.errors import BadOption

if TYPE_CHECKING:
    from ipyllama.chat import Chat
    from ipyllama.llm import LLM


def conversation(llm: LLM, messages: Iterable[tuple[str, str]]) -> tuple[Chat, str]:
    """The conversation before the last message, and that message, from (role, text) pairs.

    What follows each other in one role is one message, with a blank line between. Raises `BadOption` where the last one
    is not the user's, or a system prompt comes later than first.
    """
    from ipyllama.chat import Chat

    said: list[dict[str, str]] = []
    for role, text in messages:
        if said and said[-1]["role"] == role:
            said[-1] = {"role": role, "content": f"{said[-1]['content']}\n\n{text}"}
        else:
            said.append({"role": role, "content": text})
    if not said or said[-1]["role"] != "user":
        raise BadOption("the last message must be the user's: it is what the model answers")
    return Chat.from_messages(llm, said[:-1]), said[-1]["content"]
