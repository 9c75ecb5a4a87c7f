"""Where the rolling windows begin, in the store's milliseconds."""

from __future__ import annotations

from datetime import timedelta

from wopr.fleet.statistics import WINDOWS
from wopr.protocol.fleet import Window

_MILLISECOND = timedelta(milliseconds=1)


def since(now: int) -> dict[str, int]:
    """The earliest time in each rolling window; the shortest first."""
    return {
        window: now - length // _MILLISECOND
        for window, length in WINDOWS.items()
        if length is not None
    }


def start_of(window: Window, now: int) -> int | None:
    """The earliest time in a window; None when it has none."""
    return since(now).get(window)
