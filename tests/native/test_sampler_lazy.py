"""Grammars that wait for a trigger."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from native.core import SANITIZED, run_apart
from native.grammars import accept, allowed

from ipyllama import _core
from ipyllama.errors import BadArgument, BadGrammar

make = _core.Sampler


@pytest.fixture(scope="module")
def model(tiny: Callable[[str], Path]) -> _core.Model:
    return _core.Model.load(str(tiny("llama")))


def test_a_lazy_grammar_waits_for_a_pattern(model: _core.Model) -> None:
    sampler = make.grammar_lazy_patterns(model, 'root ::= "=" [0-9]+', patterns=["x (=)"])
    accept(sampler, model, "anything at all x")
    assert len(allowed(sampler, model)) > 50
    accept(sampler, model, " =")
    assert allowed(sampler, model) == "0123456789"
    clone = sampler.clone()
    accept(clone, model, "7")
    assert allowed(clone, model) == "$0123456789"
    sampler.reset()
    assert len(allowed(sampler, model)) > 50


def test_a_lazy_grammar_waits_for_a_token(model: _core.Model) -> None:
    (start,) = model.tokenize("<|im_start|>", add_special=False, parse_special=True)
    sampler = make.grammar_lazy_patterns(model, 'root ::= <|im_start|> "a"', tokens=[start])
    accept(sampler, model, "free")
    sampler.accept([start])
    assert allowed(sampler, model) == "a"
    with pytest.raises(BadArgument, match="needs a pattern or a token"):
        make.grammar_lazy_patterns(model, 'root ::= "a"')
    with pytest.raises(BadArgument, match="0 to 355"):
        make.grammar_lazy_patterns(model, 'root ::= "a"', tokens=[356])


def test_a_trigger_whose_text_does_not_fit(model: _core.Model) -> None:
    """Upstream has given up its state by then: the sampler refuses until it is reset."""
    sampler = make.grammar_lazy_patterns(model, 'root ::= "=" [0-9]+', patterns=["x"])
    with pytest.raises(BadGrammar, match="grammar_lazy_patterns failed, reset\\(\\) it"):
        accept(sampler, model, "x")
    uses = (
        lambda: accept(sampler, model, "="),
        lambda: allowed(sampler, model),
        lambda: allowed(sampler.clone(), model),
    )
    for use in uses:
        with pytest.raises(BadGrammar, match="left half-way"):
            use()
    sampler.reset()
    accept(sampler, model, "=")


@pytest.mark.parametrize("pattern", ["(", "[", "a{2,1}", "*", "", "x" * 1025, "a\0b", "(" * 500 + ")" * 400])
def test_bad_patterns(model: _core.Model, pattern: str) -> None:
    with pytest.raises(BadGrammar, match="pattern"):
        make.grammar_lazy_patterns(model, 'root ::= "a"', patterns=[pattern])


@pytest.mark.skipif(SANITIZED, reason="AddressSanitizer makes each frame of std::regex several times larger")
def test_a_long_wait_needs_a_deep_stack(tiny: Callable[[str], Path]) -> None:
    code = """
    import sys, threading
    from ipyllama import _core
    model = _core.Model.load(sys.argv[1], vocab_only=True)

    def wait():
        sampler = _core.Sampler.grammar_lazy_patterns(model, 'root ::= "="', patterns=["^((?:a|b|c)*=)$"])
        sampler.accept(model.tokenize("abc" * 300, add_special=False))
        print(sampler.name)

    threading.stack_size(1 << 18)  # std::regex would need more for 900 characters
    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    """
    assert run_apart(code, tiny("llama")).split() == ["grammar_lazy_patterns"]
