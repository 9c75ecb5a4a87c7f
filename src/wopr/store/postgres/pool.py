"""A pool of connections that connects again soon after an outage, and says when it cannot.

Psycopg's own pool doubles the time between its attempts, and lets every caller wait for its whole
patience meanwhile. Here an attempt is made at least once a second for as long as it takes, and a
caller that no connection is left for is refused at once.
"""

from __future__ import annotations

import math
from typing import Any

import psycopg
from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool
from psycopg_pool.base import AttemptWithBackoff

from wopr.store.sql.dialect import Row

LONGEST_DELAY_SECONDS = 1.0
_CONNECT_SECONDS = 5


class Disconnected(psycopg.OperationalError):
    """There is no connection, and the last attempt to make one failed."""


class _Attempt(AttemptWithBackoff):
    """Attempts to connect, a second apart at most, without an end."""

    INITIAL_DELAY = 0.25

    def __init__(self) -> None:
        super().__init__(timeout=math.inf)

    def update_delay(self, now: float) -> None:
        """Set how long to wait before the next attempt."""
        super().update_delay(now)
        self.delay = min(self.delay, LONGEST_DELAY_SECONDS)


class Pool(AsyncConnectionPool[AsyncConnection[Row]]):
    """The connections of one process."""

    def __init__(self, conninfo: str, **options: Any) -> None:
        super().__init__(
            conninfo,
            connection_class=AsyncConnection[Row],
            kwargs={"autocommit": True, "connect_timeout": _CONNECT_SECONDS},
            open=False,
            **options,
        )
        # Whether the last attempt to connect failed, and how many connections are lent.
        self._has_failed = False
        self.lent = 0

    def require_connection(self) -> None:
        """Raise `Disconnected` when a caller would wait for a server that cannot be reached."""
        if self._has_failed and not self.lent and not self._pool:
            raise Disconnected("the server cannot be reached")

    async def _connect(
        self,
        timeout: float | None = None,  # noqa: ASYNC109 - the pool calls it by this name
    ) -> AsyncConnection[Row]:
        try:
            connection = await super()._connect(timeout)
        except Exception:
            self._has_failed = True
            await self._refuse_waiting()
            raise
        self._has_failed = False
        return connection

    async def _add_connection(
        self, attempt: AttemptWithBackoff | None, growing: bool = False
    ) -> None:
        await super()._add_connection(attempt or _Attempt(), growing)

    async def _refuse_waiting(self) -> None:
        """Tell those who wait for a connection that there is none, unless one is only lent."""
        while self._waiting and not self.lent:
            await self._waiting.popleft().fail(Disconnected("the server cannot be reached"))
