"""Webhook subscriptions and their deliveries.

`append` adds the deliveries to queues. A delivery queue, a row of `delivery_lanes`, has the events
of one run that one subscription has not received yet. An operation that changes a queue locks the
subscription first and then the queue, as `append` does.
"""

from __future__ import annotations

from functools import partial

import msgspec

from wopr.store.port import IdempotencyRecord
from wopr.store.port.webhooks import (
    DeadLetter,
    DeadLetterPage,
    Delivery,
    DeliveryQueue,
    DeliveryResult,
    Rotation,
    WebhookHealth,
    WebhookRow,
)
from wopr.store.tables.database import Table
from wopr.store.tables.dialect import (
    AFTER_ALL_ROWS,
    Parameter,
    Row,
    Variants,
    decode_names,
    encode_names,
    variants,
)
from wopr.store.tables.runs.idempotency import insert_first_record
from wopr.store.tables.statements import Operation, execute, execute_many, query

_COLUMNS = """
webhook_id, url, events, tags, secret, fingerprint, created_at, state, failures, recent,
open_until, old_secret, old_secret_until
"""
_INSERT = """
INSERT INTO webhooks (
    webhook_id, tenant, url, events, tags, secret, fingerprint, created_at, state, failures
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'active', 0)
"""
_ONE = f"SELECT {_COLUMNS} FROM webhooks WHERE webhook_id = ? AND tenant = ?"
_PAGE = f"""
SELECT {_COLUMNS} FROM webhooks WHERE tenant = ? AND (created_at, webhook_id) < (?, ?)
ORDER BY created_at DESC, webhook_id DESC LIMIT ?
"""
_IDS = Variants(
    sqlite="""
SELECT tenant, webhook_id FROM webhooks WHERE webhook_id > ? ORDER BY webhook_id LIMIT ?
""",
    postgres="SELECT tenant, id FROM host_webhooks(?, ?)",
)
_LOCK = variants(
    lambda dialect: (
        "SELECT 1 FROM webhooks WHERE webhook_id = ? AND tenant = ?"
        f"{dialect.lock('FOR NO KEY UPDATE')}"
    )
)
_ROTATE = """
UPDATE webhooks
SET old_secret = secret, old_secret_until = ?, secret = ?, fingerprint = ?
WHERE webhook_id = ? AND tenant = ?
"""
# Appends with deliveries for the subscription wait for the lock, and then do not find the row.
_LOCK_TO_DELETE = variants(
    lambda dialect: (
        f"SELECT 1 FROM webhooks WHERE webhook_id = ? AND tenant = ?{dialect.lock('FOR UPDATE')}"
    )
)
_DELETE_QUEUES = (
    """
    DELETE FROM deliveries WHERE (run_id, webhook_id) IN (
        SELECT l.run_id, l.webhook_id FROM delivery_lanes l WHERE l.webhook_id = ?
    )
    """,
    "DELETE FROM delivery_lanes WHERE webhook_id = ?",
)
_DELETE = (
    *_DELETE_QUEUES,
    "DELETE FROM dead_letters WHERE webhook_id = ?",
    "DELETE FROM webhooks WHERE webhook_id = ?",
)

# SQLite goes from one webhook with queues to the next, so that the cost grows with the number of
# webhooks and not of queues.
_UNDELIVERED = Variants(
    sqlite="""
WITH RECURSIVE known (webhook_id) AS (
    SELECT min(webhook_id) FROM delivery_lanes
    UNION ALL
    SELECT (SELECT min(webhook_id) FROM delivery_lanes l WHERE l.webhook_id > known.webhook_id)
    FROM known WHERE known.webhook_id IS NOT NULL
)
SELECT w.tenant, w.webhook_id FROM known CROSS JOIN webhooks w ON w.webhook_id = known.webhook_id
""",
    postgres="SELECT tenant, id FROM host_undelivered()",
)
_DUE_QUEUES = variants(
    lambda dialect: (
        f"""
SELECT run_id, attempts FROM delivery_lanes{dialect.indexed_by("delivery_lanes_due")}
WHERE webhook_id = ? AND due_at <= ? AND tenant = ? ORDER BY due_at, run_id LIMIT ?
"""
    )
)
_NEXT_QUEUE_DUE = variants(
    lambda dialect: (
        f"""
SELECT due_at FROM delivery_lanes{dialect.indexed_by("delivery_lanes_due")}
WHERE webhook_id = ? AND tenant = ? ORDER BY due_at LIMIT 1
"""
    )
)
# The rows of `delivery_lanes` have the tenant.
_DELIVERIES = variants(
    lambda dialect: (
        f"""
SELECT e.sequence, e.type, e.body
FROM delivery_lanes l
    {dialect.ordered_join} deliveries d ON d.run_id = l.run_id AND d.webhook_id = l.webhook_id
    {dialect.ordered_join} events e ON e.run_id = d.run_id AND e.sequence = d.sequence
WHERE l.run_id = ? AND l.tenant = ? AND l.webhook_id = ? ORDER BY d.sequence LIMIT ?
"""
    )
)

