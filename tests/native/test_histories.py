"""Random histories of a notebook behave as the plain rules say, and a broken rule is found."""

from __future__ import annotations

import pytest
from native.histories.machine import histories_of, run

from ipyllama.chat.tree import Tree


@pytest.mark.parametrize(("arch", "cases"), [("llama", 16), ("gemma3", 8), ("lfm2", 8)])
def test_random_histories(tiny, arch: str, cases: int) -> None:
    with histories_of(tiny(arch)) as machine:
        total = run(machine, cases, same=True)
    assert total["histories"] >= cases
    assert total["answers"] > 2 * cases
    assert total["cold"] > cases // 2


@pytest.mark.parametrize(
    ("method", "wrong"),
    [
        ("newest", lambda tree, turn: turn),
        ("replaced", property(lambda tree: {})),
        ("stale", lambda tree: ()),
    ],
    ids=["an earlier answer is continued", "forgotten at a restart", "nothing is stale"],
)
def test_a_broken_rule_is_found(tiny, monkeypatch: pytest.MonkeyPatch, method: str, wrong: object) -> None:
    monkeypatch.setattr(Tree, method, wrong)
    with histories_of(tiny("llama")) as machine, pytest.raises((AssertionError, ValueError)):
        run(machine, 400, shorten=False, same=True)
