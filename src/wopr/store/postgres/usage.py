"""The part that counts what tenants use, and keeps their quotas."""

from __future__ import annotations

from functools import partial

from wopr.store.port.audit import AuditDraft
from wopr.store.port.usage import QuotaRow, StoredUsage
from wopr.store.postgres.audit_chain import append_entries
from wopr.store.postgres.database import Transaction
from wopr.store.postgres.part import Part
from wopr.store.sql.usage import USAGE_COLUMNS, usage_of

_USAGE = f"""
SELECT
    (SELECT coalesce(sum(runs), 0) FROM active_runs WHERE tenant = %s)::bigint,
    (
        SELECT count(*) FROM runs
        WHERE tenant = %s AND wake_at <= %s AND wake_at IS NOT NULL AND holder IS NULL
    ),
    {", ".join(f"coalesce(sum({name}), 0)::bigint" for name in USAGE_COLUMNS)}
FROM stored_bytes WHERE tenant = %s
"""
_ALL_USAGE = f"""
SELECT tenant, active_runs, queued_runs, {", ".join(USAGE_COLUMNS)} FROM host_all_usage()
"""
_ADD_UP = "SELECT host_add_up_stored_bytes()"
_RECOUNT = "SELECT host_recount_stored_bytes()"
_TOKENS = "SELECT tokens FROM model_tokens WHERE tenant = %s AND day = %s"
_ADD_TOKENS = """
INSERT INTO model_tokens AS m (tenant, day, tokens) VALUES (%s, %s, %s)
ON CONFLICT (tenant, day) DO UPDATE SET tokens = m.tokens + excluded.tokens
"""
_QUOTAS = "SELECT tenant, key_id, quota, amount FROM host_quotas()"
_SET_QUOTA = """
INSERT INTO quotas (tenant, key_id, quota, amount) VALUES (%s, %s, %s, %s)
ON CONFLICT (tenant, key_id, quota) DO UPDATE SET amount = excluded.amount RETURNING 1
"""
_RESET_QUOTA = "DELETE FROM quotas WHERE tenant = %s AND key_id = %s AND quota = %s RETURNING 1"


class PostgresUsage(Part):
    """`Usage` on PostgreSQL."""

    async def usage(self, tenant: str, now: int) -> StoredUsage:
        """What the tenant uses."""
        [row] = await self._db.read(tenant, _USAGE, (tenant, tenant, now, tenant))
        return usage_of(row)

    async def all_usage(self) -> dict[str, StoredUsage]:
        """What each tenant with any use has stored."""
        return {row[0]: usage_of(row[1:]) for row in await self._db.ask(_ALL_USAGE)}

    async def recount_usage(self) -> None:
        """Add up the counters of bytes, and correct their sum."""
        await self._db.tell(_ADD_UP)
        await self._db.tell(_RECOUNT)

    async def model_tokens(self, tenant: str, day: str) -> int:
        """How many model tokens the tenant has used on a day."""
        rows = await self._db.read(tenant, _TOKENS, (tenant, day))
        return int(rows[0][0]) if rows else 0

    async def add_model_tokens(self, tenant: str, day: str, tokens: int) -> None:
        """Add to the model tokens of a day."""
        await self._db.change(tenant, _ADD_TOKENS, (tenant, day, tokens))

    async def quotas(self) -> list[QuotaRow]:
        """All quotas that replace defaults."""
        return [
            QuotaRow(tenant=row[0], key_id=row[1], quota=row[2], amount=row[3])
            for row in await self._db.ask(_QUOTAS)
        ]

    async def set_quota(self, row: QuotaRow, audit: AuditDraft | None = None) -> None:
        """Set a quota in place of its default."""
        values = (row.tenant, row.key_id, row.quota, row.amount)
        await self._db.run(
            row.tenant, partial(_change_quota, sql=_SET_QUOTA, values=values, audit=audit)
        )

    async def reset_quota(
        self, tenant: str, key_id: str, quota: str, audit: AuditDraft | None = None
    ) -> bool:
        """Return to the default; False when it was not replaced."""
        values = (tenant, key_id, quota)
        return await self._db.run(
            tenant, partial(_change_quota, sql=_RESET_QUOTA, values=values, audit=audit)
        )


async def _change_quota(
    transaction: Transaction,
    sql: str,
    values: tuple[str | int, ...],
    audit: AuditDraft | None,
) -> bool:
    is_changed = await transaction.row(sql, values) is not None
    if is_changed and audit is not None:
        await append_entries(transaction, (audit,))
    return is_changed
