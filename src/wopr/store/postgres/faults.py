"""Turn the driver's errors into the host's own, so that none of them leaves the adapter."""

from __future__ import annotations

import msgspec
import psycopg
from psycopg import errors
from psycopg_pool import PoolClosed, PoolTimeout, TooManyRequests

from wopr.protocol.errors import (
    DescendantLimit,
    HoldLost,
    SequenceTaken,
    Unavailable,
    WoprError,
)
from wopr.store.port.runs import too_many_active
from wopr.store.postgres.schema_append import ANSWERED, HOLD_LOST, SEQUENCE_TAKEN
from wopr.store.postgres.schema_limits import TOO_MANY_ACTIVE, TOO_MANY_DESCENDANTS
from wopr.store.postgres.schema_tokens import TOKEN_REFUSED
from wopr.store.sql.batches import in_flight

# The causes an operator can act on. The message never repeats the driver's text: it may name hosts
# and people.
_CAUSES: tuple[tuple[type[psycopg.Error], str], ...] = (
    (PoolClosed, "it is closed"),
    (PoolTimeout, "all its connections are busy, or the server does not answer"),
    (TooManyRequests, "too many calls wait for a connection"),
    (errors.QueryCanceled, "a statement took too long"),
    (errors.LockNotAvailable, "a row was held for too long"),
    (errors.DiskFull, "the database's disk is full"),
    (errors.OutOfMemory, "the database is out of memory"),
    (errors.TooManyConnections, "the database has no connection left"),
    (errors.ReadOnlySqlTransaction, "the database is read-only"),
    (errors.AdminShutdown, "the database is being stopped"),
    (errors.CrashShutdown, "the database has crashed"),
    (errors.CannotConnectNow, "the database is starting or stopping"),
    (errors.InvalidPassword, "the database refuses the password"),
    (errors.InvalidAuthorizationSpecification, "the database refuses the login"),
    (errors.InvalidCatalogName, "there is no such database"),
    (errors.InsufficientPrivilege, "the database's login may not do this"),
)
# Nobody is to blame and nothing was written: the same again may well pass.
_PASSING = (errors.DeadlockDetected, errors.SerializationFailure)


def translated(error: psycopg.Error) -> WoprError:
    """Describe a driver error without its text; the caller chains the original."""
    if error.sqlstate == SEQUENCE_TAKEN:
        return SequenceTaken("the run's log has moved on")
    if error.sqlstate == HOLD_LOST:
        return HoldLost("another process has the run")
    if error.sqlstate == ANSWERED or _broke(error, "answers_pkey"):
        return in_flight()
    if error.sqlstate in (TOO_MANY_ACTIVE, TOO_MANY_DESCENDANTS):
        return _beyond_limit(error)
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


def _beyond_limit(error: psycopg.Error) -> WoprError:
    """What a new run goes beyond; the detail is the root or the tenant, the limit and the use."""
    detail = error.diag.message_detail or ""
    root, limit, current = msgspec.json.decode(detail, type=tuple[str, int, int])
    if error.sqlstate == TOO_MANY_ACTIVE:
        return too_many_active(limit, current)
    return DescendantLimit(root, limit=limit, current=current)


def may_pass(error: psycopg.Error) -> bool:
    """Whether the same transaction may be tried again at once."""
    return isinstance(error, _PASSING)


def is_disconnection(error: psycopg.Error) -> bool:
    """Whether the connection is gone, as when the server was restarted."""
    if isinstance(error, (PoolClosed, PoolTimeout, TooManyRequests)):
        return False
    lost = (errors.AdminShutdown, errors.CrashShutdown, errors.CannotConnectNow)
    return isinstance(error, lost) or (
        isinstance(error, psycopg.OperationalError) and error.sqlstate is None
    )


def _broke(error: psycopg.Error, constraint: str) -> bool:
    return isinstance(error, errors.UniqueViolation) and error.diag.constraint_name == constraint
