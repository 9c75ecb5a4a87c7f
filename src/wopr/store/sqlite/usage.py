"""The part that counts what tenants use, and keeps their quotas."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from functools import partial

from wopr.store.port import Artifact
from wopr.store.port.audit import AuditDraft
from wopr.store.port.usage import QuotaRow, StoredUsage
from wopr.store.sql.usage import USAGE_COLUMNS, usage_of
from wopr.store.sqlite.audit import append_entry
from wopr.store.sqlite.part import Part
from wopr.store.sqlite.schema_usage import COUNT_ALL

_STORED = ", ".join(USAGE_COLUMNS)
_USAGE = f"""
SELECT
    coalesce((SELECT runs FROM active_runs WHERE tenant = ?), 0),
    (
        SELECT count(*) FROM runs INDEXED BY runs_due_by_tenant
        WHERE tenant = ? AND wake_at <= ?
    ),
    {", ".join(f"coalesce(sum({name}), 0)" for name in USAGE_COLUMNS)}
FROM stored_bytes WHERE tenant = ?
"""

# A tenant with active runs has stored events.
_ALL_USAGE = f"""
SELECT s.tenant, coalesce(a.runs, 0), 0, {_STORED}
FROM stored_bytes s LEFT JOIN active_runs a ON a.tenant = s.tenant
"""

_COUNT = """
INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes) VALUES (?, 0, ?, ?)
ON CONFLICT (tenant, shard) DO UPDATE SET event_bytes = event_bytes + excluded.event_bytes,
    artifact_bytes = artifact_bytes + excluded.artifact_bytes
"""

_OF_RUN = """
SELECT (SELECT coalesce(sum(length(body)), 0) FROM events WHERE run_id = ?),
    (SELECT coalesce(sum(length(body)), 0) FROM artifacts WHERE run_id = ?)
"""

_OF_ARTIFACT = "SELECT length(body) FROM artifacts WHERE run_id = ? AND artifact_id = ?"

_FORGET_COUNTS = "DELETE FROM stored_bytes"

_TOKENS = "SELECT tokens FROM model_tokens WHERE tenant = ? AND day = ?"

_ADD_TOKENS = """
INSERT INTO model_tokens (tenant, day, tokens) VALUES (?, ?, ?)
ON CONFLICT (tenant, day) DO UPDATE SET tokens = tokens + excluded.tokens
"""

_QUOTAS = "SELECT tenant, key_id, quota, amount FROM quotas ORDER BY tenant, key_id, quota"

_SET_QUOTA = """
INSERT INTO quotas (tenant, key_id, quota, amount) VALUES (?, ?, ?, ?)
ON CONFLICT (tenant, key_id, quota) DO UPDATE SET amount = excluded.amount
"""

_RESET_QUOTA = "DELETE FROM quotas WHERE tenant = ? AND key_id = ? AND quota = ?"


class SqliteUsage(Part):
    """`Usage` on SQLite."""

    async def usage(self, tenant: str, now: int) -> StoredUsage:
        """What the tenant uses."""
        [row] = await self._reader.far(_USAGE, (tenant, tenant, now, tenant))
        return usage_of(row)

    async def all_usage(self) -> dict[str, StoredUsage]:
        """What each tenant with any use has stored."""
        return {row[0]: usage_of(row[1:]) for row in await self._reader.far(_ALL_USAGE)}

    async def recount_usage(self) -> None:
        """Recount the stored bytes of all tenants."""
        await self._writer.submit(recount)

    async def model_tokens(self, tenant: str, day: str) -> int:
        """How many model tokens the tenant has used on a day."""
        rows = self._reader.near(_TOKENS, (tenant, day))
        return int(rows[0][0]) if rows else 0

    async def add_model_tokens(self, tenant: str, day: str, tokens: int) -> None:
        """Add to the model tokens of a day."""
        await self._change(_ADD_TOKENS, (tenant, day, tokens))

    async def quotas(self) -> list[QuotaRow]:
        """All quotas that replace defaults."""
        return [
            QuotaRow(tenant=row[0], key_id=row[1], quota=row[2], amount=row[3])
            for row in await self._reader.far(_QUOTAS)
        ]

    async def set_quota(self, row: QuotaRow, audit: AuditDraft | None = None) -> None:
        """Set a quota in place of its default."""
        values = (row.tenant, row.key_id, row.quota, row.amount)
        await self._writer.submit(
            partial(_change_quota, sql=_SET_QUOTA, values=values, audit=audit)
        )

    async def reset_quota(
        self, tenant: str, key_id: str, quota: str, audit: AuditDraft | None = None
    ) -> bool:
        """Return to the default; False when it was not replaced."""
        values = (tenant, key_id, quota)
        return await self._writer.submit(
            partial(_change_quota, sql=_RESET_QUOTA, values=values, audit=audit)
        )


def _change_quota(
    connection: sqlite3.Connection,
    sql: str,
    values: tuple[str | int, ...],
    audit: AuditDraft | None,
) -> bool:
    is_changed = connection.execute(sql, values).rowcount > 0
    if is_changed and audit is not None:
        append_entry(connection, audit)
    return is_changed


def count_bytes(
    connection: sqlite3.Connection, tenant: str, event_bytes: int, artifact_bytes: int = 0
) -> None:
    """Add to what a tenant has stored, inside the caller's transaction."""
    connection.execute(_COUNT, (tenant, event_bytes, artifact_bytes))


def growth(connection: sqlite3.Connection, run_id: str, artifacts: Iterable[Artifact]) -> int:
    """Return the bytes that artifacts are about to add; one that replaces another adds the rest."""
    added = 0
    for artifact in artifacts:
        row = connection.execute(_OF_ARTIFACT, (run_id, artifact.artifact_id)).fetchone()
        added += len(artifact.body) - (0 if row is None else row[0])
    return added


def uncount_run(connection: sqlite3.Connection, tenant: str, run_id: str) -> None:
    """Subtract a run that is about to be deleted."""
    event_bytes, artifact_bytes = connection.execute(_OF_RUN, (run_id, run_id)).fetchone()
    count_bytes(connection, tenant, -event_bytes, -artifact_bytes)


def recount(connection: sqlite3.Connection) -> None:
    """Count all stored bytes again, inside the caller's transaction."""
    connection.execute(_FORGET_COUNTS)
    for statement in COUNT_ALL:
        connection.execute(statement)
