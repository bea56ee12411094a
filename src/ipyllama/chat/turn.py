"""A turn: one user message and its reply, a node in the conversation tree."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from ipyllama.chat.messages import Messages, conversation
from ipyllama.ledger import Ledger
from ipyllama.reply import Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn(Reply):
    """A reply that knows what it answers. Immutable: answering again makes another turn."""

    message: str
    """what the user said"""
    ledger: Ledger = field(repr=False)
    """the whole conversation up to here in token ids: prompts and what was sampled"""
    parent: Turn | None = field(default=None, repr=False, compare=False)
    """the turn before it, None at the beginning"""
    system: str | None = None
    """the system prompt it was answered under; None leaves it to the template"""
    cell: str | None = None
    """id of the notebook cell that owns it"""
    prompt: str = field(default="", repr=False, compare=False)
    """the text that the ledger's prompt stood for, up to where this reply begins"""

    @classmethod
    def of(cls, reply: Reply, **values: Any) -> Turn:
        """`reply` as a turn; `values` are the fields that a reply has not."""
        return cls(**{item.name: getattr(reply, item.name) for item in fields(Reply)}, **values)

    @property
    def path(self) -> tuple[Turn, ...]:
        """From the beginning of the conversation to this turn."""
        turns = [self]
        while (earlier := turns[-1].parent) is not None:
            turns.append(earlier)
        return tuple(reversed(turns))

    @property
    def messages(self) -> Messages:
        """The conversation up to and with this reply, as OpenAI-style dicts."""
        return conversation(self.system, self.exchanges)

    @property
    def exchanges(self) -> list[tuple[str, str]]:
        """What the user said and what was answered, from the beginning."""
        return [(turn.message, turn.text) for turn in self.path]
