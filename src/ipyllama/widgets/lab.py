"""The sampling lab, live: sliders for the stages of the chain, the distribution that each leaves, draws."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any, Final

import traitlets

from ipyllama.display.reply import MUTED
from ipyllama.display.stages import shown_tokens, stage_effect, stage_name, stages_html, stages_summary, stages_text
from ipyllama.display.text import printable
from ipyllama.display.tokens import token_text
from ipyllama.display.units import plural
from ipyllama.errors import ClosedError, LlamaError
from ipyllama.lens import SamplingLab, Stage
from ipyllama.lens.lab import SLIDERS
from ipyllama.widgets.play import PlayView, play_script
from ipyllama.widgets.view import Bundle, style

CONTEXT: Final = 600
"""Characters that are shown of the text before."""
MOST_DRAWN: Final = 100
"""Tokens that one click draws at the most."""
GONE: Final = "the model of this lab was unloaded: load it again, then run the cell again"
_STAGES: Final = {
    "penalties": "repeat_penalty",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "temperature": "temperature",
}
"""Of the stages that have a slider, the option that it sets."""


class LabView(PlayView):
    """A `SamplingLab` to look at and to play with; what is done in the view is done to the lab, and the other way round
    it takes `update`."""

    _esm = play_script("lab")
    _css = style("lab")
    state = traitlets.Dict(help="what is shown, see `packed`").tag(sync=True)

    def __init__(self, lab: SamplingLab) -> None:
        self.lab = lab
        super().__init__(state=packed(lab))

    def bundle(self) -> Bundle:
        drawn = f'{plural(len(self.lab.drawn), "token")} drawn: "{token_text(self.lab.text.encode())}"'
        text, html = stages_text(self.lab.next), stages_html(self.lab.next)
        if not self.lab.drawn:
            return {"text/plain": text, "text/html": html}
        return {
            "text/plain": f"{drawn}\n{text}",
            "text/html": f'<div style="{MUTED};margin-bottom:.2em">{escape(drawn)}</div>\n{html}',
        }

    def update(self) -> None:
        """Show the lab as it is now."""
        self.state = packed(self.lab)
        self.changed()

    def told(self, content: dict[str, Any]) -> None:
        match content:
            case {"kind": "set", "options": dict(options)} if options.keys() <= {*SLIDERS, "seed"}:
                self._do(lambda: self.lab.set(**options), f"set {sorted(options)}")
            case {"kind": "draw", "n": int(n)}:
                self._do(lambda: self._draw(n))
            case {"kind": "append", "token": int(token)}:
                self._do(lambda: self.lab.append(token))
            case {"kind": "undo"}:
                self._do(self.lab.undo)

    def _draw(self, n: int) -> None:
        """Token by token, so that one sees them come."""
        for _ in range(min(n, MOST_DRAWN)):
            if self.lab.drawn and self.lab.ended:
                break
            self.lab.draw()
            self.update()

    def _do(self, what: Callable[[], object], key: str = "") -> None:
        def do() -> None:
            try:
                what()
                self.problem = ""
                self.update()
            except ClosedError:
                self.problem = GONE  # what is shown stays: texts of tokens cannot be had any more
            except LlamaError as error:
                self.problem = str(error)
                self.update()  # sliders go back

        self.worker.do(do, key)


def packed(lab: SamplingLab) -> dict[str, Any]:
    """What the front end draws. `columns` are the stages, those that are off among them; of a token that is gone its
    share is None."""
    columns, stages = _columns(lab)
    pieces = lab.next.piece
    return {
        "summary": stages_summary(lab.next),
        "before": printable(lab.before[-CONTEXT:]),
        "drawn": [printable(pieces(token).decode("utf-8", "replace")) for token in lab.drawn],
        "ended": lab.ended,
        "columns": columns,
        "rows": [
            {
                "id": token,
                "text": token_text(pieces(token)),
                "shares": [stage.probability(token) for stage in stages],
            }
            for token in shown_tokens(lab.next)
        ],
        "options": {name: getattr(lab.options, name) for name in (*SLIDERS, "seed")},
    }


def _columns(lab: SamplingLab) -> tuple[list[dict[str, Any]], list[Stage]]:
    """The stages in order, each slider's among them: one that is off leaves what there was before it."""
    found = list(lab.next.stages)
    missing = [name for name in _STAGES if all(stage.name != name for stage in found)]
    for name in missing:
        found.insert(_place(name, found), Stage(name, {}, *_last(found, name)))
    columns = []
    for stage in found:
        off = stage.name in missing
        left, gone = ("", "") if off else stage_effect(stage)
        name = stage.name.replace("_", "-")
        columns.append({"name": name, "option": _STAGES.get(stage.name), "off": off, "left": left, "gone": gone})
        if columns[-1]["option"] is None and not off:
            columns[-1]["name"] = stage_name(stage)
    return columns, found


def _place(name: str, stages: list[Stage]) -> int:
    """Where the stage would stand: before the first that comes after it in the chain."""
    order = ["model", "grammar", "logit_bias", "penalties", "dry", "top_n_sigma", "top_k", "typical", "top_p", "min_p"]
    before = order.index(name)
    at = [number for number, stage in enumerate(stages) if stage.name in order and order.index(stage.name) <= before]
    return at[-1] + 1


def _last(stages: list[Stage], name: str) -> tuple[Any, Any]:
    stage = stages[_place(name, stages) - 1]
    return stage.tokens, stage.probabilities
