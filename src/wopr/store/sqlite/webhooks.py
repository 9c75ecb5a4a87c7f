"""The part that keeps subscriptions."""

from __future__ import annotations

import sqlite3
from functools import partial

from wopr.store.port import RememberedAnswer
from wopr.store.port.webhooks import Rotation, WebhookRow
from wopr.store.sql.rows import answer_values
from wopr.store.sql.side_rows import webhook_values
from wopr.store.sql.webhooks import WebhookReads
from wopr.store.sqlite.append import INSERT_ANSWER, check_unanswered
from wopr.store.sqlite.part import Part

_INSERT = """
INSERT INTO webhooks (
    webhook_id, tenant, url, events, tags, secret, fingerprint, created_at, state, failures
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'active', 0)
"""

_IDS = """
SELECT tenant, webhook_id FROM webhooks WHERE webhook_id > ? ORDER BY webhook_id LIMIT ?
"""

_ROTATE = """
UPDATE webhooks
SET old_secret = secret, old_secret_until = ?, secret = ?, fingerprint = ?
WHERE webhook_id = ? AND tenant = ?
"""

_EXISTS = "SELECT 1 FROM webhooks WHERE webhook_id = ? AND tenant = ?"

_DELETE = (
    """
    DELETE FROM deliveries WHERE (run_id, webhook_id) IN (
        SELECT run_id, webhook_id FROM delivery_lanes WHERE webhook_id = ?
    )
    """,
    "DELETE FROM delivery_lanes WHERE webhook_id = ?",
    "DELETE FROM dead_letters WHERE webhook_id = ?",
    "DELETE FROM webhooks WHERE webhook_id = ?",
)


class SqliteWebhooks(Part, WebhookReads):
    """`Webhooks` on SQLite."""

    async def put_webhook(
        self, tenant: str, row: WebhookRow, remember: RememberedAnswer | None = None
    ) -> None:
        """Keep a new subscription, and with it the answer to the request that asked for it."""
        await self._writer.submit(partial(_put, tenant=tenant, row=row, remember=remember))

    async def rotate_webhook(
        self,
        tenant: str,
        webhook_id: str,
        rotation: Rotation,
        remember: RememberedAnswer | None = None,
    ) -> bool:
        """Give a subscription a new secret."""
        return await self._writer.submit(
            partial(
                _rotate,
                tenant=tenant,
                webhook_id=webhook_id,
                rotation=rotation,
                remember=remember,
            )
        )

    async def delete_webhook(self, tenant: str, webhook_id: str) -> bool:
        """Forget a subscription and all it had still to be told."""
        return await self._writer.submit(partial(_delete, tenant=tenant, webhook_id=webhook_id))

    async def webhook_ids(self, after: str | None, limit: int) -> list[tuple[str, str]]:
        """A page of all subscriptions' owners and ids."""
        rows = await self._reader.far(_IDS, (after or "", limit))
        return [(row[0], row[1]) for row in rows]


def _put(
    connection: sqlite3.Connection, tenant: str, row: WebhookRow, remember: RememberedAnswer | None
) -> None:
    if remember is not None:
        check_unanswered(connection, tenant, remember.key_hash)
    connection.execute(_INSERT, webhook_values(tenant, row))
    _remember(connection, tenant, remember)


def _rotate(
    connection: sqlite3.Connection,
    tenant: str,
    webhook_id: str,
    rotation: Rotation,
    remember: RememberedAnswer | None,
) -> bool:
    if remember is not None:
        check_unanswered(connection, tenant, remember.key_hash)
    values = (rotation.old_secret_until, rotation.secret, rotation.fingerprint, webhook_id, tenant)
    if not connection.execute(_ROTATE, values).rowcount:
        return False
    _remember(connection, tenant, remember)
    return True


def _remember(connection: sqlite3.Connection, tenant: str, answer: RememberedAnswer | None) -> None:
    if answer is not None:
        connection.execute(INSERT_ANSWER, answer_values(tenant, answer))


def _delete(connection: sqlite3.Connection, tenant: str, webhook_id: str) -> bool:
    if connection.execute(_EXISTS, (webhook_id, tenant)).fetchone() is None:
        return False
    for sql in _DELETE:
        connection.execute(sql, (webhook_id,))
    return True
