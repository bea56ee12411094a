"""An answer from documents: the chunks that it was written from, each to fold out, with source and score.

What stands in documents is shown as text, whatever it looks like.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

from ipyllama.display.divergence import divergence_text
from ipyllama.display.reply import MUTED, NO_MATH, reply_html, reply_markdown
from ipyllama.display.text import one_line, printable, reply_text
from ipyllama.display.units import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipyllama.rag.reply import RagReply
    from ipyllama.rag.types import Hit

SHOWN: Final = 240
"""Characters of a chunk in the text form."""
_ROW: Final = "display:inline-flex;width:calc(100% - 2em);gap:.6em;align-items:baseline;vertical-align:top"
_LINE: Final = "1px solid var(--jp-border-color2,rgba(127,127,127,.3))"
_NUMBER: Final = "flex:none;min-width:2.2em;font-variant-numeric:tabular-nums"
_NAME: Final = "flex:1 1 auto;min-width:0;overflow-wrap:anywhere"
_TEXT: Final = (
    "margin:.1em 0 .6em 2.8em;padding-left:.8em;white-space:pre-wrap;overflow-wrap:anywhere;max-height:20em;"
    "overflow-y:auto;border-left:2px solid var(--jp-border-color2,rgba(127,127,127,.3))"
)


def rag_bundle(reply: RagReply) -> dict[str, str]:
    """The answer, its footer, and the chunks below it."""
    below = sources_bundle(reply)
    return {
        "text/plain": f"{reply_text(reply)}\n\n{below['text/plain']}",
        "text/markdown": f"{reply_markdown(reply)}\n\n{sources_html(reply)}",
        "text/html": f"{reply_html(reply)}\n{below['text/html']}",
    }


def sources_bundle(reply: RagReply) -> dict[str, str]:
    """The chunks of an answer."""
    return {"text/plain": sources_text(reply), "text/html": sources_html(reply)}


def hits_bundle(query: str, hits: Sequence[Hit]) -> dict[str, str]:
    """What a search has found."""
    title = f"{plural(len(hits), 'chunk')} for “{one_line(query)}”"
    text = [title, *(_hit_text(number, hit, cited=False) for number, hit in enumerate(hits, start=1))]
    rows = "\n".join(_hit_html(number, hit, cited=False) for number, hit in enumerate(hits, start=1))
    return {"text/plain": "\n".join(text), "text/html": _box(escape(title), rows)}


def sources_text(reply: RagReply) -> str:
    """`[1]* source › title · score 0.82`, the cited ones with a star, and the beginning of each chunk."""
    lines = [_title(reply)]
    lines += [_hit_text(number, hit, cited=number in reply.cited) for number, hit in enumerate(reply.hits, start=1)]
    return "\n".join([*lines, *_remarks(reply)])


def sources_html(reply: RagReply) -> str:
    """The same, each chunk a line that opens."""
    rows = [_hit_html(number, hit, cited=number in reply.cited) for number, hit in enumerate(reply.hits, start=1)]
    rows += [f'<div style="margin-top:.4em">{escape(line)}</div>' for line in _remarks(reply)]
    return _box(escape(_title(reply)), "\n".join(rows))


def _title(reply: RagReply) -> str:
    return f"{plural(len(reply.hits), 'chunk')} read, {len(reply.cited)} cited"


def _remarks(reply: RagReply) -> list[str]:
    found = [f"[{number}] is cited, and there is no such document" for number in reply.unknown]
    return [*found, divergence_text(reply.divergence)] if reply.divergence is not None else found


def _box(title: str, rows: str) -> str:
    return f'<div {NO_MATH} style="margin-top:.5em;max-width:60em;{MUTED}"><div>{title}</div>\n{rows}</div>'


def _place(hit: Hit) -> str:
    return one_line(f"{hit.chunk.source} › {hit.chunk.title}" if hit.chunk.title else hit.chunk.source)


def _score(hit: Hit) -> str:
    ranks = (("meaning", hit.vector_rank), ("words", hit.text_rank))
    return ", ".join([f"score {hit.score:.3g}", *(f"{name} #{rank}" for name, rank in ranks if rank is not None)])


def _hit_text(number: int, hit: Hit, *, cited: bool) -> str:
    text = one_line(hit.chunk.text)
    text = text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
    return f"[{number}]{'*' if cited else ' '} {_place(hit)} · {_score(hit)}\n      {text}"


def _hit_html(number: int, hit: Hit, *, cited: bool) -> str:
    strong = "font-weight:600;color:var(--jp-ui-font-color1,inherit)" if cited else ""
    mark = '<span style="flex:none">cited</span>' if cited else ""
    return (
        f'<details style="border-top:{_LINE}"><summary style="cursor:pointer;padding:.25em 0">'
        f'<span style="{_ROW}">'
        f'<span style="{_NUMBER};{strong}">[{number}]</span>'
        f'<span style="{_NAME};{strong}">{escape(_place(hit))}</span>{mark}'
        f'<span style="flex:none">{escape(_score(hit))}</span></span></summary>'
        f'<div style="{_TEXT}">{escape(printable(hit.chunk.text.strip()))}</div></details>'
    )
