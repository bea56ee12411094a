"""A conversation as it was said, as text and HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ipyllama.display.reply import MUTED, NO_MATH, answer_html
from ipyllama.display.text import body_text, printable
from ipyllama.reply import Reply


def history_bundle(title: str, messages: Sequence[dict[str, str]]) -> dict[str, str]:
    """`text/plain` and `text/html` of OpenAI-style messages; thinking is folded, as in an answer."""
    text = [title, *(f"{message['role']}: {_text(message)}" for message in messages)]
    html = [f'<div style="{MUTED}">{escape(title)}</div>', *map(_html, messages)]
    return {"text/plain": "\n\n".join(text), "text/html": "\n".join(html)}


def _text(message: dict[str, str]) -> str:
    said = message["content"]
    return body_text(Reply(said)) if message["role"] == "assistant" else printable(said)


def _html(message: dict[str, str]) -> str:
    role, said = message["role"], message["content"]
    if role == "assistant":
        body = answer_html(Reply(said))
    else:
        line = "border-left:2px solid var(--jp-border-color2,rgba(127,127,127,.3));padding-left:.8em"
        body = f'<div {NO_MATH} style="white-space:pre-wrap;margin:.2em 0;{line}">{escape(said)}</div>'
    return f'<div style="margin-top:.8em"><div style="{MUTED}">{escape(role)}</div>\n{body}</div>'