_LOCK_QUEUE = Variants(
    sqlite="",
    postgres="SELECT 1 FROM delivery_lanes WHERE run_id = ? AND webhook_id = ? FOR UPDATE",
)
_REMOVE = "DELETE FROM deliveries WHERE run_id = ? AND webhook_id = ? AND sequence = ?"
_HAS_MORE = "SELECT 1 FROM deliveries WHERE run_id = ? AND webhook_id = ? LIMIT 1"
_SET_QUEUE_DUE = """
UPDATE delivery_lanes SET due_at = ?, attempts = ? WHERE run_id = ? AND webhook_id = ?
"""
_DELETE_QUEUE = "DELETE FROM delivery_lanes WHERE run_id = ? AND webhook_id = ?"
_SET_HEALTH = """
UPDATE webhooks SET state = ?, failures = ?, recent = ?, open_until = ?
WHERE webhook_id = ? AND tenant = ?
"""

_LETTER = "run_id, webhook_id, sequence, tenant, type, attempts, reason, died_at, place"
# An update and not a replacement: a replaced row is not subtracted from the tenant's stored bytes.
_UPDATE_LETTER = """
ON CONFLICT (run_id, webhook_id, sequence) DO UPDATE SET
    attempts = excluded.attempts, reason = excluded.reason, died_at = excluded.died_at
"""
_ADD_LETTER = f"""
INSERT INTO dead_letters ({_LETTER}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) {_UPDATE_LETTER}
"""
_GIVEN_UP = "the subscription has failed too often"
# The place is the run and the sequence with 20 digits.
_ADD_ALL_LETTERS = variants(
    lambda dialect: (
        f"""
INSERT INTO dead_letters ({_LETTER})
SELECT d.run_id, d.webhook_id, d.sequence, l.tenant, e.type, l.attempts, ?, ?,
    d.run_id || ':' || substr('{"0" * 20}' || d.sequence, length('' || d.sequence) + 1)
FROM delivery_lanes l
    {dialect.ordered_join} deliveries d ON d.run_id = l.run_id AND d.webhook_id = l.webhook_id
    {dialect.ordered_join} events e ON e.run_id = d.run_id AND e.sequence = d.sequence
WHERE l.webhook_id = ? {_UPDATE_LETTER}
"""
    )
)
_DEAD = variants(
    lambda dialect: (
        f"""
SELECT run_id, sequence, type, attempts, reason, died_at, place
FROM dead_letters{dialect.indexed_by("dead_letters_newest")}
WHERE webhook_id = ? AND tenant = ? AND (died_at, place) < (?, ?)
ORDER BY died_at DESC, place DESC LIMIT ?
"""
    )
)
_OLDEST_DEAD = variants(
    lambda dialect: (
        f"""
SELECT run_id, sequence FROM dead_letters{dialect.indexed_by("dead_letters_newest")}
WHERE webhook_id = ? ORDER BY died_at, place LIMIT ?
"""
    )
)
_DELETE_LETTER = "DELETE FROM dead_letters WHERE run_id = ? AND webhook_id = ? AND sequence = ?"
_ADD_QUEUE = """
INSERT INTO delivery_lanes (run_id, webhook_id, tenant, due_at, attempts) VALUES (?, ?, ?, ?, 0)
ON CONFLICT (run_id, webhook_id) DO UPDATE SET due_at = excluded.due_at, attempts = 0
"""
# On PostgreSQL a delivery has the tenant of its queue, for row-level security.
_ADD_DELIVERY = Variants(
    sqlite="""
INSERT INTO deliveries (run_id, webhook_id, sequence)
SELECT run_id, webhook_id, ? FROM delivery_lanes WHERE run_id = ? AND webhook_id = ?
ON CONFLICT DO NOTHING
""",
    postgres="""
INSERT INTO deliveries (run_id, webhook_id, sequence, tenant)
SELECT run_id, webhook_id, ?, tenant FROM delivery_lanes WHERE run_id = ? AND webhook_id = ?
ON CONFLICT DO NOTHING
""",
)
_RESET_HEALTH = """
UPDATE webhooks SET state = 'active', failures = 0, recent = NULL, open_until = NULL
WHERE webhook_id = ?
"""
_ALL_QUEUES_DUE = "UPDATE delivery_lanes SET due_at = ? WHERE webhook_id = ? AND due_at > ?"

