"""A sample of what `make fuzz` runs at length, and whether the driver would notice a failure."""

from __future__ import annotations

from collections import Counter

from fuzz.driver import run


def test_damaged_files_are_refused_or_work() -> None:
    report = run("gguf", 150, seed=3)
    assert report.failures == []
    assert sum(report.outcomes.values()) == 150
    assert min(report.outcomes[word] for word in ("refused", "loaded and used", "read, then refused by llama.cpp")) > 3


def test_damaged_states_are_refused_or_taken_as_they_tell() -> None:
    report = run("state", 1500, seed=5)
    assert report.failures == []
    assert sum(report.outcomes.values()) == 1500
    ways = {"refused", "taken by restore", "taken by append", "taken by rewind", "taken by context"}
    assert set(report.outcomes) == ways  # and none that only llama.cpp itself has refused
    assert min(report.outcomes.values()) > 10


def test_whatever_is_called_with_whatever_the_process_lives() -> None:
    report = run("calls", 250, seed=4)
    assert report.failures == []
    assert sum(report.outcomes.values()) == 250
    assert all(f"{arch}, few refused" in report.outcomes for arch in ("llama", "gemma3", "mamba", "lfm2", "qwen2vl"))


def test_every_failure_is_noticed_and_the_rest_goes_on() -> None:
    report = run("selfcheck", 8, seed=18, patience=5)
    kinds = Counter(failure.kind for failure in report.failures)
    assert set(kinds) == {"crash", "hang", "error"}
    assert report.outcomes["fine"] + len(report.failures) == 8
    crash = next(failure for failure in report.failures if failure.kind == "crash")
    assert "Fatal Python error: Aborted" in crash.detail
    error = next(failure for failure in report.failures if failure.kind == "error")
    assert "ValueError: this is no crash" in error.detail
