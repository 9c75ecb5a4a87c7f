"""Idempotency records: responses to requests, and outside effects of nodes."""

from __future__ import annotations

from functools import partial

from wopr.protocol.errors import Conflict
from wopr.store.port import IdempotencyRecord, Invocation
from wopr.store.tables.database import Table
from wopr.store.tables.dialect import Parameter, Row, Variants
from wopr.store.tables.statements import Operation, execute, query

# The table `answers` has the idempotency records.
_RECORD = "key_hash, request_digest, status, body, created_at"
# PostgreSQL has a function for it because every request with a key reads it.
_FIND = Variants(
    sqlite=f"SELECT {_RECORD} FROM answers WHERE tenant = ? AND key_hash = ?",
    postgres=f"SELECT {_RECORD} FROM signed_answer(?, ?)",
)
INSERT_RECORD = f"""
INSERT INTO answers (tenant, {_RECORD}) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, key_hash) DO NOTHING
"""
_INSERT_FIRST = f"{INSERT_RECORD} RETURNING 1"

_INVOCATION = "invocation_id, run_id, state, claimed_at, outcome"
_CLAIM = f"""
INSERT INTO invocations (tenant, {_INVOCATION}) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, invocation_id) DO NOTHING
"""
_CLAIMED = f"SELECT {_INVOCATION} FROM invocations WHERE tenant = ? AND invocation_id = ?"
# The first outcome is kept. A worker that counts as dead may report another outcome later.
_SETTLE = """
UPDATE invocations SET state = ?, outcome = ?
WHERE tenant = ? AND invocation_id = ? AND state = 'claimed'
"""


class IdempotencyTable(Table):
    """`Idempotency` in SQL."""

    async def idempotency_record(self, tenant: str, key_hash: bytes) -> IdempotencyRecord | None:
        """Return the response that is stored under a key."""
        rows = await self._sql.read_signed(tenant, _FIND, (key_hash,))
        return _record(rows[0]) if rows else None

    async def put_idempotency_record(self, tenant: str, record: IdempotencyRecord) -> None:
        """Store a response that no append stores; the first response is kept."""
        await self._sql.change(tenant, INSERT_RECORD, record_values(tenant, record))

    async def claim_invocation(self, tenant: str, invocation: Invocation) -> Invocation:
        """Claim an outside effect atomically; return the stored record, new or earlier."""
        return await self._sql.transact(tenant, partial(_claim, tenant, invocation))

    async def settle_invocation(
        self, tenant: str, invocation_id: str, state: str, outcome: bytes
    ) -> None:
        """Record how the effect ended, unless that is already recorded."""
        await self._sql.change(tenant, _SETTLE, (state, outcome, tenant, invocation_id))


def insert_first_record(tenant: str, record: IdempotencyRecord | None) -> Operation[None]:
    """Store the response to the request that the transaction is about.

    Raises `Conflict` when another request came first, which undoes the transaction.
    """
    if record is not None and not (yield query(_INSERT_FIRST, record_values(tenant, record))):
        raise in_flight_error()


def in_flight_error() -> Conflict:
    """Return the error for a second request under the same idempotency key."""
    return Conflict(
        "another request with this idempotency key came first", code="idempotency_in_flight"
    )


def record_values(
    tenant: str, record: IdempotencyRecord
) -> tuple[str, bytes, bytes, int, bytes, int]:
    """Return the parameters of `INSERT_RECORD`."""
    return (
        tenant,
        record.key_hash,
        record.request_digest,
        record.status,
        record.body,
        record.created_at,
    )


def _claim(tenant: str, invocation: Invocation) -> Operation[Invocation]:
    yield execute(_CLAIM, _invocation_values(tenant, invocation))
    [row] = yield query(_CLAIMED, (tenant, invocation.invocation_id))
    return _invocation(row)


def _record(row: Row) -> IdempotencyRecord:
    return IdempotencyRecord(
        key_hash=row[0], request_digest=row[1], status=row[2], body=row[3], created_at=row[4]
    )


def _invocation(row: Row) -> Invocation:
    return Invocation(
        invocation_id=row[0], run_id=row[1], state=row[2], claimed_at=row[3], outcome=row[4]
    )


def _invocation_values(tenant: str, invocation: Invocation) -> tuple[Parameter, ...]:
    return (
        tenant,
        invocation.invocation_id,
        invocation.run_id,
        invocation.state,
        invocation.claimed_at,
        invocation.outcome,
    )
