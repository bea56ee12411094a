"""The tokens of an answer, each with how likely it was and what else could have stood there."""

from __future__ import annotations

import codecs
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from ipyllama.display.reply import MUTED, NO_MATH
from ipyllama.display.table import Table, table_text
from ipyllama.display.text import printable
from ipyllama.display.units import format_share, plural
from ipyllama.logprobs import Logprob, TokenLogprob, perplexity

LIMIT: Final = 400
"""Tokens in static HTML, which is saved with the notebook and read by JupyterLab again and again, for its table of
contents; live, and in Python, there are all."""
ROWS: Final = 120
"""Tokens in tables."""
_LIKELY: Final = (0.03, 0.1, 0.2, 0.4, 0.6, 0.8, 0.95)
_OPEN: Final = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
"""Where levels of colour begin: probabilities, and bits of entropy."""
_BYTES: Final = 8
"""Of a token that are written out in a table."""
ALPHAS: Final = (0.0, 0.12, 0.2, 0.3, 0.4, 0.52, 0.64, 0.76)
"""How strong the colour of each level is."""
UNLIKELY: Final = "229,101,0"
OPEN: Final = "33,120,220"
"""Red, green and blue: an orange for what was unlikely, a blue for an open choice. Over white and over black, text on
them is readable."""


