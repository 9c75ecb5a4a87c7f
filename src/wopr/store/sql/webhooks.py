"""Reads of subscriptions."""

from __future__ import annotations

from wopr.store.port.webhooks import WebhookRow
from wopr.store.sql.reads import Reads
from wopr.store.sql.side_rows import WEBHOOK_COLUMNS, webhook_row

_ONE = f"SELECT {WEBHOOK_COLUMNS} FROM webhooks WHERE webhook_id = ? AND tenant = ?"

_PAGE = f"""
SELECT {WEBHOOK_COLUMNS} FROM webhooks WHERE tenant = ? AND (created_at, webhook_id) < (?, ?)
ORDER BY created_at DESC, webhook_id DESC LIMIT ?
"""
_END_OF_TIME = (2**63 - 1, "")


class WebhookReads(Reads):
    """The reads of `Webhooks` that every adapter makes alike."""

    async def webhook(self, tenant: str, webhook_id: str) -> WebhookRow | None:
        """The subscription, or None."""
        rows = await self._read_few(tenant, _ONE, (webhook_id, tenant))
        return webhook_row(rows[0]) if rows else None

    async def webhooks(
        self, tenant: str, after: tuple[int, str] | None, limit: int
    ) -> list[WebhookRow]:
        """The tenant's subscriptions, newest first."""
        rows = await self._read_many(tenant, _PAGE, (tenant, *(after or _END_OF_TIME), limit))
        return [webhook_row(row) for row in rows]
