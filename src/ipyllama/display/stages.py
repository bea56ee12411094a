"""The stages of sampling side by side: for the likeliest tokens, the probability that each stage leaves them."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Final

from ipyllama.display.reply import MUTED
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
_CELL: Final = "padding:.15em .8em .15em 0;text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums"
_RULE: Final = "border-bottom:1px solid var(--jp-border-color1,rgba(127,127,127,.5))"


def stages_title(shown: NextToken) -> str:
    """`The next token after "…of France is": 49,152 in the vocabulary, 2.31 bits of entropy`."""
    text = shown.text
    before = token_text(text[-BEFORE:].encode())
    first = shown.stages[0]
    cut = "…" if len(text) > BEFORE else ""
    return (
        f'The next token after "{cut}{before}": {format_count(len(first.tokens))} in the vocabulary, '
        f"{first.entropy:.2f} bits of entropy"
    )


def stage_name(stage: Stage) -> str:
    """`top-k 40`."""
    values = ", ".join(str(value) for value in stage.settings.values())
    return f"{stage.name.replace('_', '-')} {values}".strip()


def stage_effect(stage: Stage) -> str:
    """What it took away, and what is left."""
    left = f"{format_count(len(stage.tokens))} left"
    return f"{left}, {format_count(stage.n_removed)} gone ({format_share(stage.removed)})" if stage.n_removed else left


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
    effects = [f"{stage_name(stage)}: {stage_effect(stage)}" for stage in shown.stages]
    return "\n".join([stages_title(shown), table_text(table), *effects])


def stages_html(shown: NextToken) -> str:
    """The same with a bar behind each number. Without script or style sheet."""
    tokens, stages = shown_tokens(shown), shown.stages
    heads = "".join(
        f'<th style="{_CELL};{_RULE};font-weight:600">{escape(stage_name(stage))}'
        f'<div style="{MUTED};font-weight:normal">{escape(stage_effect(stage))}</div></th>'
        for stage in stages
    )
    left = _CELL.replace("right", "left")
    first = f'<th style="{left};{_RULE}">token</th><th style="{_CELL};{_RULE}">id</th>'
    head = f'<tr style="vertical-align:bottom">{first}{heads}</tr>'
    rows = "\n".join(
        f'<tr><td style="{left};font-family:var(--jp-code-font-family,monospace)">'
        f'{escape(token_text(shown.piece(token)))}</td><td style="{_CELL};{MUTED}">{token}</td>'
        f"{''.join(_cell(stage.probability(token)) for stage in stages)}</tr>"
        for token in tokens
    )
    note = _note(shown, tokens)
    return (
        f'<div style="{MUTED};margin-bottom:.4em">{escape(stages_title(shown))}</div>\n'
        f'<div style="overflow-x:auto"><table style="border-collapse:collapse;margin:0">\n<thead>{head}</thead>\n'
        f"<tbody>\n{rows}\n</tbody>\n</table></div>"
        + (f'\n<div style="{MUTED};margin-top:.3em">{escape(note)}</div>' if note else "")
    )


def _row(stages: Sequence[Stage], token: int) -> list[str]:
    return [_share(stage.probability(token)) for stage in stages]


def _share(probability: float | None) -> str:
    return GONE if probability is None else format_share(probability)


def _cell(probability: float | None) -> str:
    if probability is None:
        return f'<td style="{_CELL};{MUTED}">{GONE}</td>'
    width = max(0.0, min(1.0, probability)) * 100
    bar = f"background:linear-gradient(90deg,rgba({OPEN},.3) {width:.1f}%,transparent {width:.1f}%)"
    return f'<td style="{_CELL};{bar}">{format_share(probability)}</td>'


def _note(shown: NextToken, tokens: Sequence[int]) -> str:
    more = len(shown.stages[0].tokens) - len(tokens)
    return f"{plural(more, 'token')} of lower probability not shown" if more > 0 else ""
