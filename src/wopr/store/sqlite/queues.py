"""The part that keeps review queues. Who holds which run is decided in one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import partial

from wopr.store.port.feedback import QueueRow, Review, ReviewCounts
from wopr.store.sql.reviews import is_held, require_room
from wopr.store.sql.side_rows import QUEUE_COLUMNS, queue_row
from wopr.store.sqlite.annotations import insert_annotation, require_run
from wopr.store.sqlite.part import Part

_INSERT = "INSERT INTO queues (tenant, queue_id, created_at, overlap, body) VALUES (?, ?, ?, ?, ?)"

_QUEUE = f"SELECT {QUEUE_COLUMNS} FROM queues WHERE tenant = ? AND queue_id = ?"

_NEWEST = f"""
SELECT {QUEUE_COLUMNS} FROM queues INDEXED BY queues_newest
WHERE tenant = ? AND (created_at, queue_id) < (?, ?)
ORDER BY created_at DESC, queue_id DESC LIMIT ?
"""

_NEXT_PLACE = """
SELECT coalesce(max(place) + 1, 0) FROM queue_items WHERE tenant = ? AND queue_id = ?
"""

# Only runs that the tenant has: the run's row is where that is written.
_ADD_ITEM = """
INSERT OR IGNORE INTO queue_items (tenant, queue_id, place, run_id, overlap)
SELECT q.tenant, q.queue_id, ?, r.run_id, q.overlap
FROM queues q CROSS JOIN runs r ON r.tenant = q.tenant
WHERE q.tenant = ? AND q.queue_id = ? AND r.run_id = ?
"""

_HELD = """
SELECT run_id FROM queue_reviews INDEXED BY queue_reviews_held
WHERE tenant = ? AND queue_id = ? AND reviewer = ? AND done_at IS NULL AND locked_until > ?
LIMIT 1
"""

_HELD_BY_OTHERS = """
SELECT count(*) FROM queue_reviews
WHERE tenant = ? AND queue_id = ? AND run_id = ? AND reviewer <> ?
    AND done_at IS NULL AND locked_until > ?
"""

_NEXT = """
SELECT i.run_id FROM queue_items i INDEXED BY queue_items_open
WHERE i.tenant = ? AND i.queue_id = ? AND i.reviews < i.overlap
    AND NOT EXISTS (
        SELECT 1 FROM queue_reviews r
        WHERE r.tenant = i.tenant AND r.queue_id = i.queue_id AND r.run_id = i.run_id
            AND r.reviewer = ? AND r.done_at IS NOT NULL
    )
    AND i.overlap > i.reviews + (
        SELECT count(*) FROM queue_reviews r
        WHERE r.tenant = i.tenant AND r.queue_id = i.queue_id AND r.run_id = i.run_id
            AND r.reviewer <> ? AND r.done_at IS NULL AND r.locked_until > ?
    )
ORDER BY i.place LIMIT 1
"""

_HOLD = """
INSERT INTO queue_reviews (tenant, queue_id, run_id, reviewer, locked_until)
VALUES (?, ?, ?, ?, ?)
ON CONFLICT (tenant, queue_id, run_id, reviewer) DO UPDATE SET locked_until = excluded.locked_until
"""

_ITEM = """
SELECT overlap, reviews FROM queue_items
WHERE tenant = ? AND run_id = ? AND queue_id = ?
"""

_REVIEW = """
SELECT locked_until, done_at FROM queue_reviews
WHERE tenant = ? AND queue_id = ? AND run_id = ? AND reviewer = ?
"""

_FINISH = """
UPDATE queue_reviews SET done_at = ?
WHERE tenant = ? AND queue_id = ? AND run_id = ? AND reviewer = ?
"""

_COUNT_REVIEW = """
UPDATE queue_items SET reviews = reviews + 1, verdict = coalesce(verdict, ?),
    disputed = disputed OR coalesce(verdict <> ?, 0)
WHERE tenant = ? AND run_id = ? AND queue_id = ?
"""

_PROGRESS = """
SELECT count(*), coalesce(sum(reviews >= overlap), 0), coalesce(sum(reviews), 0),
    coalesce(sum(reviews > 1), 0), coalesce(sum(reviews > 1 AND NOT disputed), 0)
