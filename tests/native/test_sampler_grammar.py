"""Grammars: what is wrong is told with its place, and what is generated follows them."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from native.core import make_context
from native.grammars import accept, allowed

from ipyllama import _core
from ipyllama.errors import BadGrammar
from ipyllama.llm import LLM

make = _core.Sampler
N = 356

JSON = r"""
# one object, not too deep in white space
root   ::= object
object ::= "{" ws (member ("," ws member)*)? "}"
member ::= string ":" ws value ws
array  ::= "[" ws (value ws ("," ws value ws)*)? "]"
value  ::= object | array | string | number | "true" | "false" | "null"
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt/] | "u" [0-9a-fA-F]{4})){0,20} "\""
number ::= "-"? ("0" | [1-9] [0-9]{0,5}) ("." [0-9]{1,3})?
ws     ::= [ \n]{0,2}
"""


@pytest.fixture(scope="module")
def model(tiny: Callable[[str], Path]) -> _core.Model:
    return _core.Model.load(str(tiny("llama")))


BAD = [
    ("", None, "the grammar is empty"),
    ("# nothing\n", None, "the grammar is empty"),
    ('x ::= "a"', None, "no rule 'root'"),
    ("root ::= a", (1, 10), "rule 'a' is not defined"),
    ('root ::= "a"\n\n  b ::= c d\n\tc ::= "x"', (3, 11), "rule 'd' is not defined"),
    ('root = "a"', (1, 6), "expecting ::="),
    ('root ::= "é漢" @', (1, 15), "expecting a part of a rule, a new line or the end"),
    ('root ::= ("a"', (1, 14), r"expecting '\)'"),
    ('root ::= "a', (1, 12), "expecting the closing quote or bracket"),
    ("root ::= [a-", (1, 13), "expecting the closing quote or bracket"),
    ("root ::= []", (1, 10), "hold no character"),
    ("root ::= [^]", (1, 10), "hold no character"),
    ("root ::= [z-a]", (1, 11), "ends before it begins"),
    (r'root ::= "\q"', (1, 11), "unknown escape"),
    (r'root ::= "\u12"', (1, 15), "expecting 4 hexadecimal digits"),
    ('root ::= * "a"', (1, 10), "expecting something to repeat"),
    ('root ::= ""+', (1, 12), "expecting something to repeat"),
    ('root ::= "a"{x}', (1, 14), "expecting a whole number"),
    ('root ::= "a"{1,2', (1, 17), "expecting '}'"),
    ('root ::= "a"{3,2}', (1, 13), "fewer than the least"),
    ('root ::= "a"{1,100000}', (1, 13), r"write \{1,\} for no limit"),
    ('root ::= "a"{99999999999999999999}', (1, 14), "too large"),
    ('root ::= ("a"{100}){100} | ("b"{1,50}){100}', (1, 39), "exceed 2000 rules"),
    ('root ::= root "a" | "b"', (1, 1), "rule 'root': it can begin with itself"),
    ('root ::= "x" y\ny ::= z "a"\nz ::= (y | "b")', (2, 1), "rule 'y': it can begin with itself"),
    ('root ::= a root "x" | "y"\na ::= e e\ne ::= | "x"', (1, 1), "rule 'root': it can begin with itself"),
    ('root ::= "x" (|"a")*', (1, 14), "may be empty, and is repeated without limit"),
    ("root ::= <[356]>", (1, 10), "no token 356"),
    ("root ::= <nope>", (1, 10), "not one token"),
    ("root ::= !x", (1, 11), "expecting '<'"),
    ('root ::= "a"\0', (1, 13), "NUL"),
    ("root ::= " + "(" * 1000 + '"a"' + ")" * 1000, (1, 210), "more than 200 brackets"),
    ('root ::= "' + "x" * 1000 + '"{2000}', (1, 1012), "grows to more than 524288 elements"),
    ("root ::= " + " | ".join(f'"{n}"' for n in range(20_000)), (1, 1), "too many ways to begin it"),
    ("#" * (1 << 20) + '\nroot ::= "a"', None, "at most 1048576"),
]


@pytest.mark.parametrize(("text", "place", "message"), BAD, ids=[repr(text[:24]) for text, *_ in BAD])
def test_a_bad_grammar_is_told_with_its_place(
    model: _core.Model, text: str, place: tuple[int, int] | None, message: str
) -> None:
    with pytest.raises(BadGrammar, match=message) as caught:
        make.grammar(model, text)
    assert (caught.value.line, caught.value.column) == (place or (None, None))
    assert "\n" not in str(caught.value)
    if place:
        assert str(caught.value).startswith(f"line {place[0]}, column {place[1]} of the grammar")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('root ::= "a" | "b" "c"\n', ["a", "bc"]),
        ("root ::= [^a-y] [a-] .\n", ["za!", "Z-x"]),
        ('root ::=\n  ("x"\n | "y"){2,3} end\nend ::= "."?', ["xy", "yyx."]),
        (r'root ::= "\x41\u00e9\n\"" [\]\\]', ['Aé\n"]', 'Aé\n"\\']),
        ('root ::= ("a"?)* "b"', ["b", "aaab"]),
        ('root ::= "a"{0} "b"{1}', ["b"]),
        ('root ::= x\nx ::= "wrong"\nx ::= "right"', ["right"]),
        ('root ::= "a" # comment\n# another\nb ::= root', ["a"]),
        ('root ::= "漢" "🙂"*', ["漢", "漢🙂🙂"]),
    ],
)
def test_what_a_grammar_allows(model: _core.Model, text: str, words: list[str]) -> None:
    for word in words:
        sampler = make.grammar(model, text)
        accept(sampler, model, word)
        assert "$" in allowed(sampler, model), word
    with pytest.raises(BadGrammar, match="does not fit the grammar"):
        accept(make.grammar(model, text), model, words[0] + "§" * 3)


USUAL = {
    "arithmetic": r"""
