"""What a host does in time, seen from a machine that may be busy with something else."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

CHANCES = 3
# How long something lasts that must still be under way when the next call arrives.
LENGTHS_MS = (1500, 6_000, 24_000)


def is_within(limit: float, seconds: Callable[[], float]) -> bool:
    """Whether something can be done in so many seconds; a busy machine is given another chance."""
    return any(seconds() < limit for _ in range(CHANCES))


def in_time(attempt: Callable[[int], T | None]) -> T:
    """What an attempt gives on something that lasts so many milliseconds.

    It gives nothing when it came too late, and is then made on something that lasts longer.
    """
    for milliseconds in LENGTHS_MS:
        found = attempt(milliseconds)
        if found is not None:
            return found
    raise AssertionError("it was over each time before it was looked at")
