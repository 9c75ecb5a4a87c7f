"""A manual clock for tests."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

_MILLISECOND = timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Clock:
    """The time of a host in memory. It changes only with `advance`.

    Args:
        start: The time at the start.

    Example:
        >>> from wopr.testing import Clock
        >>> clock = Clock()
        >>> clock.advance(60)
        >>> clock.now.isoformat()
        '2026-01-01T12:01:00+00:00'
    """

    def __init__(self, start: datetime = _NOON) -> None:
        self._now = (start - _EPOCH) // _MILLISECOND
        self._listeners: list[Callable[[], None]] = []

    def __call__(self) -> int:
        """Return the time in milliseconds since the epoch.

        Returns:
            The time.
        """
        return self._now

    @property
    def now(self) -> datetime:
        """The current time of the host."""
        return _EPOCH + self._now * _MILLISECOND

    def advance(self, seconds: float) -> None:
        """Advance the time, and fire the timers that are due.

        Args:
            seconds: The number of seconds.
        """
        self._now += round(seconds * 1000)
        for listener in self._listeners:
            listener()

    def on_advance(self, listener: Callable[[], None]) -> None:
        """Add a function to call after every `advance`.

        Args:
            listener: The function.
        """
        self._listeners.append(listener)
