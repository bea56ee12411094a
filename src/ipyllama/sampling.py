"""How tokens are chosen: every option of llama.cpp's samplers, and the chain that they stand for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Final, Literal

from ipyllama.errors import BadOption

if TYPE_CHECKING:
    from ipyllama import _core

MAX_SEED: Final = 2**32 - 2
"""The largest seed; llama.cpp takes the next number, the last that 32 bits hold, as "random"."""

_COLD: Final = 1e-9
"""A lower temperature always takes the likeliest token."""


@dataclass(frozen=True, slots=True)
class Range:
    """The values that an option may have."""

    low: float
    high: float
    whole: bool = False


_WINDOW: Final = Range(0, 2**20, whole=True)
_RANGES: Final = {
    "temperature": Range(0, 2),
    "top_p": Range(0, 1),
    "top_k": Range(0, math.inf, whole=True),
    "min_p": Range(0, 1),
    "repeat_penalty": Range(0.1, 10),
    "seed": Range(0, MAX_SEED, whole=True),
    "typical_p": Range(0, 1),
    "top_n_sigma": Range(0, 100),
    "frequency_penalty": Range(-10, 10),
    "presence_penalty": Range(-10, 10),
    "repeat_last_n": _WINDOW,
    "dynatemp_range": Range(0, 2),
    "dynatemp_exponent": Range(0, 100),
    "xtc_probability": Range(0, 1),
    "xtc_threshold": Range(0, 1),
    "dry_multiplier": Range(0, 100),
    "dry_base": Range(1, 100),
    "dry_allowed_length": Range(1, 2**20, whole=True),
    "dry_last_n": _WINDOW,
    "mirostat": Range(0, 2, whole=True),
    "mirostat_tau": Range(0, 100),
    "mirostat_eta": Range(0, 1),
    "adaptive_target": Range(-1, 1),
    "adaptive_decay": Range(0, 0.99),
}

Biases = tuple[tuple[int | str, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """Options of llama.cpp's samplers. The fixed seed makes the same prompt give the same answer.

    Raises `BadOption`, in one line with the allowed range, for a value that cannot be used.
    """

    temperature: float = 0.2
    """0 always takes the likeliest token, higher is more varied; 0 to 2"""
    top_p: float = 0.95
    """sample from the likeliest tokens that together have this probability; 0 to 1, 1 is off"""
    top_k: int = 40
    """sample from this many of the likeliest tokens; 0 is off"""
    min_p: float = 0.05
    """drop tokens less likely than this share of the likeliest one; 0 to 1, 0 is off"""
    repeat_penalty: float = 1.0
    """divide the logits of recent tokens by this; 0.1 to 10, 1 is off"""
    seed: int | Literal["random"] = 42
    """0 to 4,294,967,294, or "random" for another sample each time"""
    frequency_penalty: float = 0.0
    """subtract this from a recent token's logit for each time it was there; -10 to 10, 0 is off"""
    presence_penalty: float = 0.0
    """subtract this once from the logits of recent tokens; -10 to 10, 0 is off"""
    repeat_last_n: int = 64
    """how many tokens count as recent, those of the prompt too"""
    typical_p: float = 1.0
    """sample from the most typical tokens that together have this probability; 0 to 1, 1 is off"""
    top_n_sigma: float = 0.0
    """keep logits within this many standard deviations of the largest; 0 is off"""
    dynatemp_range: float = 0.0
    """let the temperature move this far up and down with the entropy; 0 is off"""
    dynatemp_exponent: float = 1.0
    """how it moves: the power of the entropy"""
    xtc_probability: float = 0.0
    """how often to exclude the top choices and keep only the least likely of them; 0 to 1, 0 is off"""
    xtc_threshold: float = 0.1
    """from which probability on a token is a top choice; above 0.5 is off"""
    dry_multiplier: float = 0.0
    """strength of the penalty on going on with a repetition (DRY); 0 is off, 0.8 is usual"""
    dry_base: float = 1.75
    """how the DRY penalty grows with each repeated token; at least 1"""
    dry_allowed_length: int = 2
    """repetitions of fewer tokens are free"""
    dry_last_n: int = 64
    """how many tokens are looked at for repetitions, those of the prompt too"""
    dry_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    """texts that a repetition does not reach across"""
    mirostat: int = 0
    """1 or 2: keep the surprise of tokens near mirostat_tau, in place of the filters above; 0 is off"""
    mirostat_tau: float = 5.0
    """the surprise that mirostat aims at, in bits"""
    mirostat_eta: float = 0.1
    """how fast mirostat learns; 0 to 1"""
    adaptive_target: float = -1.0
    """prefer tokens near this probability; 0 to 1, below 0 is off"""
    adaptive_decay: float = 0.9
    """over how many tokens: 1 / (1 - decay); 0 to 0.99"""
    logit_bias: Biases = ()
    """added to logits, a mapping of token ids, or of texts that are one token each; -inf forbids a token"""
    grammar: str = ""
    """a GBNF grammar that the text must follow from its rule root on; empty is off"""
    grammar_triggers: tuple[str, ...] = ()
    """regular expressions: the grammar begins to count where one of them is found in the text"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "logit_bias", _biases(self.logit_bias))
        for name in ("dry_breakers", "grammar_triggers"):
            object.__setattr__(self, name, as_texts(name, getattr(self, name)))
        self.validate()

    def validate(self) -> None:
        """Raise `BadOption` if a value is of the wrong kind or out of range."""
        check_ranges(self, _RANGES)
        if not isinstance(self.grammar, str):
            raise BadOption(f"grammar must be a text: got {type(self.grammar).__name__}")
        if self.grammar_triggers and not self.grammar:
            raise BadOption("grammar_triggers need a grammar that they trigger")


def make_sampler(model: _core.Model, options: SamplingOptions, prompt: Sequence[int] = ()) -> _core.Sampler:
    """The sampler that `options` (with a concrete seed) stand for: the chain of `sampler_parts`."""
    from ipyllama._core import Sampler

    return Sampler.chain(sampler_parts(model, options, prompt))


def sampler_parts(model: _core.Model, options: SamplingOptions, prompt: Sequence[int] = ()) -> list[_core.Sampler]:
    """What `options` (with a concrete seed) stand for, in llama.cpp's default order: grammar, biases, penalties, DRY,
    top-n-sigma, top-k, typical, top-p, min-p, XTC, temperature, draw. What is off is left out.

    The grammar comes first, so that the others choose among what it allows. Penalties look back on `prompt`, token ids,
    too: they are not part of KV and so are rebuilt from the ledger. Raises `BadGrammar` and `BadOption`.
    """
    from ipyllama._core import Sampler

    parts = [*_constraints(model, options), *_repetitions(model, options, prompt)]
    seed = int(options.seed)
    if options.mirostat:
        tau, eta = options.mirostat_tau, options.mirostat_eta
        last = Sampler.mirostat(model, tau, eta, seed=seed) if options.mirostat == 1 else None
        return [*parts, Sampler.temp(options.temperature), last or Sampler.mirostat_v2(tau, eta, seed)]
    if options.temperature < _COLD and not options.dynatemp_range:
        return [*parts, Sampler.greedy()]
    parts += _filters(model, options)
    parts.append(Sampler.temp_ext(options.temperature, options.dynatemp_range, options.dynatemp_exponent))
    adaptive = options.adaptive_target >= 0
    draw = Sampler.adaptive_p(options.adaptive_target, options.adaptive_decay, seed) if adaptive else Sampler.dist(seed)
    return [*parts, draw]


def _constraints(model: _core.Model, options: SamplingOptions) -> list[_core.Sampler]:
    from ipyllama._core import Sampler

    parts = []
    if options.grammar_triggers and options.grammar:
        parts.append(Sampler.grammar_lazy_patterns(model, options.grammar, patterns=options.grammar_triggers))
    elif options.grammar:
        parts.append(Sampler.grammar(model, options.grammar))
    if options.logit_bias:
        biases = {_token(model, key): bias for key, bias in options.logit_bias}
        parts.append(Sampler.logit_bias(model, biases))
    return parts


def _repetitions(model: _core.Model, options: SamplingOptions, prompt: Sequence[int]) -> list[_core.Sampler]:
    from ipyllama._core import Sampler

    repeat, frequency, presence = options.repeat_penalty, options.frequency_penalty, options.presence_penalty
    parts = []
    if (repeat, frequency, presence) != (1, 0, 0) and options.repeat_last_n:
        last_n = options.repeat_last_n
        penalties = Sampler.penalties(model, last_n=last_n, repeat=repeat, frequency=frequency, presence=presence)
        penalties.accept(list(prompt[-last_n:]))
        parts.append(penalties)
    if options.dry_multiplier and options.dry_last_n:
        dry = Sampler.dry(
            model,
            multiplier=options.dry_multiplier,
            base=options.dry_base,
            allowed_length=options.dry_allowed_length,
            last_n=options.dry_last_n,
            breakers=options.dry_breakers,
        )
        dry.accept(list(prompt[-options.dry_last_n :]))
        parts.append(dry)
    return parts


def _filters(model: _core.Model, options: SamplingOptions) -> list[_core.Sampler]:
    from ipyllama._core import Sampler

    parts = []
    if options.top_n_sigma > 0:
        parts.append(Sampler.top_n_sigma(options.top_n_sigma))
    if options.top_k > 0:
        parts.append(Sampler.top_k(min(options.top_k, model.n_vocab)))
    if options.typical_p < 1:
        parts.append(Sampler.typical(options.typical_p))
    if options.top_p < 1:
        parts.append(Sampler.top_p(options.top_p))
    if options.min_p > 0:
        parts.append(Sampler.min_p(options.min_p))
    if options.xtc_probability > 0:
        parts.append(Sampler.xtc(options.xtc_probability, options.xtc_threshold, seed=int(options.seed)))
    return parts


def check_ranges(options: object, ranges: Mapping[str, Range]) -> None:
    """Raise `BadOption` for the first of these options that is not in its range; a seed may also be "random"."""
    for name, allowed in ranges.items():
        value = getattr(options, name)
        if not (name == "seed" and value == "random"):
            _check(name, value, allowed)


def as_texts(name: str, value: object) -> tuple[str, ...]:
    """One text or several as a tuple. Raises `BadOption`."""
    texts = (value,) if isinstance(value, str) else value
    if not isinstance(texts, Iterable):
        raise BadOption(f"{name} must be a text or several: got {value!r}")
    texts = tuple(texts)
    for text in texts:
        if not isinstance(text, str) or not text:
            raise BadOption(f"{name} must be texts of at least one character: got {text!r}")
    return texts


def _check(name: str, value: Any, allowed: Range) -> None:
    kind: Any = Integral if allowed.whole else Real  # numpy numbers are welcome
    if isinstance(value, bool) or not isinstance(value, kind):
        also = ' or "random"' if name == "seed" else ""
        raise BadOption(f"{name} must be a {'whole ' if allowed.whole else ''}number{also}: got {value!r}")
    if not allowed.low <= value <= allowed.high or math.isinf(value):  # NaN fails the comparison
        low, high = f"{allowed.low:,}", f"{allowed.high:,}"
        bounds = f"at least {low}" if math.isinf(allowed.high) else f"between {low} and {high}"
        raise BadOption(f"{name} must be {bounds}: got {value}")


def _biases(value: object) -> Biases:
    pairs = value.items() if isinstance(value, Mapping) else value
    if not isinstance(pairs, Iterable) or isinstance(pairs, str):
        raise BadOption(f"logit_bias must map tokens to numbers: got {value!r}")
    found = []
    for pair in pairs:
        match pair:
            case (bool(), _) | (_, bool()):
                pass
            case (Integral() | str() as token, Real() as bias) if bias < math.inf:  # false for NaN
                found.append((token if isinstance(token, str) else int(token), float(bias)))
                continue
        raise BadOption(f"logit_bias must map token ids or texts to numbers (-inf forbids): got {pair!r}")
    return tuple(found)


def _token(model: _core.Model, key: int | str) -> int:
    if isinstance(key, str):
        tokens = model.tokenize(key, add_special=False, parse_special=True)
        if len(tokens) != 1:
            raise BadOption(
                f"logit_bias: {key!r} is {len(tokens)} tokens of this model, it must be one: try ids {tokens}"
            )
        return tokens[0]
    if not 0 <= key < model.n_vocab:
        raise BadOption(f"logit_bias: there is no token {key}, the vocabulary has 0 to {model.n_vocab - 1:,}")
    return key
