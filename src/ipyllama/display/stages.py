"""The stages of sampling side by side: for the likeliest tokens, the probability that each stage leaves them."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Final

from ipyllama.display.reply import MUTED, NO_MATH
from ipyllama.display.table import Table, table_text
from ipyllama.display.tokens import OPEN, token_text
from ipyllama.display.units import format_count, format_share, plural

if TYPE_CHECKING:
    from ipyllama.lens import NextToken, Stage

SHOWN: Final = 20
"""Tokens that have a row."""
BEFORE: Final = 60
"""Characters that are shown of the text before."""
GONE: Final = "–"
"""In place of the probability of a token that was taken away."""
_CELL: Final = "padding:.15em .6em;text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums"
_STAGE: Final = f"{_CELL};min-width:5em"
_RULE: Final = "border-bottom:1px solid var(--jp-border-color1,rgba(127,127,127,.5))"


def stages_title(shown: NextToken) -> str:
    """`The next token after "…of France is": 49,152 in the vocabulary, 2.31 bits of entropy`."""
    text = shown.text
    before = token_text(text[-BEFORE:].encode())
    cut = "…" if len(text) > BEFORE else ""
    return f'The next token after "{cut}{before}": {stages_summary(shown)}'


def stages_summary(shown: NextToken) -> str:
    """`49,152 in the vocabulary, 2.31 bits of entropy`."""
    first = shown.stages[0]
    return f"{format_count(len(first.tokens))} in the vocabulary, {first.entropy:.2f} bits of entropy"


def stage_name(stage: Stage) -> str:
    """`top-k 40`; of penalties those that are on, as `repeat 1.1`."""
    if stage.name == "penalties":
        return ", ".join(f"{name.removesuffix('_penalty')} {value}" for name, value in stage.settings.items())
    values = ", ".join(str(value) for value in stage.settings.values())
    return f"{stage.name.replace('_', '-')} {values}".strip()


def stage_effect(stage: Stage) -> tuple[str, str]:
    """What is left, and what it took away: `9 left`, `31 gone (4.6%)`, empty if nothing."""
    gone = f"{format_count(stage.n_removed)} gone ({format_share(stage.removed)})" if stage.n_removed else ""
    return f"{format_count(len(stage.tokens))} left", gone


def shown_tokens(shown: NextToken, n: int = SHOWN) -> list[int]:
    """The ids that have a row: the likeliest at the end of the chain, then the likeliest of the model's own, `n` in all
    and in the model's order."""
    first, last = shown.stages[0], shown.stages[-1]
    wanted = dict.fromkeys([*last.tokens[: n // 2].tolist(), *first.tokens[:n].tolist()])
    chosen = set(list(wanted)[:n])
    rank = {token: number for number, token in enumerate(first.tokens.tolist()) if token in chosen}
    return sorted(chosen, key=lambda token: rank[token])


def stages_text(shown: NextToken) -> str:
    """A row for each token, a column for each stage, and below what each stage did."""
    tokens = shown_tokens(shown)
    rows = tuple((f'"{token_text(shown.piece(token))}"', str(token), *_row(shown.stages, token)) for token in tokens)
    columns = ("token", "id", *(stage_name(stage) for stage in shown.stages))
    table = Table(columns, rows, right=frozenset(range(1, len(columns))), note=_note(shown, tokens))
    effects = [f"{stage_name(stage)}: {', '.join(filter(None, stage_effect(stage)))}" for stage in shown.stages]
    return "\n".join([stages_title(shown), table_text(table), *effects])


def stages_html(shown: NextToken) -> str:
    """The same with a bar behind each number. Without script or style sheet."""
    tokens, stages = shown_tokens(shown), shown.stages
    heads = "".join(
        f'<th style="{_STAGE};{_RULE};vertical-align:top">{escape(stage_name(stage))}'
        f'<div style="{MUTED};font-weight:normal">{"<br>".join(map(escape, stage_effect(stage)))}</div></th>'
        for stage in stages
    )
    left = _CELL.replace("right", "left").replace("nowrap", "pre")
    name = f"{_RULE};vertical-align:top"
    head = f'<tr><th style="{left};{name}">token</th><th style="{_CELL};{name}">id</th>{heads}</tr>'
    rows = "\n".join(
        f'<tr><td style="{left};font-family:var(--jp-code-font-family,monospace)">'
        f'"{escape(token_text(shown.piece(token)))}"</td><td style="{_CELL};{MUTED}">{token}</td>'
        f"{''.join(_cell(stage.probability(token)) for stage in stages)}</tr>"
        for token in tokens
    )
    note, style = _note(shown, tokens), "border-collapse:collapse;margin:0;font-size:inherit"
    return (
        f'<div style="{MUTED};margin-bottom:.4em">{escape(stages_title(shown))}</div>\n'
        f'<div style="overflow-x:auto"><table {NO_MATH} style="{style}">\n<thead>{head}</thead>\n'
        f"<tbody>\n{rows}\n</tbody>\n</table></div>"
        + (f'\n<div style="{MUTED};margin-top:.3em">{escape(note)}</div>' if note else "")
    )


def _row(stages: Sequence[Stage], token: int) -> list[str]:
    return [_share(stage.probability(token)) for stage in stages]


def _share(probability: float | None) -> str:
    return GONE if probability is None else format_share(probability)


def _cell(probability: float | None) -> str:
    if probability is None:
        return f'<td style="{_STAGE};{MUTED}">{GONE}</td>'
    width = max(0.0, min(1.0, probability)) * 100
    bar = f"background:linear-gradient(90deg,rgba({OPEN},.3) {width:.1f}%,transparent {width:.1f}%)"
    return f'<td style="{_STAGE};{bar}">{format_share(probability)}</td>'


def _note(shown: NextToken, tokens: Sequence[int]) -> str:
    more = len(shown.stages[0].tokens) - len(tokens)
    return f"{plural(more, 'token')} of lower probability not shown" if more > 0 else ""
