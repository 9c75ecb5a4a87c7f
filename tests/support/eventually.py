"""Wait for a condition with a deadline. No test sleeps for a fixed time."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

DEADLINE_SECONDS = 120.0
_PAUSE_SECONDS = 0.01
T = TypeVar("T")


def eventually(condition: Callable[[], T], seconds: float = DEADLINE_SECONDS) -> T:
    """Call `condition` until its result is true, at most for `seconds`, and return the result."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not true within {seconds:g} seconds"
        time.sleep(_PAUSE_SECONDS)
    return found


async def eventually_async(
    condition: Callable[[], Awaitable[T]], seconds: float = DEADLINE_SECONDS
) -> T:
    """Call `condition` until its result is true, at most for `seconds`, and return the result."""
    with anyio.fail_after(seconds):
        while True:
            if found := await condition():
                return found
            await anyio.sleep(_PAUSE_SECONDS)