_DELETE_OF_RUN = (
    "DELETE FROM deliveries WHERE run_id = ?",
    "DELETE FROM delivery_lanes WHERE run_id = ?",
    "DELETE FROM dead_letters WHERE run_id = ?",
)

_times = msgspec.json.Decoder(tuple[int, ...])


class WebhookTable(Table):
    """`Webhooks` in SQL."""

    async def put_webhook(
        self, tenant: str, row: WebhookRow, idempotency: IdempotencyRecord | None = None
    ) -> None:
        """Store a new subscription and the response to its request."""
        await self._sql.transact(tenant, partial(_put, tenant, row, idempotency))

    async def webhook(self, tenant: str, webhook_id: str) -> WebhookRow | None:
        """Return the subscription."""
        rows = await self._sql.read_few(tenant, _ONE, (webhook_id, tenant))
        return _webhook(rows[0]) if rows else None

    async def webhooks(
        self, tenant: str, after: tuple[int, str] | None, limit: int
    ) -> list[WebhookRow]:
        """List the tenant's subscriptions, newest first."""
        values = (tenant, *(after or AFTER_ALL_ROWS), limit)
        return [_webhook(row) for row in await self._sql.read_many(tenant, _PAGE, values)]

    async def rotate_webhook(
        self,
        tenant: str,
        webhook_id: str,
        rotation: Rotation,
        idempotency: IdempotencyRecord | None = None,
    ) -> bool:
        """Give a subscription a new secret; False when there is no such subscription."""
        return await self._sql.transact(
            tenant, partial(_rotate, tenant, webhook_id, rotation, idempotency)
        )

    async def delete_webhook(self, tenant: str, webhook_id: str) -> bool:
        """Delete a subscription and its deliveries; False when there is no such subscription."""
        return await self._sql.transact(tenant, partial(_delete, tenant, webhook_id))

    async def webhook_ids(self, after: str | None, limit: int) -> list[tuple[str, str]]:
        """List a page of the tenants and ids of all subscriptions."""
        rows = await self._sql.read_host_many(_IDS, (after or "", limit))
        return [(row[0], row[1]) for row in rows]


class DeliveryTable(Table):
    """`Outbox` in SQL."""

    async def webhooks_with_deliveries(self) -> list[tuple[str, str]]:
        """List the tenants and ids of the subscriptions with deliveries."""
        return [(row[0], row[1]) for row in await self._sql.read_host_many(_UNDELIVERED)]

    async def due_queues(
        self, tenant: str, webhook_id: str, now: int, limit: int
    ) -> list[DeliveryQueue]:
        """List the queues of a subscription that are due, earliest first."""
        rows = await self._sql.read_few(tenant, _DUE_QUEUES, (webhook_id, now, tenant, limit))
        return [DeliveryQueue(run_id=row[0], attempts=row[1]) for row in rows]

    async def next_queue_due(self, tenant: str, webhook_id: str) -> int | None:
        """Return when the next queue of a subscription is due."""
        rows = await self._sql.read_few(tenant, _NEXT_QUEUE_DUE, (webhook_id, tenant))
        return rows[0][0] if rows else None

    async def deliveries(
        self, tenant: str, webhook_id: str, run_id: str, limit: int
    ) -> list[Delivery]:
        """List the first events of a queue."""
        rows = await self._sql.read_few(tenant, _DELIVERIES, (run_id, tenant, webhook_id, limit))
        return [Delivery(sequence=s, type=t, body=b) for s, t, b in rows]

    async def settle_deliveries(self, tenant: str, result: DeliveryResult) -> None:
        """Record the result of an attempt."""
        await self._sql.transact(tenant, partial(_settle, tenant, result))

    async def dead_letters(
        self, tenant: str, webhook_id: str, after: tuple[int, str] | None, limit: int
    ) -> DeadLetterPage:
        """List a page of dead letters, newest first."""
        # One more than the limit shows whether there is a next page.
        values = (webhook_id, tenant, *(after or AFTER_ALL_ROWS), limit + 1)
        rows = await self._sql.read_many(tenant, _DEAD, values)
        page = rows[:limit]
        return DeadLetterPage(
            letters=tuple(_letter(row) for row in page),
            next_after=(page[-1][5], page[-1][6]) if page and len(rows) > limit else None,
        )

    async def redeliver(self, tenant: str, webhook_id: str, now: int, limit: int) -> int:
        """Move the oldest dead letters back to their queues, and return their number."""
        return await self._sql.transact(tenant, partial(_redeliver, tenant, webhook_id, now, limit))


