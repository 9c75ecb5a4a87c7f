"""Wait for a condition with a deadline. No test sleeps for a fixed time."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import anyio

DEADLINE_SECONDS = 120.0
# The pauses become longer, because each call of a condition takes processor time.
_SHORTEST_PAUSE_SECONDS = 0.01
_LONGEST_PAUSE_SECONDS = 0.1
_PAUSE_PER_SECOND = 0.05
T = TypeVar("T")


def _pauses(seconds: float) -> Iterator[float]:
    """Return the pauses between calls. Raises `AssertionError` after so many seconds."""
    start = time.monotonic()
    while (waited := time.monotonic() - start) < seconds:
        yield min(_LONGEST_PAUSE_SECONDS, max(_SHORTEST_PAUSE_SECONDS, waited * _PAUSE_PER_SECOND))
    raise AssertionError(f"not true within {seconds:g} seconds")


def eventually(condition: Callable[[], T], seconds: float = DEADLINE_SECONDS) -> T:
    """Call `condition` until its result is true, at most for `seconds`, and return the result."""
    pauses = _pauses(seconds)
    while not (found := condition()):
        time.sleep(next(pauses))
    return found


async def eventually_async(
    condition: Callable[[], Awaitable[T]], seconds: float = DEADLINE_SECONDS
) -> T:
    """Call `condition` until its result is true, at most for `seconds`, and return the result."""
    pauses = _pauses(seconds)
    with anyio.fail_after(seconds):
        while True:
            if found := await condition():
                return found
            await anyio.sleep(next(pauses))
