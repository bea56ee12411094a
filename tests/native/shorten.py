"""The shortest part of a list of operations that still fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
Failure = TypeVar("Failure", bound=Exception)


def shorten(
    operations: list[T], failure: Failure, failure_of: Callable[[list[T]], Failure | None]
) -> tuple[list[T], Failure]:
    """Leave out what is not needed, long stretches first. Operations that make no sense must do nothing."""
    size = max(1, len(operations) // 2)
    while True:
        for start in reversed(range(0, len(operations), size)):
            fewer = operations[:start] + operations[start + size :]
            again = failure_of(fewer)
            if again is not None:
                operations, failure = fewer, again
        if size == 1:
            return operations, failure
        size //= 2
