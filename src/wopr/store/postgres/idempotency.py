"""The two parts that make repeats harmless: answers to requests, and outside effects of nodes."""

from __future__ import annotations

from functools import partial

from wopr.store.port import Invocation, RememberedAnswer
from wopr.store.postgres.database import Transaction
from wopr.store.postgres.part import Part
from wopr.store.sql.batches import in_flight
from wopr.store.sql.rows import (
    ANSWER_COLUMNS,
    INVOCATION_COLUMNS,
    answer_row,
    answer_values,
    invocation_row,
    invocation_values,
)

_ANSWER = f"SELECT {ANSWER_COLUMNS} FROM signed_answer(%s, %s)"

_REMEMBER = f"""
INSERT INTO answers (tenant, {ANSWER_COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s)
ON CONFLICT (tenant, key_hash) DO NOTHING RETURNING 1
"""

_CLAIM = f"""
INSERT INTO invocations (tenant, {INVOCATION_COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s)
ON CONFLICT (tenant, invocation_id) DO NOTHING
"""

_INVOCATION = f"""
SELECT {INVOCATION_COLUMNS} FROM invocations WHERE tenant = %s AND invocation_id = %s
"""

# The first outcome holds: a late one of a worker that was given up for dead changes nothing.
_SETTLE = """
UPDATE invocations SET state = %s, outcome = %s
WHERE tenant = %s AND invocation_id = %s AND state = 'claimed'
"""


async def remember_first(transaction: Transaction, answer: RememberedAnswer | None) -> None:
    """Keep the answer of the request that this transaction is about.

    Raises `Conflict` when another request came first, which undoes the transaction.
    """
    if answer is not None:
        kept = await transaction.row(_REMEMBER, answer_values(transaction.tenant, answer))
        if kept is None:
            raise in_flight()


class PostgresAnswers(Part):
    """`Answers` on PostgreSQL."""

    async def answer(self, tenant: str, key_hash: bytes) -> RememberedAnswer | None:
        """The remembered answer."""
        rows = await self._db.call(tenant, _ANSWER, (key_hash,))
        return answer_row(rows[0]) if rows else None

    async def remember(self, tenant: str, answer: RememberedAnswer) -> None:
        """Keep an answer that no run append carries; the first one kept wins."""
        await self._db.change(tenant, _REMEMBER, answer_values(tenant, answer))


class PostgresInvocations(Part):
    """`Invocations` on PostgreSQL."""

    async def claim(self, tenant: str, invocation: Invocation) -> Invocation:
        """Claim atomically; the answer is the record that holds, ours or an earlier one."""
        return await self._db.run(tenant, partial(_claim, invocation=invocation))

    async def settle(self, tenant: str, invocation_id: str, state: str, outcome: bytes) -> None:
        """Record how the effect ended, unless that is known already."""
        await self._db.change(tenant, _SETTLE, (state, outcome, tenant, invocation_id))


async def _claim(transaction: Transaction, invocation: Invocation) -> Invocation:
    tenant = transaction.tenant
    await transaction.queue(_CLAIM, invocation_values(tenant, invocation))
    [held] = await transaction.rows(_INVOCATION, (tenant, invocation.invocation_id))
    return invocation_row(held)
