"""Messages as OpenAI's interface writes them."""

from __future__ import annotations

from collections.abc import Iterable

Messages = list[dict[str, str]]


def conversation(system: str | None, exchanges: Iterable[tuple[str, str]], message: str | None = None) -> Messages:
    """A system prompt, if any, then (user, assistant) pairs, then a user's new message, if any."""
    said = [{"role": "system", "content": system}] if system is not None else []
    for user, assistant in exchanges:
        said += [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]
    return said if message is None else [*said, {"role": "user", "content": message}]
