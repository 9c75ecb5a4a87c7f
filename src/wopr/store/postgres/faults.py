"""Translate the driver's errors into the host's errors."""

from __future__ import annotations

import msgspec
import psycopg
from psycopg import errors
from psycopg_pool import PoolClosed, PoolTimeout, TooManyRequests

from wopr.protocol.errors import (
    DescendantLimit,
    LeaseLost,
    SequenceTaken,
    Unavailable,
    WoprError,
)
from wopr.store.port.runs import too_many_active_error
from wopr.store.postgres.schema_constants import (
    IDEMPOTENCY_KEY_USED,
    LEASE_LOST,
    SEQUENCE_TAKEN,
    TOKEN_REFUSED,
    TOO_MANY_ACTIVE,
    TOO_MANY_DESCENDANTS,
)
from wopr.store.tables.runs.idempotency import in_flight_error

# Causes that an operator can act on. The message does not contain the driver's text, which may have
# names of hosts and users.
_CAUSES: tuple[tuple[type[psycopg.Error], str], ...] = (
    (PoolClosed, "it is closed"),
    (PoolTimeout, "all its connections are busy, or the server does not answer"),
    (TooManyRequests, "too many calls wait for a connection"),
    (errors.QueryCanceled, "a statement took too long"),
    (errors.LockNotAvailable, "a row was locked for too long"),
    (errors.DiskFull, "the database's disk is full"),
    (errors.OutOfMemory, "the database is out of memory"),
    (errors.TooManyConnections, "the database has no free connection"),
    (errors.ReadOnlySqlTransaction, "the database is read-only"),
    (errors.AdminShutdown, "the database is being stopped"),
    (errors.CrashShutdown, "the database has crashed"),
    (errors.CannotConnectNow, "the database is starting or stopping"),
    (errors.InvalidPassword, "the database refuses the password"),
    (errors.InvalidAuthorizationSpecification, "the database refuses the login"),
    (errors.InvalidCatalogName, "there is no such database"),
    (errors.InsufficientPrivilege, "the database's login may not do this"),
)
# Nothing was written, and the same transaction may succeed when it is repeated.
_REPEATABLE = (errors.DeadlockDetected, errors.SerializationFailure)


def translate_error(error: psycopg.Error) -> WoprError:
    """Return the host's error for a driver's error, without its text.

    The caller chains the original.
    """
    if error.sqlstate == SEQUENCE_TAKEN:
        return SequenceTaken("the run's log has newer events")
    if error.sqlstate == LEASE_LOST:
        return LeaseLost("another process holds the run")
    if error.sqlstate == IDEMPOTENCY_KEY_USED or _violates(error, "answers_pkey"):
        return in_flight_error()
    if error.sqlstate in (TOO_MANY_ACTIVE, TOO_MANY_DESCENDANTS):
        return _limit_error(error)
    if error.sqlstate == TOKEN_REFUSED:
        return Unavailable(
            "the store is not available: the database refuses the token of this process"
        )
    for kind, cause in _CAUSES:
        if isinstance(error, kind):
            return Unavailable(f"the store is not available: {cause}")
    if error.sqlstate is None and isinstance(error, psycopg.OperationalError):
        return Unavailable("the store is not available: the database cannot be reached")
    return Unavailable(f"the store is not available: {error.sqlstate or type(error).__name__}")


def _limit_error(error: psycopg.Error) -> WoprError:
    """Return the error for a limit.

    The detail has the root or the tenant, the limit and the usage.
    """
    detail = error.diag.message_detail or ""
    root, limit, current = msgspec.json.decode(detail, type=tuple[str, int, int])
    if error.sqlstate == TOO_MANY_ACTIVE:
        return too_many_active_error(limit, current)
    return DescendantLimit(root, limit=limit, current=current)


def is_repeatable(error: psycopg.Error) -> bool:
    """Return whether the same transaction may be tried again at once."""
    return isinstance(error, _REPEATABLE)


def is_disconnection(error: psycopg.Error) -> bool:
    """Return whether the connection was lost, for example because the server was restarted."""
    if isinstance(error, (PoolClosed, PoolTimeout, TooManyRequests)):
        return False
    lost = (errors.AdminShutdown, errors.CrashShutdown, errors.CannotConnectNow)
    return isinstance(error, lost) or (
        isinstance(error, psycopg.OperationalError) and error.sqlstate is None
    )


def _violates(error: psycopg.Error, constraint: str) -> bool:
    return isinstance(error, errors.UniqueViolation) and error.diag.constraint_name == constraint
