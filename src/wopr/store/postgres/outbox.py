"""The part that keeps deliveries: queued by `append`, settled turn by turn.

Whoever changes a lane holds its subscription first and then the lane, as `append` does.
"""

from __future__ import annotations

from functools import partial

from wopr.store.port.webhooks import DeadLetterPage, Delivery, Lane, Settlement
from wopr.store.postgres.database import Transaction
from wopr.store.postgres.part import Part
from wopr.store.sql.side_rows import health_values, letter_row, letter_values, taken_off

_UNDELIVERED = "SELECT tenant, id FROM host_undelivered()"

_DUE_LANES = """
SELECT run_id, attempts FROM delivery_lanes
WHERE webhook_id = %s AND due_at <= %s AND tenant = %s ORDER BY due_at, run_id LIMIT %s
"""

_NEXT_LANE_DUE = """
SELECT due_at FROM delivery_lanes
WHERE webhook_id = %s AND tenant = %s ORDER BY due_at LIMIT 1
"""

_DELIVERIES = """
SELECT e.sequence, e.type, e.body
FROM deliveries d JOIN events e ON e.run_id = d.run_id AND e.sequence = d.sequence
WHERE d.run_id = %s AND d.tenant = %s AND d.webhook_id = %s ORDER BY d.sequence LIMIT %s
"""

_HOLD = "SELECT 1 FROM webhooks WHERE webhook_id = %s AND tenant = %s FOR NO KEY UPDATE"
_HOLD_LANE = "SELECT 1 FROM delivery_lanes WHERE run_id = %s AND webhook_id = %s FOR UPDATE"
_TAKE_OFF = """
DELETE FROM deliveries WHERE run_id = %s AND webhook_id = %s AND sequence = ANY (%s::bigint[])
"""
_HAS_MORE = "SELECT 1 FROM deliveries WHERE run_id = %s AND webhook_id = %s LIMIT 1"
_MOVE_LANE = """
UPDATE delivery_lanes SET due_at = %s, attempts = %s WHERE run_id = %s AND webhook_id = %s
"""
_CLOSE_LANE = "DELETE FROM delivery_lanes WHERE run_id = %s AND webhook_id = %s"

_SET_HEALTH = """
UPDATE webhooks SET state = %s, failures = %s, recent = %s, open_until = %s
WHERE webhook_id = %s AND tenant = %s
"""

_LETTER = "run_id, webhook_id, sequence, tenant, type, attempts, reason, died_at, place"
_AGAIN = """
ON CONFLICT (run_id, webhook_id, sequence) DO UPDATE SET
    attempts = excluded.attempts, reason = excluded.reason, died_at = excluded.died_at
"""
_BURY = f"""
INSERT INTO dead_letters ({_LETTER}) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s) {_AGAIN}
"""
_GIVEN_UP = "the subscription has failed too often"
_BURY_ALL = f"""
INSERT INTO dead_letters ({_LETTER})
SELECT d.run_id, d.webhook_id, d.sequence, l.tenant, e.type, l.attempts, %s, %s,
    d.run_id || ':' || lpad(d.sequence::text, 20, '0')
FROM delivery_lanes l
    JOIN deliveries d ON d.run_id = l.run_id AND d.webhook_id = l.webhook_id
    JOIN events e ON e.run_id = d.run_id AND e.sequence = d.sequence
WHERE l.webhook_id = %s {_AGAIN}
"""
_EMPTY_LANES = (
    """
    DELETE FROM deliveries d USING delivery_lanes l
    WHERE l.webhook_id = %s AND d.run_id = l.run_id AND d.webhook_id = l.webhook_id
    """,
    "DELETE FROM delivery_lanes WHERE webhook_id = %s",
)

_DEAD = """
SELECT run_id, sequence, type, attempts, reason, died_at, place FROM dead_letters
WHERE webhook_id = %s AND tenant = %s AND (died_at, place) < (%s, %s)
ORDER BY died_at DESC, place DESC LIMIT %s
"""
_END_OF_TIME = (2**63 - 1, "")

_EXHUME = """
WITH oldest AS (
    SELECT run_id, webhook_id, sequence FROM dead_letters
    WHERE webhook_id = %s ORDER BY died_at, place LIMIT %s
)
DELETE FROM dead_letters d USING oldest o
WHERE d.run_id = o.run_id AND d.webhook_id = o.webhook_id AND d.sequence = o.sequence
RETURNING d.run_id, d.sequence
"""
_QUEUE = """
INSERT INTO deliveries (run_id, webhook_id, sequence, tenant) VALUES (%s, %s, %s, %s)
ON CONFLICT DO NOTHING
"""
_BEGIN_ANEW = """
UPDATE webhooks SET state = 'active', failures = 0, recent = NULL, open_until = NULL
WHERE webhook_id = %s
"""
_CALL_LANE = """
INSERT INTO delivery_lanes (run_id, webhook_id, tenant, due_at, attempts)
VALUES (%s, %s, %s, %s, 0)
ON CONFLICT (run_id, webhook_id) DO UPDATE SET due_at = excluded.due_at, attempts = 0
"""
_CALL_ALL_LANES = """
UPDATE delivery_lanes SET due_at = %s WHERE webhook_id = %s AND due_at > %s
"""