@dataclass(frozen=True, slots=True)
class TokenList:
    """Shows itself in a notebook, and `print` writes a table."""

    title: str
    tokens: Sequence[TokenLogprob]

    def __str__(self) -> str:
        return tokens_text(self)

    def __repr__(self) -> str:
        return str(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": tokens_text(self), "text/html": tokens_html(self)}


def likely_level(probability: float) -> int:
    """0 for a token that was all but certain, up to 7."""
    return len(_LIKELY) - bisect_right(_LIKELY, probability)


def open_level(entropy: float) -> int:
    """0 where there was hardly a choice, up to 7; `entropy` in bits."""
    return bisect_left(_OPEN, entropy)


def token_texts(pieces: Iterable[bytes]) -> list[str]:
    """What each token of a text adds to it. Where it is a part of a character its bytes are written out; the token that
    completes the character has all of it."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    texts = []
    for piece in pieces:
        text = decoder.decode(piece)
        texts.append(printable(text) if text or not piece else f"‹{piece.hex(' ')}›")
    return texts


def token_text(piece: bytes) -> str:
    """A token by itself, white space visible."""
    try:
        text = piece.decode()
    except UnicodeDecodeError:
        return f"‹{piece.hex(' ')}›"
    return printable(text).replace("\n", "⏎").replace("\t", "⇥")


def summary(tokens: Sequence[TokenLogprob]) -> str:
    """`40 tokens · perplexity 1.35 · mean entropy 0.71 bits`."""
    if not tokens:
        return "no tokens"
    entropy = sum(each.entropy for each in tokens) / len(tokens)
    return f"{plural(len(tokens), 'token')} · perplexity {perplexity(tokens):,.2f} · mean entropy {entropy:.2f} bits"


def alternatives(token: TokenLogprob) -> str:
    """`"Hi" 20%, "Hey" 3.1%`: what else could have stood there, the likeliest first."""
    return ", ".join(f'"{token_text(each.bytes)}" {format_share(each.probability)}' for each in others(token))


def others(token: TokenLogprob) -> list[Logprob]:
    """The alternatives that are not the token itself."""
    return [each for each in token.top if each.id != token.id]


def tokens_table(shown: TokenList, limit: int = ROWS) -> Table:
    """A row for each token."""
    rows = tuple(
        (
            str(number),
            f'"{text.replace(chr(10), "⏎")}"',
            str(token.id),
            _hex(token.bytes),
            format_share(token.probability),
            f"{token.entropy:.2f}",
            alternatives(token),
        )
        for number, (token, text) in enumerate(zip(shown.tokens[:limit], _texts(shown, limit), strict=True))
    )
    columns = ("#", "token", "id", "bytes", "probability", "bits", "instead")
    more = _more(len(shown.tokens) - limit)
    return Table(columns, rows, right=frozenset({0, 2, 4, 5}), empty="(no tokens)", note=more)


def tokens_text(shown: TokenList) -> str:
    """A line that sums up, then a line for each token."""
    return f"{shown.title}\n{summary(shown.tokens)}\n{table_text(tokens_table(shown))}"


def tokens_html(shown: TokenList) -> str:
    """The text, the background of each token as strong as the token was unlikely, the line below it as strong as the
    choice was open; titles and a table tell the numbers. Without script or style sheet."""
    head = f'<div style="{MUTED};margin-bottom:.4em">{escape(shown.title)}<br>{escape(summary(shown.tokens))}</div>'
    if not shown.tokens:
        return head
    spans = "".join(
        _span(number, token, text)
        for number, (token, text) in enumerate(zip(shown.tokens[:LIMIT], _texts(shown, LIMIT), strict=True))
    )
    body = f'<div {NO_MATH} style="white-space:pre-wrap;overflow-wrap:anywhere;line-height:1.9">{spans}</div>'
    table = _plain_table(tokens_table(shown))
    details = (
        f'<details style="margin-top:.4em"><summary style="cursor:pointer;{MUTED}">the tokens in numbers</summary>\n'
        f'<div style="overflow-x:auto">{table}</div></details>'
    )
    return f"{head}\n{body}\n{_legend(len(shown.tokens) - LIMIT)}\n{details}"


def _plain_table(table: Table) -> str:
    """A table that looks as the front end likes: styles in every cell would be most of its size."""
    head = "".join(f"<th>{escape(name)}</th>" for name in table.columns)
    rows = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows)
    note = f'\n<div style="{MUTED}">{escape(table.note)}</div>' if table.note else ""
    return f"<table {NO_MATH}>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>{note}"


def token_title(number: int, token: TokenLogprob) -> str:
    """What is told of a token where the pointer rests on it."""
    lines = [
        f'token {number}: "{token_text(token.bytes)}", id {token.id}, bytes {_hex(token.bytes) or "none"}',
        f"{format_share(token.probability)}, entropy {token.entropy:.2f} bits",
    ]
    return "\n".join([*lines, f"instead: {alternatives(token)}"] if others(token) else lines)


def _hex(piece: bytes) -> str:
    return piece[:_BYTES].hex(" ") + (" …" if len(piece) > _BYTES else "")


def _texts(shown: TokenList, limit: int) -> list[str]:
    return token_texts(token.bytes for token in shown.tokens[:limit])


def _span(number: int, token: TokenLogprob, text: str) -> str:
    style = []
    if alpha := ALPHAS[likely_level(token.probability)]:
        style.append(f"background:rgba({UNLIKELY},{alpha})")
    if alpha := ALPHAS[open_level(token.entropy)]:
        style.append(f"border-bottom:2px solid rgba({OPEN},{alpha})")
    shown = escape(text.replace("\n", "⏎\n")) if text else "∅"
    return f'<span title="{escape(token_title(number, token))}" style="{";".join(style)}">{shown}</span>'


def _legend(n_more: int) -> str:
    swatch = "display:inline-block;width:1.1em;height:.8em;vertical-align:baseline"
    scales = [
        "".join(f'<span style="{swatch};{way.format(colour, alpha)}"></span>' for alpha in ALPHAS)
        for colour, way in ((UNLIKELY, "background:rgba({},{})"), (OPEN, "border-bottom:3px solid rgba({},{})"))
    ]
    more = f"<br>{escape(_more(n_more))}" if n_more > 0 else ""
    said = f"likely {scales[0]} unlikely &nbsp; one choice {scales[1]} many{more}"
    return f'<div style="{MUTED};margin-top:.4em">{said}</div>'


def _more(n: int) -> str:
    return f"{plural(n, 'more token')} not shown here: reply.logprobs has all" if n > 0 else ""
