"""The address of a database, and a pool of connections to it.

The pool reconnects soon after an outage. Psycopg's pool doubles the time between its attempts, and
callers wait until their timeout meanwhile. This pool tries at least once a second, and refuses a
caller at once if the server cannot be reached.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import AsyncConnection, ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import AsyncConnectionPool
from psycopg_pool.base import AttemptWithBackoff

from wopr.protocol.errors import Refused
from wopr.store.tables.dialect import Row

_SETTINGS = ("host", "hostaddr", "port", "dbname", "user")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The address of a database: a connection string for the driver, and a location to show."""

    # Contains the password: never printed.
    conninfo: str = field(repr=False)
    options: str
    location: str

    def conninfo_with(self, *settings: str) -> str:
        """Return the connection string with these server settings, each as `name=value`."""
        added = " ".join(f"-c {setting}" for setting in settings)
        return make_conninfo(self.conninfo, options=f"{self.options} {added}".strip())


# Detect within seconds that a server does not answer. The defaults of the kernel are much longer.
_TIMEOUTS = {
    "connect_timeout": "5",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}


def parse_address(url: str) -> Address:
    """Parse a URL. Raises `Refused` for an invalid URL; the message does not contain it."""
    try:
        # The driver's message quotes the invalid part, which may be the password.
        parts = conninfo_to_dict(url)
    except ProgrammingError:
        raise Refused(
            "db must be postgresql://user:password@host:port/database, with special characters "
            "percent-encoded",
            field="db",
        ) from None
    options = str(parts.pop("options", None) or "")
    parts.setdefault("application_name", "wopr")
    for name, value in _TIMEOUTS.items():
        parts.setdefault(name, value)
    shown = {name: str(parts[name]) for name in _SETTINGS if parts.get(name)}
    return Address(
        conninfo=make_conninfo("", **parts),
        options=options,
        location=" ".join(f"{name}={value}" for name, value in shown.items()),
    )


LONGEST_DELAY_SECONDS = 1.0
_CONNECT_SECONDS = 5


class Disconnected(psycopg.OperationalError):
    """The pool has no connection, and its last attempt to connect failed."""


class _ReconnectAttempt(AttemptWithBackoff):
    """Attempts to connect at least once a second, without a limit."""

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
        # Whether the last attempt to connect failed, and how many connections are in use.
        self._has_failed = False
        self.in_use = 0

    def require_connection(self) -> None:
        """Raise `Disconnected` when a caller would wait for a server that cannot be reached."""
        if self._has_failed and not self.in_use and not self._pool:
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
        await super()._add_connection(attempt or _ReconnectAttempt(), growing)

    async def _refuse_waiting(self) -> None:
        """Fail the callers that wait for a connection, unless a connection is in use."""
        while self._waiting and not self.in_use:
            await self._waiting.popleft().fail(Disconnected("the server cannot be reached"))
