"""A conversation as it was said, as text and HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ipyllama.display.markdown import markdown_html


def history_bundle(title: str, messages: Sequence[dict[str, str]]) -> dict[str, str]:
    """`text/plain` and `text/html` of OpenAI-style messages."""
    text, html = [title], [f"<p>{escape(title)}</p>"]
    for role, content in ((message["role"], message["content"]) for message in messages):
        body = markdown_html(content) if role == "assistant" else f"<p>{escape(content)}</p>"
        text.append(f"{role}: {content}")
        html.append(f"<div><strong>{role}</strong>{body}</div>")
    return {"text/plain": "\n\n".join(text), "text/html": "\n".join(html)}
