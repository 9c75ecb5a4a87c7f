"""The part that keeps deliveries: queued with the events they are about, settled turn by turn."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import partial

from wopr.store.port.webhooks import (
    DeadLetterPage,
    Delivery,
    Lane,
    Notice,
    Settlement,
)
from wopr.store.sql.side_rows import health_values, letter_row, letter_values, taken_off
from wopr.store.sqlite.part import Part

_IS_TOLD = "SELECT 1 FROM webhooks WHERE webhook_id = ? AND tenant = ? AND state <> 'failed'"
_EXISTS = "SELECT 1 FROM webhooks WHERE webhook_id = ? AND tenant = ?"

_OPEN_LANE = """
INSERT OR IGNORE INTO delivery_lanes (run_id, webhook_id, tenant, due_at, attempts)
VALUES (?, ?, ?, ?, 0)
"""
_QUEUE = "INSERT OR IGNORE INTO deliveries (run_id, webhook_id, sequence) VALUES (?, ?, ?)"

# From one webhook's lanes to the next one's, so that it costs the webhooks and not their lanes.
_UNDELIVERED = """
WITH RECURSIVE owed (webhook_id) AS (
    SELECT min(webhook_id) FROM delivery_lanes
    UNION ALL
    SELECT (SELECT min(webhook_id) FROM delivery_lanes l WHERE l.webhook_id > owed.webhook_id)
    FROM owed WHERE owed.webhook_id IS NOT NULL
)
SELECT w.tenant, w.webhook_id FROM owed CROSS JOIN webhooks w ON w.webhook_id = owed.webhook_id
"""

_DUE_LANES = """
SELECT run_id, attempts FROM delivery_lanes INDEXED BY delivery_lanes_due
WHERE webhook_id = ? AND due_at <= ? AND tenant = ? ORDER BY due_at, run_id LIMIT ?
"""

_NEXT_LANE_DUE = """
SELECT due_at FROM delivery_lanes INDEXED BY delivery_lanes_due
WHERE webhook_id = ? AND tenant = ? ORDER BY due_at LIMIT 1
"""

# The run's row is the way to its log, and it is there that the tenant is checked.
_DELIVERIES = """
SELECT e.sequence, e.type, e.body
FROM runs r CROSS JOIN deliveries d ON d.run_id = r.run_id
    CROSS JOIN events e ON e.run_id = d.run_id AND e.sequence = d.sequence
WHERE r.run_id = ? AND r.tenant = ? AND d.webhook_id = ? ORDER BY d.sequence LIMIT ?
"""

_TAKE_OFF = "DELETE FROM deliveries WHERE run_id = ? AND webhook_id = ? AND sequence = ?"
_HAS_MORE = "SELECT 1 FROM deliveries WHERE run_id = ? AND webhook_id = ? LIMIT 1"
_MOVE_LANE = """
UPDATE delivery_lanes SET due_at = ?, attempts = ? WHERE run_id = ? AND webhook_id = ?
"""
_CLOSE_LANE = "DELETE FROM delivery_lanes WHERE run_id = ? AND webhook_id = ?"

_SET_HEALTH = """
UPDATE webhooks SET state = ?, failures = ?, recent = ?, open_until = ?
WHERE webhook_id = ? AND tenant = ?
"""

# An update, not a replacement: a row that is replaced is not taken off the tenant's stored bytes.
_AGAIN = """
ON CONFLICT (run_id, webhook_id, sequence) DO UPDATE SET
    attempts = excluded.attempts, reason = excluded.reason, died_at = excluded.died_at
"""
_BURY = f"""
INSERT INTO dead_letters
    (run_id, webhook_id, sequence, tenant, type, attempts, reason, died_at, place)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) {_AGAIN}
"""
_GIVEN_UP = "the subscription has failed too often"
_PLACE = "printf('%s:%020d', {table}.run_id, {table}.sequence)"
_BURY_ALL = f"""
INSERT INTO dead_letters
    (run_id, webhook_id, sequence, tenant, type, attempts, reason, died_at, place)
SELECT d.run_id, d.webhook_id, d.sequence, l.tenant, e.type, l.attempts, ?, ?,
    {_PLACE.format(table="d")}
FROM delivery_lanes l
    CROSS JOIN deliveries d ON d.run_id = l.run_id AND d.webhook_id = l.webhook_id
    CROSS JOIN events e ON e.run_id = d.run_id AND e.sequence = d.sequence
