"""Sizes and ages as people write them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipyllama.errors import BadOption
from ipyllama.prefix.sizes import parse_bytes, parse_seconds


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("512", 512),
        ("1k", 1024),
        ("500M", 500 << 20),
        ("10 GB", 10 << 30),
        ("1.5g", 3 << 29),
        ("2TiB", 2 << 40),
    ],
)
def test_sizes(text: str, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize(
    "size",
    [
        "",
        "G",
        "-1",
        "1e3",
        "10 X",
        "1 2",
        pytest.param("9" * 400, id="long"),
        -1,
        True,
        None,
        [],
        float("nan"),
        float("inf"),
        pytest.param(10**400, id="huge"),
    ],
)
def test_what_is_no_size_is_refused(size: object) -> None:
    with pytest.raises(BadOption, match="a size is"):
        parse_bytes(size)  # type: ignore[arg-type]


@given(st.integers(0, 10**15))
def test_a_number_is_itself(n: int) -> None:
    assert parse_bytes(n) == parse_bytes(str(n)) == n


@pytest.mark.parametrize(
    ("age", "expected"),
    [
        (None, None),
        (5, 5.0),
        ("90s", 90),
        ("12h", 43200),
        ("30d", 2592000),
        ("2w", 1209600),
        (timedelta(hours=1), 3600),
    ],
)
def test_ages(age: object, expected: float | None) -> None:
    assert parse_seconds(age) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "age",
    [
        "",
        "5",
        "5y",
        "-1d",
        pytest.param("9" * 400 + "d", id="long"),
        -1,
        True,
        float("nan"),
        float("inf"),
        [],
        pytest.param(10**400, id="huge"),
        timedelta(-1),
    ],
)
def test_what_is_no_age_is_refused(age: object) -> None:
    with pytest.raises(BadOption, match="an age is"):
        parse_seconds(age)  # type: ignore[arg-type]
