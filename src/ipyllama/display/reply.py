"""An answer as a MIME bundle: text, Markdown, and a static HTML fragment that needs nothing from outside."""

from __future__ import annotations

import re
from html import escape
from typing import Final

from ipyllama.display.markdown import markdown_html
from ipyllama.display.text import body_text, footer, n_words, reply_text, thought
from ipyllama.display.units import plural
from ipyllama.reply import Reply
from ipyllama.thinking import split_thinking

MUTED: Final = "color:var(--jp-ui-font-color2,#767676);font-size:.85em"
"""The style of everything that is about an answer and not part of it."""
NO_MATH: Final = 'class="mathjax_ignore tex2jax_ignore"'
"""For what is shown as it was written: MathJax, of any version, leaves it alone."""

SHOWN_LINES: Final = 6
"""Of thinking, while it is written."""
_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_MARKS: Final = re.compile(r"([\\`*_{}\[\]$~|])")


def reply_bundle(reply: Reply) -> dict[str, str]:
    """`text/plain`, `text/markdown` and `text/html` of an answer with its footer."""
    return {"text/plain": reply_text(reply), "text/markdown": reply_markdown(reply), "text/html": reply_html(reply)}


def streaming_bundle(text: str) -> dict[str, str]:
    """What is shown while the answer is being written: Markdown, which every front end renders itself. Of thinking
    only the end is shown."""
    parts = split_thinking(text)
    if parts.ended:
        shown = f"*{thought(parts.thinking)}*\n\n{parts.answer}" if parts.thinking else parts.answer
    else:
        lines = parts.thinking.split("\n")[-SHOWN_LINES:]
        shown = f"*thinking: {plural(n_words(parts.thinking), 'word')}*\n\n" + "\n".join(f"> {line}" for line in lines)
    return {"text/plain": text, "text/markdown": shown}


def reply_markdown(reply: Reply) -> str:
    """The answer as the model wrote it, an open code block closed, then the footer in small print; thinking folded."""
    thinking, answer, _ = reply.parts
    text = answer if answer.strip() else body_text(reply)
    if thinking:
        text = f"{folded(thinking)}\n\n{text}"
    lines = "<br>".join(_MARKS.sub(r"\\\1", escape(line, quote=False)) for line in footer(reply).split("\n"))
    return f"{text}{_closing_fence(text)}\n\n<sub>{lines}</sub>"


def reply_html(reply: Reply) -> str:
    """A fragment without script, style sheet or anything to fetch; colours follow the front end's theme."""
    return f"{answer_html(reply)}\n{footer_html(reply)}"


def answer_html(reply: Reply) -> str:
    """The answer without its footer, thinking folded above it."""
    thinking, text, _ = reply.parts
    if text.strip():
        answer = f"<div>{markdown_html(text)}</div>"
    else:
        answer = f'<p style="{MUTED}">{escape(body_text(reply))}</p>'
    return f"{folded(thinking)}\n{answer}" if thinking else answer


def folded(thinking: str) -> str:
    """Thinking as a line that opens: HTML that front ends also show inside Markdown; blank lines would end it there."""
    text = escape(thinking).replace("\n", "<br>")
    return (
        f'<details style="{MUTED};margin:.2em 0 .6em"><summary style="cursor:pointer">{thought(thinking)}</summary>'
        f'<div style="margin:.4em 0 0 1em">{text}</div></details>'
    )


def footer_html(reply: Reply) -> str:
    """The footer in muted small print, a rule above it; `[interrupted]` and `[failed]` stand out."""
    lines = "<br>\n".join(escape(line) for line in footer(reply).split("\n"))
    for mark in ("[interrupted]", "[failed]"):
        lines = lines.replace(mark, f'<strong style="color:var(--jp-ui-font-color1,inherit)">{mark}</strong>', 1)
    line = "border-top:1px solid var(--jp-border-color2,rgba(127,127,127,.3))"
    return f'<div style="margin-top:.7em;padding-top:.35em;line-height:1.5;{line};{MUTED}">{lines}</div>'


def _closing_fence(text: str) -> str:
    """What closes a code block that the answer left open: an interrupted answer often does."""
    fence = ""
    for line in text.split("\n"):
        match = _FENCE.match(line)
        if match is None:
            continue
        marker, rest = match[1], match[2].strip()
        if not fence:
            fence = marker if not (marker[0] == "`" and "`" in rest) else ""
        elif marker.startswith(fence) and not rest:
            fence = ""
    return f"\n{fence}" if fence else ""
