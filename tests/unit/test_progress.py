"""The bar that is drawn where nobody gave a callback."""

from __future__ import annotations

import pytest

from ipyllama.models.progress import reporting


@pytest.mark.parametrize(
    ("unit", "shown"), [("answers", "1/2 "), ("questions", "1/2 "), ("B", "1.00/2.00 "), ("tokens", "1.00/2.00 ")]
)
def test_what_is_counted_is_a_whole_number(unit: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    with reporting(None, unit) as report:
        report(1, 2, "smollm2")
    assert shown in capsys.readouterr().err
