"""A sample of the damaged states that are tried at length by hand."""

from __future__ import annotations

from fuzz.driver import run


def test_damaged_states_are_refused_or_taken_as_they_tell() -> None:
    report = run("state", 1500, seed=5)
    assert report.failures == []
    assert sum(report.outcomes.values()) == 1500
    ways = {"refused", "taken by restore", "taken by append", "taken by rewind", "taken by context"}
    assert set(report.outcomes) == ways  # and none that only llama.cpp itself has refused
    assert min(report.outcomes.values()) > 10
