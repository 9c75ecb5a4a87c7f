"""The part that keeps subscriptions."""

from __future__ import annotations

from functools import partial

from wopr.store.port import RememberedAnswer
from wopr.store.port.webhooks import Rotation, WebhookRow
from wopr.store.postgres.database import Transaction
from wopr.store.postgres.idempotency import remember_first
from wopr.store.postgres.part import Part
from wopr.store.sql.side_rows import webhook_values
from wopr.store.sql.webhooks import WebhookReads

_INSERT = """
INSERT INTO webhooks (
    webhook_id, tenant, url, events, tags, secret, fingerprint, created_at, state, failures
) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, 'active', 0)
"""

_IDS = "SELECT tenant, id FROM host_webhooks(%s, %s)"

_ROTATE = """
UPDATE webhooks
SET old_secret = secret, old_secret_until = %s, secret = %s, fingerprint = %s
WHERE webhook_id = %s AND tenant = %s RETURNING 1
"""

# Held first: appends that tell it something wait, and find it gone.
_HOLD = "SELECT 1 FROM webhooks WHERE webhook_id = %s AND tenant = %s FOR UPDATE"

_DELETE = (
    """
    DELETE FROM deliveries d USING delivery_lanes l
    WHERE l.webhook_id = %s AND d.run_id = l.run_id AND d.webhook_id = l.webhook_id
    """,
    "DELETE FROM delivery_lanes WHERE webhook_id = %s",
    "DELETE FROM dead_letters WHERE webhook_id = %s",
    "DELETE FROM webhooks WHERE webhook_id = %s",
)


class PostgresWebhooks(Part, WebhookReads):
    """`Webhooks` on PostgreSQL."""

    async def put_webhook(
        self, tenant: str, row: WebhookRow, remember: RememberedAnswer | None = None
    ) -> None:
        """Keep a new subscription, and with it the answer to the request that asked for it."""
        await self._db.run(tenant, partial(_put, row=row, remember=remember))

    async def rotate_webhook(
        self,
        tenant: str,
        webhook_id: str,
        rotation: Rotation,
        remember: RememberedAnswer | None = None,
    ) -> bool:
        """Give a subscription a new secret."""
        return await self._db.run(
            tenant,
            partial(_rotate, webhook_id=webhook_id, rotation=rotation, remember=remember),
        )

    async def delete_webhook(self, tenant: str, webhook_id: str) -> bool:
        """Forget a subscription and all it had still to be told."""
        return await self._db.run(tenant, partial(_delete, webhook_id=webhook_id))

    async def webhook_ids(self, after: str | None, limit: int) -> list[tuple[str, str]]:
        """A page of all subscriptions' owners and ids."""
        return [(row[0], row[1]) for row in await self._db.ask(_IDS, (after or "", limit))]


async def _put(
    transaction: Transaction, row: WebhookRow, remember: RememberedAnswer | None
) -> None:
    await remember_first(transaction, remember)
    await transaction.queue(_INSERT, webhook_values(transaction.tenant, row))


async def _rotate(
    transaction: Transaction,
    webhook_id: str,
    rotation: Rotation,
    remember: RememberedAnswer | None,
) -> bool:
    secret = (rotation.old_secret_until, rotation.secret, rotation.fingerprint)
    if await transaction.row(_ROTATE, (*secret, webhook_id, transaction.tenant)) is None:
        return False
    await remember_first(transaction, remember)
    return True


async def _delete(transaction: Transaction, webhook_id: str) -> bool:
    if await transaction.row(_HOLD, (webhook_id, transaction.tenant)) is None:
        return False
    for sql in _DELETE:
        await transaction.queue(sql, (webhook_id,))
    return True