root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
""",
    "chess": r"""
root    ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")+
move    ::= (pawn | nonpawn | castle) [+#]?
pawn    ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
nonpawn ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
castle  ::= "O-O" "-O"?
""",
    "list": r'root ::= ("- " [^\r\n\x0b\x0c\x85\u2028\u2029]+ "\n")+',
    "date": r'root ::= [0-9]{4} "-" ("0" [1-9] | "1" [0-2]) "-" ([0-2] [0-9] | "3" [0-1]) ("T" [0-9]{2} ":" [0-9]{2})?',
}


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("arithmetic", "(a +12) *b3= 7\n"),
        ("chess", "1. e4 e5\n2. Nf3 O-O-O+\n"),
        ("list", "- one\n- zwei\n"),
        ("date", "2026-07-31T12:30"),
    ],
)
def test_usual_grammars_are_usable(model: _core.Model, name: str, word: str) -> None:
    sampler = make.grammar(model, USUAL[name])
    accept(sampler, model, word)
    assert "$" in allowed(sampler, model)


def test_a_token_that_does_not_fit_changes_nothing(model: _core.Model) -> None:
    """Upstream would throw its state away, or end the process where the token ends the text."""
    sampler = make.grammar(model, 'root ::= "ab" [0-9]')
    accept(sampler, model, "a")
    for wrong in (model.tokenize("x", add_special=False)[0], model.eos, model.bos):
        with pytest.raises(BadGrammar, match=f"token {wrong} does not fit the grammar here"):
            sampler.accept([wrong])
        assert allowed(sampler, model) == "b"
    accept(sampler, model, "b7")
    assert allowed(sampler, model) == "$"
    with pytest.raises(BadGrammar, match="does not fit"):
        accept(sampler, model, "7")
    sampler.accept([model.eos, model.eos])
    sampler.reset()
    assert allowed(sampler, model) == "a"


def test_where_nothing_fits_any_more(model: _core.Model) -> None:
    sampler = make.chain([make.grammar(model, 'root ::= "a"'), make.logit_bias(model, {}), make.greedy()])
    accept(sampler, model, "a")
    logits = np.zeros(N, np.float32)
    logits[[token for token in range(N) if model.is_eog(token)]] = -np.inf
    for _ in range(2):
        with pytest.raises(BadGrammar, match="the grammar allows no token here"):
            sampler.apply(logits)
    logits[model.eos] = -5
    assert sampler.apply(logits).selected == model.eos


def test_the_root_may_have_another_name(model: _core.Model) -> None:
    assert allowed(make.grammar(model, 'start ::= "s"', root="start"), model) == "s"
    for root in ("", "root", "st art", "é", "start\0"):
        with pytest.raises(BadGrammar, match="has no rule"):
            make.grammar(model, 'start ::= "s"', root=root)


def test_tokens_by_id_and_by_text(model: _core.Model) -> None:
    (start,) = model.tokenize("<|im_start|>", add_special=False, parse_special=True)
    for text in (f"root ::= <[{start}]> .", "root ::= <|im_start|> ."):
        sampler = make.grammar(model, text)
        assert sampler.apply(np.zeros(N, np.float32)).tokens.tolist() == [start]
        accept(sampler, model, "")
        sampler.accept([start])
    assert start not in make.grammar(model, f"root ::= !<[{start}]>").apply(np.zeros(N, np.float32)).tokens


def test_copies_go_their_own_ways(model: _core.Model) -> None:
    sampler = make.grammar(model, 'root ::= "ab" | "ac"')
    accept(sampler, model, "a")
    clone = sampler.clone()
    accept(clone, model, "c")
    assert (allowed(sampler, model), allowed(clone, model)) == ("bc", "$")
    both = make.chain([sampler, make.grammar(model, 'root ::= "c" | "d"')])
    assert allowed(both, model) == "c"


def test_alternatives_that_begin_alike_are_stopped_in_time(model: _core.Model) -> None:
    """Upstream follows 3 ** n ways into n brackets of this grammar: minutes at nine, and no memory is enough at 15."""
    text = 'root ::= e\ne ::= t "+" e | t "*" e | t\nt ::= "(" e ")" | [0-9]'
    sampler = make.chain([make.grammar(model, text), make.greedy()])
    accept(sampler, model, "((1)*2)+3")
    sampler.reset()
    began = time.monotonic()
    with pytest.raises(BadGrammar, match="in too many ways: let alternatives begin differently"):
        accept(sampler, model, "(" * 40)
    assert time.monotonic() - began < 20
    for use in (lambda: accept(sampler, model, "1"), lambda: sampler.apply(np.zeros(N, np.float32))):
        with pytest.raises(BadGrammar, match=r"reset\(\) it"):
            use()
    sampler.reset()
    accept(sampler, model, "(1)")
    factored = make.grammar(model, 'root ::= e\ne ::= t (("+" | "*") t)*\nt ::= "(" e ")" | [0-9]')
    accept(factored, model, "(" * 200 + "1" + ")" * 200)
    assert "$" in allowed(factored, model)


# -- generated text -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_a_random_model_follows_a_grammar(load: Callable[..., LLM], seed: int) -> None:
    """Sampled at a temperature where nothing else would keep it on its path."""
    llm = load("llama")
    reply = llm.complete("abc", grammar=JSON, temperature=2, top_k=0, top_p=1, min_p=0, seed=seed, max_tokens=900)
    if reply.finish_reason == "stop":
        json.loads(reply.text)
    digits = llm.complete("abc", grammar='root ::= [1-9] [0-9]{2} ("-" [a-c]{3})?', temperature=2, top_k=0, seed=seed)
    assert digits.finish_reason == "stop"
    assert re.fullmatch(r"[1-9][0-9]{2}(-[a-c]{3})?", digits.text)


def test_smollm2_writes_json(load: Callable[..., LLM]) -> None:
    llm = load("smollm2")
    for seed in range(3):
        reply = llm.complete("A cat in JSON:", grammar=JSON, temperature=1, seed=seed, max_tokens=200)
        if reply.finish_reason == "stop":
            assert isinstance(json.loads(reply.text), dict)
        else:
            assert reply.text.startswith("{")
    choice = llm.complete("Is Paris in France? Answer:", grammar='root ::= " yes" | " no"', temperature=0)
    assert choice.text in (" yes", " no")
    assert choice.finish_reason == "stop"


def test_a_bad_grammar_is_told_before_the_prompt_is_read(load: Callable[..., LLM]) -> None:
    llm = load("llama")
    with pytest.raises(BadGrammar) as caught:
        llm.complete("abc", grammar="root ::= x")
    assert (caught.value.line, caught.value.column) == (1, 10)
    assert llm.n_live == 0
    assert llm.complete("abc", max_tokens=2).usage.generated == 2


def test_a_chain_over_a_context(model: _core.Model) -> None:
    sequence = _core.Sequence(make_context(model))
    sequence.decode([1])
    sampler = make.chain([make.grammar(model, "root ::= [0-9]{3}"), make.temp(2), make.dist(1)])
    tokens = []
    while not tokens or not model.is_eog(tokens[-1]):
        tokens.append(sampler.sample(sequence))
        sequence.decode(tokens[-1:])
    assert re.fullmatch(rb"[0-9]{3}", model.detokenize(tokens))
