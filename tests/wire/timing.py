"""Timing of a host on a machine that may be busy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

CHANCES = 3
# The duration of something that must still be active at the next call.
LENGTHS_MS = (400, 1_600, 6_400, 24_000)


def is_within(limit: float, seconds: Callable[[], float]) -> bool:
    """Return whether one of some attempts takes fewer seconds; a busy machine may delay one."""
    return any(seconds() < limit for _ in range(CHANCES))


def in_time(attempt: Callable[[int], T | None]) -> T:
    """Return the result of an attempt on something that lasts so many milliseconds.

    An attempt that was too late returns nothing, and is repeated on something that lasts
    longer.
    """
    for milliseconds in LENGTHS_MS:
        found = attempt(milliseconds)
        if found is not None:
            return found
    raise AssertionError("every attempt was too late")
