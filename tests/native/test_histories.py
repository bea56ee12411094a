"""Random histories of a notebook behave as the plain rules say, and a broken rule is found."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from native.histories.machine import Histories, histories_of, run

from ipyllama.chat.tree import Tree


@pytest.mark.parametrize(("arch", "cases"), [("llama", 16), ("gemma3", 8), ("lfm2", 8)])
def test_random_histories(tiny, arch: str, cases: int) -> None:
    with histories_of(tiny(arch)) as machine:
        total = run(machine, cases, same=True)
    assert total["histories"] >= cases
    assert total["answers"] > 2 * cases
    assert total["cold"] > cases // 2


def edited(history: Histories) -> None:
    history.start(replay=False, n_cells=2)
    history.run_edited(0, "one")


def run_again(history: Histories) -> None:
    edited(history)
    history.run_one(1)


def resumed(history: Histories) -> None:
    edited(history)
    history.restart()
    history.resume()
    history.run_one(1)


def after_itself(history: Histories) -> None:
    history.start(replay=False, n_cells=2)
    history.edit(0, "one", None, "2")
    history.run_one(0)


@pytest.mark.parametrize(
    ("happens", "method", "wrong"),
    [
        (run_again, "standing", lambda tree, turn: turn),
        (resumed, "_latest", lambda tree, turn_id: turn_id),
        (edited, "stale", lambda tree: ()),
        (after_itself, "_continues", lambda tree, turn, other: False),
    ],
    ids=["an earlier answer is continued", "forgotten at a restart", "nothing is stale", "a turn continues itself"],
)
def test_a_broken_rule_is_found(
    tiny, monkeypatch: pytest.MonkeyPatch, happens: Callable[[Histories], None], method: str, wrong: object
) -> None:
    with histories_of(tiny("llama")) as machine:
        whole, broken = machine(), machine()
        happens(whole)
        whole.teardown()
        monkeypatch.setattr(Tree, method, wrong)
        with pytest.raises((AssertionError, ValueError)):
            happens(broken)
        broken.notebook.close()
        broken.folder.cleanup()
