"""Defaults of `%%llama` as traits: `%config Llama.max_tokens = 200` changes one for the session."""

from __future__ import annotations

from typing import Any

from traitlets import Bool, Float, Int, List, TraitError, Unicode, Union, observe, validate
from traitlets.config import Configurable

from ipyllama.errors import BadOption
from ipyllama.options import GenerateOptions, option_names
from ipyllama.widgets.front import allow

_DEFAULT = GenerateOptions()


class Llama(Configurable):
    """Defaults for `%%llama` cells. What is written on the cell's line wins."""

    max_tokens = Int(_DEFAULT.max_tokens, help="stop after this many tokens").tag(config=True)
    temperature = Float(_DEFAULT.temperature, help="0 takes the likeliest token, up to 2").tag(config=True)
    top_p = Float(_DEFAULT.top_p, help="sample from the likeliest tokens of this total probability").tag(config=True)
    top_k = Int(_DEFAULT.top_k, help="sample from this many of the likeliest tokens; 0 is off").tag(config=True)
    min_p = Float(_DEFAULT.min_p, help="drop tokens less likely than this share of the likeliest").tag(config=True)
    repeat_penalty = Float(_DEFAULT.repeat_penalty, help="discourage recent tokens; 1 is off").tag(config=True)
    frequency_penalty = Float(_DEFAULT.frequency_penalty, help="for each time that a token was there").tag(config=True)
    presence_penalty = Float(_DEFAULT.presence_penalty, help="once for tokens that were there").tag(config=True)
    dry_multiplier = Float(_DEFAULT.dry_multiplier, help="discourage going on with a repetition").tag(config=True)
    typical_p = Float(_DEFAULT.typical_p, help="sample from the most typical tokens").tag(config=True)
    xtc_probability = Float(_DEFAULT.xtc_probability, help="how often to exclude the top choices").tag(config=True)
    mirostat = Int(_DEFAULT.mirostat, help="1 or 2: steady surprise; 0 is off").tag(config=True)
    seed = Union([Int(), Unicode()], default_value=_DEFAULT.seed, help="a number, or 'random'").tag(config=True)
    stop = List(Unicode(), help="texts before which an answer ends").tag(config=True)
    reuse = Unicode(_DEFAULT.reuse, help="'exact', 'token': less after an edit, 'fused': with --rag").tag(config=True)
    recompute = Int(_DEFAULT.recompute, help="under 'fused', tokens of moved chunks computed anew").tag(config=True)
    system = Unicode("", help="system prompt of new conversations; '' leaves it to the template").tag(config=True)
    on_full = Unicode("error", help="or 'drop-oldest', 'shift', 'summarise-by TURN': what goes").tag(config=True)
    replay = Bool(True, help="give the same reply to the same request; False is --fresh").tag(config=True)
    stream = Bool(True, help="show answers while they are written").tag(config=True)
    widgets = Bool(True, help="live views, where the front end can show them; False is --plain").tag(config=True)

    @validate(*option_names())
    def _in_range(self, proposal: Any) -> Any:
        try:
            _DEFAULT.replace_from({proposal["trait"].name: proposal["value"]})
        except BadOption as error:
            raise TraitError(str(error)) from None
        return proposal["value"]

    @observe("widgets")
    def _switch(self, change: Any) -> None:
        allow(change["new"])

    @validate("on_full")
    def _known(self, proposal: Any) -> Any:
        from ipyllama.chat.room import OnFull

        try:
            OnFull.read(proposal["value"])
        except BadOption as error:
            raise TraitError(str(error)) from None
        return proposal["value"]

    def sampling(self) -> dict[str, Any]:
        """The sampling options that have a trait, as keyword arguments."""
        values = {name: getattr(self, name) for name in option_names() if self.has_trait(name)}
        return values | {"stop": tuple(self.stop)}