FROM queue_items WHERE tenant = ? AND queue_id = ?
"""

_LOCKED = """
SELECT count(*) FROM queue_reviews INDEXED BY queue_reviews_held
WHERE tenant = ? AND queue_id = ? AND done_at IS NULL AND locked_until > ?
"""

_QUEUES_OF_RUN = """
SELECT queue_id FROM queue_items INDEXED BY queue_items_by_run WHERE tenant = ? AND run_id = ?
"""

_DELETE_REVIEWS = "DELETE FROM queue_reviews WHERE tenant = ? AND queue_id = ? AND run_id = ?"

_DELETE_ITEMS = "DELETE FROM queue_items WHERE tenant = ? AND run_id = ?"

_END_OF_TIME = (2**63 - 1, "")


class SqliteQueues(Part):
    """`ReviewQueues` on SQLite."""

    async def put_queue(self, tenant: str, row: QueueRow, run_ids: Sequence[str]) -> None:
        """Keep a queue with its first runs."""
        await self._writer.submit(partial(_put, tenant=tenant, row=row, run_ids=tuple(run_ids)))

    async def queue(self, tenant: str, queue_id: str) -> QueueRow | None:
        """The queue, or None."""
        rows = self._reader.near(_QUEUE, (tenant, queue_id))
        return queue_row(rows[0]) if rows else None

    async def queues(
        self, tenant: str, after: tuple[int, str] | None, limit: int
    ) -> list[QueueRow]:
        """Queues, newest first, by keyset."""
        rows = await self._reader.far(_NEWEST, (tenant, *(after or _END_OF_TIME), limit))
        return [queue_row(row) for row in rows]

    async def add_queue_items(
        self, tenant: str, queue_id: str, run_ids: Sequence[str], *, most: int
    ) -> int:
        """Put up to `most` runs that are new to a queue at its end; answers how many."""
        return await self._writer.submit(
            partial(_add_items, tenant=tenant, queue_id=queue_id, run_ids=tuple(run_ids), most=most)
        )

    async def take_queue_item(
        self, tenant: str, queue_id: str, reviewer: str, *, now: int, until: int
    ) -> str | None:
        """Hold the next run for a reviewer, or the one that they hold already."""
        return await self._writer.submit(
            partial(
                _take, tenant=tenant, queue_id=queue_id, reviewer=reviewer, now=now, until=until
            )
        )

    async def finish_review(self, tenant: str, review: Review) -> tuple[int, bool]:
        """Keep a review with its annotations."""
        return await self._writer.submit(partial(_finish, tenant=tenant, review=review))

    async def review_counts(self, tenant: str, queue_id: str, now: int) -> ReviewCounts:
        """How far the queue is."""
        [numbers] = await self._reader.far(_PROGRESS, (tenant, queue_id))
        [(locked,)] = await self._reader.far(_LOCKED, (tenant, queue_id, now))
        items, finished, reviews, compared, agreed = numbers
        return ReviewCounts(
            items=items,
            finished=finished,
            locked=locked,
            reviews=reviews,
            compared=compared,
            agreed=agreed,
        )


def forget_reviews(connection: sqlite3.Connection, tenant: str, run_id: str) -> None:
    """Take a run out of every queue."""
    for (queue_id,) in connection.execute(_QUEUES_OF_RUN, (tenant, run_id)).fetchall():
        connection.execute(_DELETE_REVIEWS, (tenant, queue_id, run_id))
    connection.execute(_DELETE_ITEMS, (tenant, run_id))


def _put(
    connection: sqlite3.Connection, tenant: str, row: QueueRow, run_ids: Sequence[str]
) -> None:
    connection.execute(_INSERT, (tenant, row.queue_id, row.created_at, row.overlap, row.body))
    _add_items(connection, tenant, row.queue_id, run_ids, most=len(run_ids))


def _add_items(
    connection: sqlite3.Connection, tenant: str, queue_id: str, run_ids: Sequence[str], most: int
) -> int:
    (first,) = connection.execute(_NEXT_PLACE, (tenant, queue_id)).fetchone()
    added = 0
    for run_id in run_ids:
        if added == most:
            break
        values = (first + added, tenant, queue_id, run_id)
        added += connection.execute(_ADD_ITEM, values).rowcount
    return added


def _take(
    connection: sqlite3.Connection,
    tenant: str,
    queue_id: str,
    reviewer: str,
    now: int,
    until: int,
) -> str | None:
    found = connection.execute(_HELD, (tenant, queue_id, reviewer, now)).fetchone()
    if found is None:
        found = connection.execute(_NEXT, (tenant, queue_id, reviewer, reviewer, now)).fetchone()
    if found is None:
        return None
    connection.execute(_HOLD, (tenant, queue_id, found[0], reviewer, until))
    return str(found[0])


def _finish(connection: sqlite3.Connection, tenant: str, review: Review) -> tuple[int, bool]:
    require_run(connection, tenant, review.run_id)
    overlap, reviews = _held(connection, tenant, review)
    for row in review.annotations:
        insert_annotation(connection, tenant, row)
    key = (tenant, review.queue_id, review.run_id, review.reviewer)
    connection.execute(_FINISH, (review.at, *key))
    said = (review.verdict, review.verdict)
    connection.execute(_COUNT_REVIEW, (*said, tenant, review.run_id, review.queue_id))
    return reviews + 1, reviews + 1 >= overlap


def _held(connection: sqlite3.Connection, tenant: str, review: Review) -> tuple[int, int]:
    """The overlap and the reviews of a run that this reviewer may finish now."""
    item = connection.execute(_ITEM, (tenant, review.run_id, review.queue_id)).fetchone()
    key = (tenant, review.queue_id, review.run_id, review.reviewer)
    hold = connection.execute(_REVIEW, key).fetchone()
    others = 0
    if not is_held(review, item, hold):
        (others,) = connection.execute(_HELD_BY_OTHERS, (*key, review.at)).fetchone()
    overlap, reviews = item[0], item[1]
    require_room(overlap, reviews, others)
    return overlap, reviews
