"""A clock that a test turns."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

_MILLISECOND = timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Clock:
    """Time for a host in memory: it stands still until `advance` moves it on."""

    def __init__(self, start: datetime = NOON) -> None:
        self._now = (start - _EPOCH) // _MILLISECOND
        self._listeners: list[Callable[[], None]] = []

    def __call__(self) -> int:
        """Milliseconds since the epoch, as the host counts."""
        return self._now

    @property
    def now(self) -> datetime:
        """What the host takes for the present."""
        return _EPOCH + self._now * _MILLISECOND

    def advance(self, seconds: float) -> None:
        """Move the time on; timers that are due by then go off."""
        self._now += round(seconds * 1000)
        for listener in self._listeners:
            listener()

    def on_advance(self, listener: Callable[[], None]) -> None:
        """Call something whenever the time was moved on."""
        self._listeners.append(listener)
