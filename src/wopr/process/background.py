"""Background tasks: work that a process repeats until it stops."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Final

import anyio
import structlog

from wopr.protocol.errors import WoprError

RETRY_SECONDS: Final = 1.0
MAX_RETRY_SECONDS: Final = 30.0

log = structlog.get_logger("wopr.background")


class BackgroundTask:
    """Calls `work` every `period` seconds, and at once after `trigger`.

    `work` may return the seconds until its next call instead of the period. A call that fails is
    logged and repeated after a pause, which doubles with each failure in a row up to
    `max_retry_seconds`. With `is_shielded` a running call is not cancelled, because that would
    close its database connection.

    Example:
        timers = BackgroundTask("timers", wake_due, period=30)
        tasks.start_soon(timers.run)
        timers.trigger()
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], Awaitable[float | None]],
        *,
        period: float = math.inf,
        starts_at_once: bool = True,
        is_shielded: bool = False,
        max_retry_seconds: float = MAX_RETRY_SECONDS,
    ) -> None:
        self.name = name
        self._work = work
        self._period = period
        self._starts_at_once = starts_at_once
        self._is_shielded = is_shielded
        self._max_retry_seconds = max_retry_seconds
        self._triggered = anyio.Event()
        self._is_stopped = False
        self._failures = 0

    def trigger(self) -> None:
        """Call the work at once, or once more if it is being called now."""
        self._triggered.set()

    def stop(self) -> None:
        """Let `run` return after the current call."""
        self._is_stopped = True
        self._triggered.set()

    async def run(self) -> None:
        """Repeat the work until `stop` or until cancelled."""
        if not self._starts_at_once:
            await self._wait(self._period)
        while not self._is_stopped:
            # Replaced before the call, so that a trigger during the call is not lost.
            self._triggered = anyio.Event()
            await self._wait(await self._call())

    async def _wait(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await self._triggered.wait()

    async def _call(self) -> float:
        """Call the work; return the seconds until the next call."""
        pause: float | None = None
        try:
            with anyio.CancelScope(shield=self._is_shielded):
                pause = await self._work()
        except Exception as error:  # the outer edge of a task
            self._failures += 1
            retry = min(RETRY_SECONDS * 2.0 ** min(self._failures - 1, 30), self._max_retry_seconds)
            _log_failure(self.name, error, retry)
            return retry
        self._failures = 0
        return self._period if pause is None else pause


def _log_failure(name: str, error: Exception, retry_seconds: float) -> None:
    if isinstance(error, WoprError):
        log.error(
            "background task failed",
            task=name,
            code=error.code,
            message=str(error),
            retry_seconds=retry_seconds,
        )
    else:
        log.error("background task failed", task=name, retry_seconds=retry_seconds, exc_info=error)
