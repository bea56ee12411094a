"""The model's own chat template: Jinja text out of a model file, so untrusted, rendered in jinja2's sandbox.

The names a template finds and the way its text is trimmed follow Hugging Face's `apply_chat_template`, because
templates are written for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from ipyllama.errors import TemplateError

if TYPE_CHECKING:
    from jinja2 import Template

Message = Mapping[str, Any]
"""One message as in OpenAI's interface: `{"role": "user", "content": "..."}`."""

THINKING_SWITCHES = ("enable_thinking", "thinking")
"""What templates call it, the more usual one first."""
MAX_CHARS = 32 * 1024 * 1024
"""A rendering longer than this is a runaway template, not a prompt."""


class Refused(Exception):
    """What `raise_exception` in a template raises."""


class ChatTemplate:
    """A chat template with the special tokens that it may print.

    `special_tokens` are further names for the template, such as `unk_token`. `now` is the clock of `strftime_now`.
    The source is compiled at the first use.
    """

    def __init__(
        self,
        source: str,
        bos_token: str = "",
        eos_token: str = "",
        *,
        now: Callable[[], datetime] = datetime.now,
        **special_tokens: str,
    ) -> None:
        self.source = source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token, **special_tokens}
        self._now = now

    def __repr__(self) -> str:
        return f"ChatTemplate({len(self.source):,} characters)"

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """The text of a conversation, ending where the model's answer begins unless told otherwise.

        `kwargs` are the template's own switches (`enable_thinking=False`). A key of a message whose value is None
        counts as absent. Raises TemplateError where the template does not compile, refuses the messages or misbehaves.
        """
        values = _plain(
            {
                **self._tokens,
                **kwargs,
                "messages": [_message(message) for message in messages],
                "tools": tools,
                "documents": documents,
                "add_generation_prompt": add_generation_prompt,
            }
        )
        compiled, parts, size = self._compiled, [], 0
        try:
            for part in compiled.generate(values):
                size += len(part)
                if size > MAX_CHARS:
                    raise OverflowError(f"more than {MAX_CHARS:,} characters")
                parts.append(part)
        except Refused as error:
            raise TemplateError(_reason("the chat template refuses these messages", error)) from error
        except Exception as error:  # a template is a program: any exception can come out of it
            raise TemplateError(_reason("the chat template fails on these messages", error)) from error
        return "".join(parts)

    @cached_property
    def _compiled(self) -> Template:
        from ipyllama.chat.sandbox import environment  # jinja2 is heavy: not on the way of `%load_ext`

        try:
            functions = {"raise_exception": _refuse, "strftime_now": self._strftime_now}
            return environment(functions).from_string(self.source)
        except Exception as error:  # jinja2 also lets SyntaxError and RecursionError through
            raise TemplateError(_reason("the chat template does not compile", error)) from error

    @cached_property
    def thinking_switch(self) -> str | None:
        """The name of the template's switch for thinking, None if it has none."""
        from ipyllama.chat.sandbox import variables

        names = variables(self.source)
        return next((name for name in THINKING_SWITCHES if name in names), None)

    def _strftime_now(self, form: str) -> str:
        return self._now().strftime(form)


def _refuse(message: object) -> NoReturn:
    raise Refused(message)


def _message(message: Message) -> dict[str, Any]:
    return {key: value for key, value in message.items() if value is not None}


def _plain(value: Any) -> Any:
    """`value` rebuilt from plain JSON types: the sandbox cannot know which methods of other objects are harmless."""
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    raise TemplateError(f"a chat template takes text, numbers, lists and dicts, not {type(value).__name__}.")


def _reason(what: str, error: Exception) -> str:
    said = " ".join(str(error).split()) or type(error).__name__
    return f"{what}: {said.rstrip('.')}. Change the messages, or use --raw and write the prompt yourself."
