"""Hostile parameters and grammars to every sampler, apart: an answer or an error, and the process goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from native.core import run_apart

BEGIN = """
import itertools, random, sys
import numpy as np
from ipyllama import _core
from ipyllama.errors import BadGrammar, LlamaError

REFUSED = (LlamaError, TypeError, ValueError, OverflowError, MemoryError)
make = _core.Sampler
model = _core.Model.load(sys.argv[1], vocab_only=True)
N = model.n_vocab
rng = random.Random(int(sys.argv[2]))
random_logits = np.random.default_rng(1)

def use(sampler):
    for logits in (np.zeros(N), random_logits.standard_normal(N), random_logits.standard_normal(N) * 1e6,
                   np.full(N, -3e38), np.where(np.arange(N) == 5, 3e38, -3e38),
                   np.where(np.arange(N) < 2, 1.0, -np.inf), np.full(N, 3e38)):
        try:
            left = sampler.apply(logits.astype(np.float32))
            assert 0 < len(left) <= N and np.isfinite(left.logits).all(), (sampler.names, left.logits)
            assert (0 <= left.tokens).all() and (left.tokens < N).all()
            sampler.accept([rng.choice(left.tokens.tolist()), rng.randrange(N)])
        except REFUSED:
            pass
        if rng.random() < 0.2:
            sampler = sampler.clone()
        if rng.random() < 0.1:
            sampler.reset()
"""

PARAMETERS = """
numbers = [0, 1, -1, 2, 5, 0.5, 1e-45, 1e-9, 1e-6, 0.999999, 1.000001, 1e6, 3e38, 1e300, float("nan"), float("inf"),
           -float("inf"), 2**31 - 1, 2**31, 2**32 - 1, 2**32, -2**31, 2**63, True, None, "x"]
arity = {"greedy": 0, "dist": 1, "top_k": 1, "top_p": 2, "min_p": 2, "typical": 2, "top_n_sigma": 1, "temp": 1,
         "temp_ext": 3, "xtc": 4, "mirostat_v2": 3, "adaptive_p": 3}
keywords = {"penalties": ("last_n", "repeat", "frequency", "presence"),
            "dry": ("multiplier", "base", "allowed_length", "last_n")}
texts = ["", "\\n", "a", "\\0", "é", "🙂", "ab" * 30, "<|im_end|>", " ", "\\ud800"]

def any_sampler():
    kind = rng.choice([*arity, *keywords, "mirostat", "logit_bias", "infill", "chain"])
    number = lambda: rng.choice(numbers) if rng.random() < 0.6 else rng.uniform(0, 3)
    if kind in arity:
        return getattr(make, kind)(*(number() for _ in range(arity[kind])))
    if kind in keywords:
        given = {name: number() for name in keywords[kind] if rng.random() < 0.5}
        if kind == "dry":
            given["breakers"] = [rng.choice(texts) for _ in range(rng.randrange(3))]
        return getattr(make, kind)(model, **given)
    if kind == "mirostat":
        return make.mirostat(model, number(), number(), rng.choice([0, 1, 2, 100, 2**31 - 1]))
    if kind == "logit_bias":
        return make.logit_bias(model, {rng.randrange(-1, N + 1): number() for _ in range(3)})
    if kind == "infill":
        return make.infill(model)
    return make.chain([any_sampler() for _ in range(rng.randrange(5))])

made = refused = 0
for _ in range(6000):
    try:
        sampler = any_sampler()
    except REFUSED:
        refused += 1
        continue
    made += 1
    use(sampler)
print(made, refused)
"""

GRAMMARS = """
names = ["root", "a", "b", "c"]

def item(depth, later):
    choice = rng.random()
    if choice < 0.35:
        return rng.choice(['"x"', '"xy"', "[a-c]", '[^"]', ".", '"é"', '"\\\\n"', "[a-]", "<[300]>", "!<[5]>", "<s>"])
    if choice < 0.6:
        return rng.choice(later if rng.random() < 0.97 else names)
    return "(" + alternatives(depth + 1, later) + ")" if depth < 3 else '"z"'

