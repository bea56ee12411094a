"""Sampling options: ranges, kinds, suggestions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ipyllama.errors import BadOption
from ipyllama.options import MAX_SEED, GenerateOptions, did_you_mean


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("temperature", 2.1, "temperature must be between 0 and 2: got 2.1"),
        ("temperature", -0.1, "temperature must be between 0 and 2: got -0.1"),
        ("temperature", math.nan, "temperature must be between 0 and 2: got nan"),
        ("temperature", "hot", "temperature must be a number: got 'hot'"),
        ("top_p", 1.5, "top_p must be between 0 and 1: got 1.5"),
        ("min_p", -1, "min_p must be between 0 and 1: got -1"),
        ("top_k", -1, "top_k must be at least 0: got -1"),
        ("top_k", 1.5, "top_k must be a whole number: got 1.5"),
        ("max_tokens", 0, "max_tokens must be at least 1: got 0"),
        ("max_tokens", True, "max_tokens must be a whole number: got True"),
        ("repeat_penalty", 0, "repeat_penalty must be between 0.1 and 10: got 0"),
        ("repeat_penalty", math.inf, "repeat_penalty must be between 0.1 and 10: got inf"),
        ("seed", MAX_SEED + 1, "seed must be between 0 and 4,294,967,294: got 4294967295"),
        ("seed", "dice", "seed must be a whole number or \"random\": got 'dice'"),
        ("mirostat", 3, "mirostat must be between 0 and 2: got 3"),
        ("adaptive_target", -1.5, "adaptive_target must be between -1 and 1: got -1.5"),
        ("dry_breakers", [""], "dry_breakers must be texts of at least one character: got ''"),
        ("grammar", b"x", "grammar must be a text: got bytes"),
        ("grammar_triggers", "x", "grammar_triggers need a grammar that they trigger"),
        ("logit_bias", 3, "logit_bias must map tokens to numbers: got 3"),
        ("logit_bias", {1: math.nan}, "logit_bias must map token ids or texts to numbers (-inf forbids): got (1, nan)"),
        ("logit_bias", {1: math.inf}, "logit_bias must map token ids or texts to numbers (-inf forbids): got (1, inf)"),
        ("logit_bias", {1: True}, "logit_bias must map token ids or texts to numbers (-inf forbids): got (1, True)"),
        ("logit_bias", {1.5: 1}, "logit_bias must map token ids or texts to numbers (-inf forbids): got (1.5, 1)"),
        ("stop", "", "stop must be texts of at least one character: got ''"),
        ("stop", 3, "stop must be a text or several: got 3"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(name: str, value: object, message: str) -> None:
    with pytest.raises(BadOption) as error:
        GenerateOptions(**{name: value})
    assert str(error.value) == message


def test_the_ends_of_the_ranges_are_allowed() -> None:
    GenerateOptions(max_tokens=1, temperature=0, top_p=0, top_k=0, min_p=0, repeat_penalty=0.1, seed=0)
    GenerateOptions(max_tokens=10**9, temperature=2, top_p=1, top_k=10**9, min_p=1, repeat_penalty=10, seed=MAX_SEED)


def test_numpy_numbers_are_numbers() -> None:
    options = GenerateOptions(temperature=np.float32(0.5), top_k=np.int64(3))
    assert (options.temperature, options.top_k) == (0.5, 3)


def test_a_single_stop_text_is_not_taken_apart() -> None:
    assert GenerateOptions(stop="ab").stop == ("ab",)
    assert GenerateOptions(stop=["ab", "c"]).stop == ("ab", "c")


def test_biases_are_kept_as_pairs_that_can_be_compared() -> None:
    options = GenerateOptions(logit_bias={np.int64(5): 1, " x": -math.inf})
    assert options.logit_bias == ((5, 1.0), (" x", -math.inf))
    assert options == GenerateOptions(logit_bias=options.logit_bias)
    assert hash(options) == hash(GenerateOptions(logit_bias=options.logit_bias))


def test_replace_changes_what_is_named_and_skips_none() -> None:
    options = GenerateOptions().replace_from({"temperature": 0, "top_k": None})
    assert options == GenerateOptions(temperature=0)


def test_an_unknown_name_is_answered_with_the_one_meant() -> None:
    with pytest.raises(BadOption, match=r"^unknown option 'temprature': did you mean 'temperature'\?$"):
        GenerateOptions().replace_from({"temprature": 1})
    with pytest.raises(BadOption, match=r"^unknown option 'xyz': known are temperature, top_p,"):
        GenerateOptions().replace_from({"xyz": 1})
    assert did_you_mean("xyz", ["abc"]) == ""


def test_a_random_seed_becomes_a_number_that_can_be_used_again() -> None:
    drawn = [GenerateOptions(seed="random").with_concrete_seed() for _ in range(3)]
    assert len({options.seed for options in drawn}) == 3
    assert all(options.with_concrete_seed() == options for options in drawn)
