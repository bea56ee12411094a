"""How inputs are put into steps, and vectors to length one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ipyllama.embed import normalized
from ipyllama.engine.embed import batches


@given(st.lists(st.integers(1, 700), max_size=80), st.integers(1, 512), st.integers(1, 20))
def test_every_input_is_in_one_step_that_has_room(lengths: list[int], step: int, most: int) -> None:
    found = list(batches(lengths, step, most))
    assert sorted(i for batch in found for i in batch) == list(range(len(lengths)))
    for batch in found:
        assert 1 <= len(batch) <= most
        assert sum(lengths[i] for i in batch) <= step or len(batch) == 1
    order = [lengths[i] for batch in found for i in batch]
    assert order == sorted(order, reverse=True)


def test_steps_are_filled() -> None:
    assert list(batches([10] * 100, 512, 64)) == [list(range(51)), list(range(51, 100))]
    assert list(batches([600, 1, 500, 12], 512, 64)) == [[0], [2, 3], [1]]


def test_rows_of_length_one_and_zeros_stay() -> None:
    rows = normalized(np.array([[3, 4], [0, 0], [1e-10, 0]], np.float32))
    assert rows.dtype == np.float32
    assert np.allclose(rows, [[0.6, 0.8], [0, 0], [1, 0]])
    assert normalized(np.zeros((0, 3), np.float32)).shape == (0, 3)