def delete_deliveries(run_id: str) -> Operation[None]:
    """Delete the deliveries of a run that retention deletes."""
    for sql in _DELETE_OF_RUN:
        yield execute(sql, (run_id,))


def _put(tenant: str, row: WebhookRow, idempotency: IdempotencyRecord | None) -> Operation[None]:
    yield from insert_first_record(tenant, idempotency)
    yield execute(
        _INSERT,
        (
            row.webhook_id,
            tenant,
            row.url,
            msgspec.json.encode(row.events),
            encode_names(row.tags),
            row.secret,
            row.fingerprint,
            row.created_at,
        ),
    )


def _rotate(
    tenant: str, webhook_id: str, rotation: Rotation, idempotency: IdempotencyRecord | None
) -> Operation[bool]:
    if not (yield query(_LOCK, (webhook_id, tenant))):
        return False
    yield from insert_first_record(tenant, idempotency)
    secret = (rotation.old_secret_until, rotation.secret, rotation.fingerprint)
    yield execute(_ROTATE, (*secret, webhook_id, tenant))
    return True


def _delete(tenant: str, webhook_id: str) -> Operation[bool]:
    if not (yield query(_LOCK_TO_DELETE, (webhook_id, tenant))):
        return False
    for sql in _DELETE:
        yield execute(sql, (webhook_id,))
    return True


def _settle(tenant: str, result: DeliveryResult) -> Operation[None]:
    webhook_id, queue = result.webhook_id, (result.run_id, result.webhook_id)
    if not (yield query(_LOCK, (webhook_id, tenant))):
        return
    yield execute(_LOCK_QUEUE, queue)
    removed = [*result.delivered]
    if result.dead is not None:
        yield execute(_ADD_LETTER, _letter_values(tenant, webhook_id, result.dead))
        removed.append(result.dead.sequence)
    if removed:
        yield execute_many(_REMOVE, [(*queue, sequence) for sequence in removed])
    if (yield query(_HAS_MORE, queue)):
        yield execute(_SET_QUEUE_DUE, (result.due_at, result.attempts, *queue))
    else:
        yield execute(_DELETE_QUEUE, queue)
    yield from _set_health(tenant, result)


def _set_health(tenant: str, result: DeliveryResult) -> Operation[None]:
    health, webhook_id = result.health, result.webhook_id
    recent = msgspec.json.encode(health.recent) if health.recent else None
    values = (health.state, health.failures, recent, health.open_until, webhook_id, tenant)
    yield execute(_SET_HEALTH, values)
    if health.state == "failed":
        yield execute(_ADD_ALL_LETTERS, (_GIVEN_UP, result.now, webhook_id))
        for sql in _DELETE_QUEUES:
            yield execute(sql, (webhook_id,))


def _redeliver(tenant: str, webhook_id: str, now: int, limit: int) -> Operation[int]:
    if not (yield query(_LOCK, (webhook_id, tenant))):
        return 0
    letters = yield query(_OLDEST_DEAD, (webhook_id, limit))
    # In the order of the runs, so that two transactions lock queues in the same order.
    for run_id, sequence in sorted(letters):
        yield execute(_DELETE_LETTER, (run_id, webhook_id, sequence))
        yield execute(_ADD_QUEUE, (run_id, webhook_id, tenant, now))
        yield execute(_ADD_DELIVERY, (sequence, run_id, webhook_id))
    yield execute(_RESET_HEALTH, (webhook_id,))
    yield execute(_ALL_QUEUES_DUE, (now, webhook_id, now))
    return len(letters)


def _webhook(row: Row) -> WebhookRow:
    return WebhookRow(
        webhook_id=row[0],
        url=row[1],
        events=decode_names(row[2]),
        tags=decode_names(row[3]),
        secret=row[4],
        fingerprint=row[5],
        created_at=row[6],
        health=WebhookHealth(
            state=row[7],
            failures=row[8],
            recent=() if row[9] is None else _times.decode(row[9]),
            open_until=row[10],
        ),
        old_secret=row[11],
        old_secret_until=row[12],
    )


def _letter(row: Row) -> DeadLetter:
    return DeadLetter(
        run_id=row[0], sequence=row[1], type=row[2], attempts=row[3], reason=row[4], died_at=row[5]
    )


def _letter_values(tenant: str, webhook_id: str, letter: DeadLetter) -> tuple[Parameter, ...]:
    return (
        letter.run_id,
        webhook_id,
        letter.sequence,
        tenant,
        letter.type,
        letter.attempts,
        letter.reason,
        letter.died_at,
        f"{letter.run_id}:{letter.sequence:020d}",
    )
