"""A sample of what `make fuzz` runs at length, and whether the driver would notice a failure."""

from __future__ import annotations

from collections import Counter

from fuzz.driver import run


def test_damaged_files_are_refused_or_work() -> None:
    report = run("gguf", 150, seed=3)
    assert report.failures == []
    assert sum(report.outcomes.values()) == 150
    assert min(report.outcomes[word] for word in ("refused", "loaded and used", "read, then refused by llama.cpp")) > 3


def test_every_failure_is_noticed_and_the_rest_goes_on() -> None:
    report = run("selfcheck", 8, seed=18, patience=5)
    kinds = Counter(failure.kind for failure in report.failures)
    assert set(kinds) == {"crash", "hang", "error"}
    assert report.outcomes["fine"] + len(report.failures) == 8
    crash = next(failure for failure in report.failures if failure.kind == "crash")
    assert "Fatal Python error: Aborted" in crash.detail
    error = next(failure for failure in report.failures if failure.kind == "error")
    assert "ValueError: this is no crash" in error.detail
