"""What a model thinks before it answers, told from the answer by the tags that models write around it."""

from __future__ import annotations

from typing import Final, NamedTuple

TAGS: Final = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<thought>", "</thought>"),
)
"""As in the chat templates of Qwen, DeepSeek, GLM; Mistral; Seed; and others."""


class Parts(NamedTuple):
    """A text as the model wrote it, in two."""

    thinking: str
    """without its tags; empty where there is none"""
    answer: str
    ended: bool = True
    """False while the model is still thinking"""


def split_thinking(text: str, prompt: str = "") -> Parts:
    """Thinking stands at the beginning of `text`, in tags; the opening one may be the end of `prompt`."""
    for begin, end in TAGS:
        opened = text.lstrip().startswith(begin)
        if opened or prompt.rstrip().endswith(begin):
            thinking, closed, answer = text.partition(end)
            thinking = thinking.lstrip().removeprefix(begin).strip()
            return Parts(thinking, answer.lstrip("\n"), bool(closed))
    return Parts("", text)
