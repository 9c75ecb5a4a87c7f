"""The two parts that make repeats harmless: answers to requests, and outside effects of nodes."""

from __future__ import annotations

import sqlite3
from functools import partial

from wopr.store.port import Invocation, RememberedAnswer
from wopr.store.sql.rows import (
    ANSWER_COLUMNS,
    INVOCATION_COLUMNS,
    answer_row,
    answer_values,
    invocation_row,
    invocation_values,
)
from wopr.store.sqlite.append import INSERT_ANSWER
from wopr.store.sqlite.part import Part

_ANSWER = f"""
SELECT {ANSWER_COLUMNS} FROM answers
WHERE tenant = ? AND key_hash = ?
"""

_CLAIM = f"""
INSERT OR IGNORE INTO invocations (tenant, {INVOCATION_COLUMNS})
VALUES (?, ?, ?, ?, ?, ?)
"""

_INVOCATION = f"""
SELECT {INVOCATION_COLUMNS} FROM invocations
WHERE tenant = ? AND invocation_id = ?
"""

# The first outcome holds: a late one of a worker that was given up for dead changes nothing.
_SETTLE = """
UPDATE invocations SET state = ?, outcome = ?
WHERE tenant = ? AND invocation_id = ? AND state = 'claimed'
"""


class SqliteAnswers(Part):
    """`Answers` on SQLite."""

    async def answer(self, tenant: str, key_hash: bytes) -> RememberedAnswer | None:
        """The remembered answer."""
        rows = self._reader.near(_ANSWER, (tenant, key_hash))
        return answer_row(rows[0]) if rows else None

    async def remember(self, tenant: str, answer: RememberedAnswer) -> None:
        """Keep an answer that no run append carries; the first one kept wins."""
        await self._change(INSERT_ANSWER, answer_values(tenant, answer))


class SqliteInvocations(Part):
    """`Invocations` on SQLite."""

    async def claim(self, tenant: str, invocation: Invocation) -> Invocation:
        """Claim atomically; the answer is the record that holds, ours or an earlier one."""
        return await self._writer.submit(partial(_claim, tenant=tenant, invocation=invocation))

    async def settle(self, tenant: str, invocation_id: str, state: str, outcome: bytes) -> None:
        """Record how the effect ended, unless that is known already."""
        await self._change(_SETTLE, (state, outcome, tenant, invocation_id))


def _claim(connection: sqlite3.Connection, tenant: str, invocation: Invocation) -> Invocation:
    connection.execute(_CLAIM, invocation_values(tenant, invocation))
    return invocation_row(
        connection.execute(_INVOCATION, (tenant, invocation.invocation_id)).fetchone()
    )