WHERE l.webhook_id = ? {_AGAIN}
"""
_EMPTY_LANES = (
    """
    DELETE FROM deliveries WHERE (run_id, webhook_id) IN (
        SELECT run_id, webhook_id FROM delivery_lanes WHERE webhook_id = ?
    )
    """,
    "DELETE FROM delivery_lanes WHERE webhook_id = ?",
)

_DEAD = """
SELECT run_id, sequence, type, attempts, reason, died_at, place
FROM dead_letters INDEXED BY dead_letters_newest
WHERE webhook_id = ? AND tenant = ? AND (died_at, place) < (?, ?)
ORDER BY died_at DESC, place DESC LIMIT ?
"""
_END_OF_TIME = (2**63 - 1, "")

_OLDEST_DEAD = """
SELECT run_id, sequence FROM dead_letters INDEXED BY dead_letters_newest
WHERE webhook_id = ? ORDER BY died_at, place LIMIT ?
"""
_EXHUME = "DELETE FROM dead_letters WHERE run_id = ? AND webhook_id = ? AND sequence = ?"
_BEGIN_ANEW = """
UPDATE webhooks SET state = 'active', failures = 0, recent = NULL, open_until = NULL
WHERE webhook_id = ?
"""
_CALL_LANE = """
INSERT INTO delivery_lanes (run_id, webhook_id, tenant, due_at, attempts) VALUES (?, ?, ?, ?, 0)
ON CONFLICT (run_id, webhook_id) DO UPDATE SET due_at = excluded.due_at, attempts = 0
"""
_CALL_ALL_LANES = "UPDATE delivery_lanes SET due_at = min(due_at, ?) WHERE webhook_id = ?"

_FORGET_OF_RUN = (
    "DELETE FROM deliveries WHERE run_id = ?",
    "DELETE FROM delivery_lanes WHERE run_id = ?",
    "DELETE FROM dead_letters WHERE run_id = ?",
)


def queue_notices(
    connection: sqlite3.Connection, tenant: str, run_id: str, notices: Sequence[Notice], now: int
) -> None:
    """Queue events of a run for the subscriptions that are to be told of them."""
    for notice in notices:
        # A subscription may have gone since the batch was made, and must not come back by it.
        if connection.execute(_IS_TOLD, (notice.webhook_id, tenant)).fetchone() is None:
            continue
        connection.execute(_OPEN_LANE, (run_id, notice.webhook_id, tenant, now))
        connection.executemany(
            _QUEUE, [(run_id, notice.webhook_id, sequence) for sequence in notice.sequences]
        )


def forget_deliveries(connection: sqlite3.Connection, run_id: str) -> None:
    """Drop what was still to be said about a run that retention takes away."""
    for sql in _FORGET_OF_RUN:
        connection.execute(sql, (run_id,))


class SqliteOutbox(Part):
    """`Outbox` on SQLite."""

    async def undelivered(self) -> list[tuple[str, str]]:
        """Owners and ids of the subscriptions that have still to be told something."""
        return [(row[0], row[1]) for row in await self._reader.far(_UNDELIVERED)]

    async def due_lanes(self, tenant: str, webhook_id: str, now: int, limit: int) -> list[Lane]:
        """The lanes of a subscription whose time has come, earliest first."""
        rows = self._reader.near(_DUE_LANES, (webhook_id, now, tenant, limit))
        return [Lane(run_id=row[0], attempts=row[1]) for row in rows]

    async def next_lane_due(self, tenant: str, webhook_id: str) -> int | None:
        """When the next lane of a subscription is due."""
        rows = self._reader.near(_NEXT_LANE_DUE, (webhook_id, tenant))
        return rows[0][0] if rows else None

    async def deliveries(
        self, tenant: str, webhook_id: str, run_id: str, limit: int
    ) -> list[Delivery]:
        """The first events of a lane."""
        rows = self._reader.near(_DELIVERIES, (run_id, tenant, webhook_id, limit))
        return [Delivery(sequence=s, type=t, body=b) for s, t, b in rows]

    async def settle_deliveries(self, tenant: str, settlement: Settlement) -> None:
        """Keep what came of a lane's turn."""
        await self._writer.submit(partial(_settle, tenant=tenant, settlement=settlement))

    async def dead_letters(
        self, tenant: str, webhook_id: str, after: tuple[int, str] | None, limit: int
    ) -> DeadLetterPage:
        """A page of what was given up, newest first."""
        bounds = after or _END_OF_TIME
        rows = await self._reader.far(_DEAD, (webhook_id, tenant, *bounds, limit + 1))
        more = len(rows) > limit
        page = rows[:limit]
        return DeadLetterPage(
            letters=tuple(letter_row(row) for row in page),
            next_after=(page[-1][5], page[-1][6]) if more and page else None,
        )

    async def redeliver(self, tenant: str, webhook_id: str, now: int, limit: int) -> int:
        """Put the oldest dead letters back on their lanes."""
        return await self._writer.submit(
            partial(_redeliver, tenant=tenant, webhook_id=webhook_id, now=now, limit=limit)
        )


def _settle(connection: sqlite3.Connection, tenant: str, settlement: Settlement) -> None:
    lane = (settlement.run_id, settlement.webhook_id)
    if connection.execute(_EXISTS, (settlement.webhook_id, tenant)).fetchone() is None:
        return
    if settlement.dead is not None:
        letter = letter_values(tenant, settlement.webhook_id, settlement.dead)
        connection.execute(_BURY, letter)
    connection.executemany(_TAKE_OFF, [(*lane, each) for each in taken_off(settlement)])
    if connection.execute(_HAS_MORE, lane).fetchone() is None:
        connection.execute(_CLOSE_LANE, lane)
    else:
        connection.execute(_MOVE_LANE, (settlement.due_at, settlement.attempts, *lane))
    _set_health(connection, tenant, settlement)


def _set_health(connection: sqlite3.Connection, tenant: str, settlement: Settlement) -> None:
    health, name = settlement.health, settlement.webhook_id
    connection.execute(_SET_HEALTH, (*health_values(health), name, tenant))
    if health.state == "failed":
        connection.execute(_BURY_ALL, (_GIVEN_UP, settlement.now, name))
        for sql in _EMPTY_LANES:
            connection.execute(sql, (name,))


def _redeliver(
    connection: sqlite3.Connection, tenant: str, webhook_id: str, now: int, limit: int
) -> int:
    if connection.execute(_EXISTS, (webhook_id, tenant)).fetchone() is None:
        return 0
    rows = connection.execute(_OLDEST_DEAD, (webhook_id, limit)).fetchall()
    for run_id, sequence in rows:
        connection.execute(_EXHUME, (run_id, webhook_id, sequence))
        connection.execute(_QUEUE, (run_id, webhook_id, sequence))
        connection.execute(_CALL_LANE, (run_id, webhook_id, tenant, now))
    connection.execute(_BEGIN_ANEW, (webhook_id,))
    connection.execute(_CALL_ALL_LANES, (now, webhook_id))
    return len(rows)
