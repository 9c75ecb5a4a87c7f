"""Usage of each tenant, and the quotas that an operator has set.

The bytes are counters. SQLite changes them with the rows that they count, and with triggers;
PostgreSQL with triggers and in its functions.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from wopr.store.port.audit import AuditDraft
from wopr.store.port.usage import QuotaRow, StoredUsage
from wopr.store.tables.audit import append_entries
from wopr.store.tables.database import Table
from wopr.store.tables.dialect import POSTGRES, Row, Value, Variants, variants
from wopr.store.tables.statements import Operation, query

# The columns of each table whose bytes are counted in `other_bytes`. The triggers of the migrations
# contain them: a change needs a new migration that replaces the triggers and counts again.
OTHER_CONTENT: Final = {
    "workflows": ("body",),
    "agents": ("body",),
    "annotations": ("body",),
    "answers": ("body",),
    "memories": ("content", "tags"),
    "queues": ("body",),
    "judges": ("body",),
    "dead_letters": ("type", "reason", "place"),
    "fleet_chunks": ("hashes", "body"),
    "otlp_parts": ("body",),
}
# Tables whose rows are counted too, and the column of `stored_bytes` that has the number.
ROW_COUNTS: Final = {"workflows": "workflow_versions", "agents": "agents"}
OTHER_COLUMNS: Final = ("other_bytes", *ROW_COUNTS.values())
USAGE_COLUMNS: Final = ("event_bytes", "artifact_bytes", *OTHER_COLUMNS)


def other_amounts(table: str, size: str, rows: str) -> str:
    """Return the values of `OTHER_COLUMNS` for rows of one table."""
    counts = (rows if counted == table else "0" for counted in ROW_COUNTS)
    return ", ".join((size, *counts))


_USAGE = variants(
    lambda dialect: (
        f"""
SELECT
    CAST(coalesce((SELECT sum(a.runs) FROM active_runs a WHERE a.tenant = ?), 0) AS bigint),
    (
        SELECT count(*) FROM runs{dialect.indexed_by("runs_due_by_tenant")}
        WHERE tenant = ? AND wake_at <= ? AND wake_at IS NOT NULL
            {"AND holder IS NULL" if dialect is POSTGRES else ""}
    ),
    {", ".join(f"CAST(coalesce(sum({name}), 0) AS bigint)" for name in USAGE_COLUMNS)}
FROM stored_bytes WHERE tenant = ?
"""
    )
)
# A tenant with active runs has stored events.
_ALL_USAGE = Variants(
    sqlite=f"""
SELECT s.tenant, coalesce(a.runs, 0), 0, {", ".join(USAGE_COLUMNS)}
FROM stored_bytes s LEFT JOIN active_runs a ON a.tenant = s.tenant
""",
    postgres=f"""
SELECT tenant, active_runs, queued_runs, {", ".join(USAGE_COLUMNS)} FROM host_all_usage()
""",
)
_TOKENS = "SELECT tokens FROM model_tokens WHERE tenant = ? AND day = ?"
_ADD_TOKENS = """
INSERT INTO model_tokens (tenant, day, tokens) VALUES (?, ?, ?)
ON CONFLICT (tenant, day) DO UPDATE SET tokens = model_tokens.tokens + excluded.tokens
"""
_QUOTAS = Variants(
    sqlite="SELECT tenant, key_id, quota, amount FROM quotas ORDER BY tenant, key_id, quota",
    postgres="SELECT tenant, key_id, quota, amount FROM host_quotas()",
)
_SET_QUOTA = """
INSERT INTO quotas (tenant, key_id, quota, amount) VALUES (?, ?, ?, ?)
ON CONFLICT (tenant, key_id, quota) DO UPDATE SET amount = excluded.amount RETURNING 1
"""
_RESET_QUOTA = "DELETE FROM quotas WHERE tenant = ? AND key_id = ? AND quota = ? RETURNING 1"


class UsageTable(Table):
    """`Usage` in SQL, except `recount_usage`."""

    async def usage(self, tenant: str, now: int) -> StoredUsage:
        """Return the usage of the tenant."""
        [row] = await self._sql.read_many(tenant, _USAGE, (tenant, tenant, now, tenant))
        return _usage(row)

    async def all_usage(self) -> dict[str, StoredUsage]:
        """Return the usage of each tenant with stored data."""
        return {row[0]: _usage(row[1:]) for row in await self._sql.read_host_many(_ALL_USAGE)}

    async def model_tokens(self, tenant: str, day: str) -> int:
        """Return how many model tokens the tenant has used on a day."""
        rows = await self._sql.read_few(tenant, _TOKENS, (tenant, day))
        return int(rows[0][0]) if rows else 0

    async def add_model_tokens(self, tenant: str, day: str, tokens: int) -> None:
        """Add to the model tokens of a day."""
        await self._sql.change(tenant, _ADD_TOKENS, (tenant, day, tokens))

    async def quotas(self) -> list[QuotaRow]:
        """List all quotas that replace defaults."""
        return [
            QuotaRow(tenant=row[0], key_id=row[1], quota=row[2], amount=row[3])
            for row in await self._sql.read_host_many(_QUOTAS)
        ]

    async def set_quota(self, row: QuotaRow, audit: AuditDraft | None = None) -> None:
        """Set a quota in place of its default."""
        values = (row.tenant, row.key_id, row.quota, row.amount)
        await self._sql.transact(row.tenant, partial(_change_quota, _SET_QUOTA, values, audit))

    async def reset_quota(
        self, tenant: str, key_id: str, quota: str, audit: AuditDraft | None = None
    ) -> bool:
        """Return a quota to its default; False if it already had its default."""
        values = (tenant, key_id, quota)
        return await self._sql.transact(tenant, partial(_change_quota, _RESET_QUOTA, values, audit))


def _change_quota(sql: str, values: tuple[Value, ...], audit: AuditDraft | None) -> Operation[bool]:
    is_changed = bool((yield query(sql, values)))
    if is_changed and audit is not None:
        yield from append_entries((audit,))
    return is_changed


def _usage(row: Row) -> StoredUsage:
    return StoredUsage(
        active_runs=row[0],
        queued_runs=row[1],
        event_bytes=row[2],
        artifact_bytes=row[3],
        other_bytes=row[4],
        workflow_versions=row[5],
        agents=row[6],
    )