def alternatives(depth, later):
    lengths = [0 if depth else 1, 1, 1, 2, 3]
    repeats = ["", "", "", "", "*", "+", "?", "{2}", "{0,3}", "{2,}", "{1,9}"]
    if rng.random() < 0.02:
        repeats = ["?*", "{3,2}", "{9999}", "{50}{50}", "{5}{30}"]
    sequence = lambda: " ".join(item(depth, later) + rng.choice(repeats) for _ in range(rng.choice(lengths)))
    return " | ".join(sequence() for _ in range(rng.choice([1, 1, 2, 3])))

def grammar():
    text = "\\n".join(f"{name} ::= " + alternatives(0, names[i + 1 :] or ['"z"']) for i, name in enumerate(names))
    if rng.random() < 0.2:
        place = rng.randrange(len(text) + 1)
        text = text[:place] + rng.choice(list('"()[]|\\n{}*\\\\#<!x\\0é')) + text[place + rng.randrange(2) :]
    return text

made = refused = 0
for _ in range(1000):
    text = grammar()
    try:
        sampler = make.grammar(model, text)
        made += 1
    except BadGrammar:
        refused += 1
        continue
    for _ in range(6):
        try:
            left = sampler.apply(random_logits.standard_normal(N).astype(np.float32))
            sampler.accept([rng.choice(left.tokens.tolist())])
            sampler.accept([rng.randrange(N)])
        except BadGrammar:
            pass
        if rng.random() < 0.2:
            sampler = sampler.clone()
print(made, refused)
"""

SIZES = """
from time import monotonic
lines = lambda n, rule: "\\n".join(rule(i) for i in range(n)) + f"\\nr{n} ::= " + '"a"' + "\\nroot ::= r0"
texts = [
    "root ::= " + "(" * 500_000, '"' * 1_000_000, "root ::= " + '"a" ' * 200_000, "root ::= " + "a" * 1_000_000,
    "root ::= " + "[" + "a" * 1_000_000, "\\n" * 1_000_000, "é" * 500_000, "root ::= " + "(" * 199 + '"a"' + ")*" * 199,
    lines(40, lambda i: f"r{i} ::= r{i + 1} | r{i + 1}"), lines(40, lambda i: f'r{i} ::= r{i + 1}? r{i + 1}? "b"'),
    lines(12_000, lambda i: f"r{i} ::= r{i + 1}"), lines(60_000, lambda i: f"r{i} ::= r{i + 1}"),
    lines(60_000, lambda i: f'r{i} ::= "x" r{i + 1}'), "root ::= " + '"ab"{2000} ' * 300,
    "root ::= " + '("a"{2000}){2000}', "root ::= " + "(" * 20 + '"a"' + "){50}" * 20,
    "root ::= " + "(" * 20 + '"a"' + "?){0,9}" * 20, "root ::= <" + "a" * 900_000 + ">",
    "root ::= " + " | ".join(f'"w{n}"' for n in range(8000)), "root ::= " + '"a"? ' * 3000,
]
made = refused = 0
for text in texts:
    began = monotonic()
    try:
        sampler = make.grammar(model, text)
        use(sampler)
        made += 1
    except BadGrammar:
        refused += 1
    assert monotonic() - began < 60, text[:60]
print(made, refused)
"""


@pytest.mark.parametrize(
    ("part", "least"), [(PARAMETERS, 1500), (GRAMMARS, 150), (SIZES, 4)], ids=["parameters", "grammars", "sizes"]
)
def test_nothing_crashes(tiny: Callable[[str], Path], part: str, least: int) -> None:
    made, refused = map(int, run_apart(BEGIN + part, tiny("llama"), 1).split())
    assert min(made, refused) >= least
