"""Messages as OpenAI's interface writes them."""

from __future__ import annotations

from collections.abc import Iterable

from ipyllama.errors import BadOption

Messages = list[dict[str, str]]


def conversation(system: str | None, exchanges: Iterable[tuple[str, str]], message: str | None = None) -> Messages:
    """A system prompt, if any, then (user, assistant) pairs, then a user's new message, if any."""
    said = [{"role": "system", "content": system}] if system is not None else []
    for user, assistant in exchanges:
        said += [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]
    return said if message is None else [*said, {"role": "user", "content": message}]


def read_messages(messages: Messages) -> tuple[str | None, list[tuple[str, str]]]:
    """The system prompt and the (user, assistant) pairs of a conversation; the reverse of `conversation`.

    Raises `BadOption`, with the first message that is out of place.
    """
    left = list(messages)
    for number, message in enumerate(left):
        if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
            raise BadOption(f"message {number} is not a dict with the texts 'role' and 'content': {message!r:.80}")
    system = left.pop(0)["content"] if left and left[0]["role"] == "system" else None
    offset = len(messages) - len(left)
    for number, message in enumerate(left):
        wanted = ("user", "assistant")[number % 2]
        if message["role"] != wanted:
            raise BadOption(f"message {number + offset} is of role '{message['role']}', and '{wanted}' comes there")
    if len(left) % 2:
        raise BadOption("the last message has no answer: leave it out, and ask it")
    return system, [(left[n]["content"], left[n + 1]["content"]) for n in range(0, len(left), 2)]
