"""The KV map: what the engine writes down, what it adds up to, and how it looks."""

from __future__ import annotations

import pytest

from ipyllama.display.kv import WIDTH, kv_bundle, kv_html, kv_text
from ipyllama.engine.kv import KVBoard, KVCell, KVMap, KVRun

RUNS = (
    KVRun(tuple(range(700)), 0, (0,), "reused"),
    KVRun(tuple(range(80)), 700, (0,), "restored"),
    KVRun(tuple(range(32)), 780, (0,), "computed"),
    KVRun(tuple(range(120)), 812, (0,), "generated"),
)
FORKED = (
    KVRun((1, 2, 3, 4), 0, (0, 1, 2), "reused"),
    KVRun((5,), 4, (0,), "computed"),
    KVRun((5, 6), 4, (1,), "generated"),
    KVRun((7,), 4, (2,), "generated"),
)


def test_a_prompt_then_what_was_sampled() -> None:
    board = KVBoard()
    board.show((1, 2, 3, 4, 5, 6), 2, 1, 5)
    assert board.runs() == (
        KVRun((1, 2), 0, (0,), "reused"),
        KVRun((3,), 2, (0,), "restored"),
        KVRun((4, 5), 3, (0,), "computed"),
        KVRun((6,), 5, (0,), "generated"),
    )


def test_while_the_prompt_is_read() -> None:
    board = KVBoard()
    board.show((1, 2, 3), 2, 0, 900)
    assert [(len(run.tokens), run.origin) for run in board.runs()] == [(2, "reused"), (1, "computed")]


def test_forks_share_and_own() -> None:
    board = KVBoard()
    board.show((1, 2, 3, 4), 4, 0, 4)
    sampled = [8, 9]
    board.fork(3, [(1, (4, 5), sampled), (2, (6,), [7])])
    assert board.runs() == (
        KVRun((1, 2, 3), 0, (0, 1, 2), "reused"),
        KVRun((4,), 3, (0,), "reused"),
        KVRun((4, 5), 3, (1,), "computed"),
        KVRun((8,), 5, (1,), "generated"),
        KVRun((6,), 3, (2,), "computed"),
    )
    board.fork(0, [])
    assert board.runs() == (KVRun((1, 2, 3, 4), 0, (0,), "reused"),)


def test_who_listens_is_woken_until_it_is_forgotten() -> None:
    board, woken = KVBoard(), []

    def wake() -> None:
        woken.append(1)

    board.listen(wake)
    board.show((1,), 0, 0, 1)
    board.fork(0, [])
    board.forget(wake)
    board.show((1, 2), 0, 0, 1)
    assert len(woken) == 2


def test_sums() -> None:
    kv = KVMap(16, FORKED)
    assert (kv.used, kv.free, kv.shared) == (8, 8, 4)
    assert kv.sequences == {0: 5, 1: 6, 2: 5}
    assert list(kv.cells())[4:6] == [KVCell(4, 5, 4, (0,), "computed"), KVCell(5, 5, 4, (1,), "generated")]
    assert KVMap(8, ()).sequences == {}


@pytest.mark.parametrize("kv", [KVMap(8192, RUNS, "a<b>"), KVMap(16, FORKED), KVMap(0, ()), KVMap(1, RUNS)])
def test_every_form_has_the_same_numbers(kv: KVMap) -> None:
    text, html = kv_text(kv), kv_html(kv)
    assert kv_bundle(kv) == {"text/plain": text, "text/html": html}
    assert str(kv) == text
    bar = text.splitlines()[1]
    assert len(bar) == WIDTH + 2
    for number in (kv.used, kv.n_cells, kv.free, *map(kv.count, ("reused", "restored", "computed", "generated"))):
        assert f"{number:,}" in text
        assert f"{number:,}" in html
    assert "<b>" not in html.replace("a&lt;b&gt;", "")
    assert "<script" not in html


def test_what_is_small_is_still_seen() -> None:
    bar = kv_text(KVMap(100_000, RUNS)).splitlines()[1]
    assert {"█", "▓", "▒", "◆"} <= set(bar)