_FORGET_OF_RUN = (
    "DELETE FROM deliveries WHERE run_id = %s",
    "DELETE FROM delivery_lanes WHERE run_id = %s",
    "DELETE FROM dead_letters WHERE run_id = %s",
)


async def forget_deliveries(transaction: Transaction, run_id: str) -> None:
    """Drop what was still to be said about a run that retention takes away."""
    for sql in _FORGET_OF_RUN:
        await transaction.queue(sql, (run_id,))


class PostgresOutbox(Part):
    """`Outbox` on PostgreSQL."""

    async def undelivered(self) -> list[tuple[str, str]]:
        """Owners and ids of the subscriptions that have still to be told something."""
        return [(row[0], row[1]) for row in await self._db.ask(_UNDELIVERED)]

    async def due_lanes(self, tenant: str, webhook_id: str, now: int, limit: int) -> list[Lane]:
        """The lanes of a subscription whose time has come, earliest first."""
        rows = await self._db.read(tenant, _DUE_LANES, (webhook_id, now, tenant, limit))
        return [Lane(run_id=row[0], attempts=row[1]) for row in rows]

    async def next_lane_due(self, tenant: str, webhook_id: str) -> int | None:
        """When the next lane of a subscription is due."""
        rows = await self._db.read(tenant, _NEXT_LANE_DUE, (webhook_id, tenant))
        return rows[0][0] if rows else None

    async def deliveries(
        self, tenant: str, webhook_id: str, run_id: str, limit: int
    ) -> list[Delivery]:
        """The first events of a lane."""
        rows = await self._db.read(tenant, _DELIVERIES, (run_id, tenant, webhook_id, limit))
        return [Delivery(sequence=s, type=t, body=b) for s, t, b in rows]

    async def settle_deliveries(self, tenant: str, settlement: Settlement) -> None:
        """Keep what came of a lane's turn."""
        await self._db.run(tenant, partial(_settle, settlement=settlement))

    async def dead_letters(
        self, tenant: str, webhook_id: str, after: tuple[int, str] | None, limit: int
    ) -> DeadLetterPage:
        """A page of what was given up, newest first."""
        values = (webhook_id, tenant, *(after or _END_OF_TIME), limit + 1)
        rows = await self._db.read(tenant, _DEAD, values)
        more = len(rows) > limit
        page = rows[:limit]
        return DeadLetterPage(
            letters=tuple(letter_row(row) for row in page),
            next_after=(page[-1][5], page[-1][6]) if more and page else None,
        )

    async def redeliver(self, tenant: str, webhook_id: str, now: int, limit: int) -> int:
        """Put the oldest dead letters back on their lanes."""
        return await self._db.run(
            tenant, partial(_redeliver, webhook_id=webhook_id, now=now, limit=limit)
        )


async def _settle(transaction: Transaction, settlement: Settlement) -> None:
    tenant, name = transaction.tenant, settlement.webhook_id
    lane = (settlement.run_id, name)
    if await transaction.row(_HOLD, (name, tenant)) is None:
        return
    await transaction.queue(_HOLD_LANE, lane)
    if settlement.dead is not None:
        await transaction.queue(_BURY, letter_values(tenant, name, settlement.dead))
    if gone := taken_off(settlement):
        await transaction.queue(_TAKE_OFF, (*lane, gone))
    if await transaction.row(_HAS_MORE, lane) is None:
        await transaction.queue(_CLOSE_LANE, lane)
    else:
        await transaction.queue(_MOVE_LANE, (settlement.due_at, settlement.attempts, *lane))
    await _set_health(transaction, settlement)


async def _set_health(transaction: Transaction, settlement: Settlement) -> None:
    health, name = settlement.health, settlement.webhook_id
    await transaction.queue(_SET_HEALTH, (*health_values(health), name, transaction.tenant))
    if health.state == "failed":
        await transaction.queue(_BURY_ALL, (_GIVEN_UP, settlement.now, name))
        for sql in _EMPTY_LANES:
            await transaction.queue(sql, (name,))


async def _redeliver(transaction: Transaction, webhook_id: str, now: int, limit: int) -> int:
    tenant = transaction.tenant
    if await transaction.row(_HOLD, (webhook_id, tenant)) is None:
        return 0
    letters = await transaction.rows(_EXHUME, (webhook_id, limit))
    for run_id, sequence in sorted(letters):
        await transaction.queue(_CALL_LANE, (run_id, webhook_id, tenant, now))
        await transaction.queue(_QUEUE, (run_id, webhook_id, sequence, tenant))
    await transaction.queue(_BEGIN_ANEW, (webhook_id,))
    await transaction.queue(_CALL_ALL_LANES, (now, webhook_id, now))
    return len(letters)
