"""Errors: one base class, and a named subclass for each thing that a person can act on.

Every message is short: what happened, then what to do. In a notebook an error of ours is one line, not a
traceback, because the traceback would only show our own insides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ipyllama.reply import Reply


class LlamaError(Exception):
    """Base class of every error that ipyllama raises on purpose."""

    def __str__(self) -> str:
        # What people wrote stands in messages, and a front end cannot be sent halves of characters.
        return super().__str__().encode("utf-8", "replace").decode()

    def _render_traceback_(self) -> list[str]:
        """IPython shows these lines in place of a traceback."""
        line = f"{type(self).__name__}: {self}"
        return ["".join(char if char.isprintable() else " " for char in line)]  # names come from files


class ModelNotFound(LlamaError):
    """No file, registry name or model on this machine answers to the name."""


class NoModelLoaded(LlamaError):
    """Something was asked of a model before one was loaded, or after it was unloaded."""


class BadModelFile(LlamaError):
    """The file is not a GGUF, is truncated, or llama.cpp cannot run what is in it."""


class FetchError(LlamaError):
    """A download failed, or what arrived does not have the expected checksum."""


class NotEnoughMemory(LlamaError):
    """Weights or KV memory do not fit on this machine."""


_LEAVE_OUT = "Leave the oldest turns out (--on-full drop-oldest)"


class PromptTooLong(LlamaError):
    """The prompt does not fit in the context."""

    def __init__(self, n_prompt: int, n_ctx: int, *, can_leave_out: bool = False) -> None:
        over = n_prompt - n_ctx + 1  # one token must be left for the answer
        super().__init__(
            f"the prompt has {n_prompt:,} tokens, {over:,} too many for a context of {n_ctx:,} (one is kept for "
            f"the answer). {_LEAVE_OUT if can_leave_out else 'Shorten it'}, begin a new conversation, or load the "
            "model with a larger n_ctx."
        )
        self.n_prompt, self.n_ctx, self.n_over = n_prompt, n_ctx, over


class WrongModel(LlamaError):
    """The model cannot do what was asked: one that encodes text cannot generate, only rankers rank."""


class TextTooLong(LlamaError):
    """A text is over the limit of an embedding model, and was not to be split or truncated."""


class TooLongWarning(UserWarning):
    """Texts over the limit of an embedding model were split or truncated; the message says which."""


class TemplateError(LlamaError):
    """The model has no chat template, or its template refused the messages."""


class MissingPackage(LlamaError):
    """Something needs a package that is not installed; the message says how to install it."""


class UnknownIndex(LlamaError):
    """No index of documents answers to the name."""


class BadSource(LlamaError):
    """What was given as a document cannot be read as one."""


class DocumentWarning(UserWarning):
    """Documents were left out of an index, or read with a reservation; the message says which."""


class UnknownTurn(LlamaError):
    """No turn of the conversation, or more than one, answers to the name."""


class BadOption(LlamaError):
    """An option is unknown, or its value is out of range."""


class ClosedError(LlamaError):
    """The object was closed; what it held is freed."""

    @classmethod
    def of_model(cls, name: str = "this model") -> ClosedError:
        """The one that is raised where a model that was unloaded is asked for something."""
        return cls(f"{name} was unloaded: load it again (%llama load, ipyllama.load), then ask once more")


class BadState(LlamaError):
    """State bytes do not fit this model or context, or are damaged."""


class StoreError(LlamaError):
    """A place for saved prefix states cannot be written to, or not be trusted."""


class StoreBusy(StoreError):
    """Other processes keep a place for saved prefix states locked."""


class StoreFull(StoreError):
    """What is pinned leaves no room within the limit."""


class BadBundle(LlamaError):
    """A file of prefix states is not one, is damaged, or was made for another model or format."""


class BadArgument(LlamaError, ValueError):
    """A value that llama.cpp could not survive was stopped at the door."""


class BadGrammar(LlamaError, ValueError):
    """A GBNF grammar cannot be read, or what was generated does not follow it.

    `line` and `column` (in characters, from 1) tell where in the grammar; None where the error has no place in it.
    """

    def __init__(self, message: str, line: int | None = None, column: int | None = None) -> None:
        super().__init__(message)
        self.line, self.column = line, column


class CannotTrim(LlamaError):
    """Tokens cannot be removed there (recurrent, hybrid, windowed models). The sequence is as it was."""


class CannotShift(LlamaError):
    """Positions cannot be moved (the architecture, or cells that another sequence shares). All is as it was."""


class CannotFuse(LlamaError):
    """The KV of a document cannot be moved to another place in the prompt with this model: reuse="exact" can."""


class DecodeError(LlamaError):
    """llama.cpp could not evaluate a batch."""


class Aborted(LlamaError):
    """A native step ended early because the abort flag was set."""


class CrashWarning(UserWarning):
    """An earlier process in the same place was ended by llama.cpp; shown once, with its message."""


class Interrupted(KeyboardInterrupt):
    """The user pressed Stop. What was generated so far is in `reply`; None where nothing was to be generated.

    It is a KeyboardInterrupt, so that "run all" stops as well.
    """

    def __init__(self, reply: Reply | None = None) -> None:
        super().__init__("interrupted")
        self.reply = reply

    def _render_traceback_(self) -> list[str]:
        if not self.reply or not self.reply.tokens:
            return ["Interrupted"]
        kept = "is kept" if self.reply.kept else "is in sys.last_value.reply"
        return [f"Interrupted: what was written so far {kept}"]
