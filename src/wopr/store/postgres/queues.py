"""The part that keeps review queues. Who holds which run is decided while its queue is held."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from wopr.store.port.feedback import QueueRow, Review, ReviewCounts
from wopr.store.postgres.annotation_rows import record_annotations
from wopr.store.postgres.annotations import insert_annotation, require_run
from wopr.store.postgres.database import Transaction
from wopr.store.postgres.part import Part
from wopr.store.sql.reviews import is_held, require_room
from wopr.store.sql.side_rows import QUEUE_COLUMNS, queue_row

_INSERT = """
INSERT INTO queues (tenant, queue_id, created_at, overlap, body) VALUES (%s, %s, %s, %s, %s)
"""

_QUEUE = f"SELECT {QUEUE_COLUMNS} FROM queues WHERE tenant = %s AND queue_id = %s"

_HOLD_QUEUE = "SELECT 1 FROM queues WHERE tenant = %s AND queue_id = %s FOR NO KEY UPDATE"

_NEWEST = f"""
SELECT {QUEUE_COLUMNS} FROM queues WHERE tenant = %s AND (created_at, queue_id) < (%s, %s)
ORDER BY created_at DESC, queue_id DESC LIMIT %s
"""

# Only runs that the tenant has and that are new to the queue, in the order given; the numbers
# follow on the last.
_ADD_ITEMS = """
INSERT INTO queue_items (tenant, queue_id, place, run_id, overlap)
SELECT q.tenant, q.queue_id, last.place + row_number() OVER (ORDER BY new.n), new.run_id, q.overlap
FROM queues q, (
    SELECT coalesce(max(place), -1) AS place FROM queue_items WHERE tenant = %s AND queue_id = %s
) last, (
    SELECT given.run_id, min(given.n) AS n
    FROM unnest(%s::text[]) WITH ORDINALITY AS given (run_id, n)
        JOIN runs r ON r.run_id = given.run_id AND r.tenant = %s
    WHERE NOT EXISTS (
        SELECT 1 FROM queue_items i
        WHERE i.tenant = %s AND i.run_id = given.run_id AND i.queue_id = %s
    )
    GROUP BY given.run_id ORDER BY n LIMIT %s
) new
WHERE q.tenant = %s AND q.queue_id = %s RETURNING 1
"""

_HELD = """
SELECT run_id FROM queue_reviews
WHERE tenant = %s AND queue_id = %s AND reviewer = %s AND done_at IS NULL AND locked_until > %s
LIMIT 1
"""

_HELD_BY_OTHERS = """
SELECT count(*) FROM queue_reviews
WHERE tenant = %s AND queue_id = %s AND run_id = %s AND reviewer <> %s
    AND done_at IS NULL AND locked_until > %s
"""

_NEXT = """
SELECT i.run_id FROM queue_items i
WHERE i.tenant = %s AND i.queue_id = %s AND i.reviews < i.overlap
    AND NOT EXISTS (
        SELECT 1 FROM queue_reviews r
        WHERE r.tenant = i.tenant AND r.queue_id = i.queue_id AND r.run_id = i.run_id
            AND r.reviewer = %s AND r.done_at IS NOT NULL
    )
    AND i.overlap > i.reviews + (
        SELECT count(*) FROM queue_reviews r
        WHERE r.tenant = i.tenant AND r.queue_id = i.queue_id AND r.run_id = i.run_id
            AND r.reviewer <> %s AND r.done_at IS NULL AND r.locked_until > %s
    )
ORDER BY i.place LIMIT 1
"""

_HOLD = """
INSERT INTO queue_reviews (tenant, queue_id, run_id, reviewer, locked_until)
VALUES (%s, %s, %s, %s, %s)
ON CONFLICT (tenant, queue_id, run_id, reviewer) DO UPDATE SET locked_until = excluded.locked_until
"""

_ITEM = """
SELECT overlap, reviews FROM queue_items
WHERE tenant = %s AND run_id = %s AND queue_id = %s
"""

_REVIEW = """
SELECT locked_until, done_at FROM queue_reviews
WHERE tenant = %s AND queue_id = %s AND run_id = %s AND reviewer = %s
"""

_FINISH = """
UPDATE queue_reviews SET done_at = %s
WHERE tenant = %s AND queue_id = %s AND run_id = %s AND reviewer = %s
"""

_COUNT_REVIEW = """
UPDATE queue_items SET reviews = reviews + 1, verdict = coalesce(verdict, %s),
    disputed = disputed OR coalesce(verdict <> %s, false)
WHERE tenant = %s AND run_id = %s AND queue_id = %s
"""

_PROGRESS = """
SELECT count(*), count(*) FILTER (WHERE reviews >= overlap), coalesce(sum(reviews), 0)::bigint,
    count(*) FILTER (WHERE reviews > 1), count(*) FILTER (WHERE reviews > 1 AND NOT disputed)
FROM queue_items WHERE tenant = %s AND queue_id = %s
"""

_LOCKED = """
SELECT count(*) FROM queue_reviews
WHERE tenant = %s AND queue_id = %s AND done_at IS NULL AND locked_until > %s
"""

_DELETE_REVIEWS = """
DELETE FROM queue_reviews r USING queue_items i
WHERE i.tenant = %s AND i.run_id = %s
    AND r.tenant = i.tenant AND r.queue_id = i.queue_id AND r.run_id = i.run_id
"""

_DELETE_ITEMS = "DELETE FROM queue_items WHERE tenant = %s AND run_id = %s"

_END_OF_TIME = (2**63 - 1, "")


class PostgresQueues(Part):
    """`ReviewQueues` on PostgreSQL."""

    async def put_queue(self, tenant: str, row: QueueRow, run_ids: Sequence[str]) -> None:
        """Keep a queue with its first runs."""
        await self._db.run(tenant, partial(_put, row=row, run_ids=list(run_ids)))

    async def queue(self, tenant: str, queue_id: str) -> QueueRow | None:
        """The queue, or None."""
        rows = await self._db.read(tenant, _QUEUE, (tenant, queue_id))
        return queue_row(rows[0]) if rows else None

    async def queues(
        self, tenant: str, after: tuple[int, str] | None, limit: int
    ) -> list[QueueRow]:
        """Queues, newest first, by keyset."""
        values = (tenant, *(after or _END_OF_TIME), limit)
        return [queue_row(row) for row in await self._db.read(tenant, _NEWEST, values)]

    async def add_queue_items(
        self, tenant: str, queue_id: str, run_ids: Sequence[str], *, most: int
    ) -> int:
        """Put up to `most` runs that are new to a queue at its end; answers how many."""
        return await self._db.run(
            tenant, partial(_add_items, queue_id=queue_id, run_ids=list(run_ids), most=most)
        )

    async def take_queue_item(
        self, tenant: str, queue_id: str, reviewer: str, *, now: int, until: int
    ) -> str | None:
        """Hold the next run for a reviewer, or the one that they hold already."""
        return await self._db.run(
            tenant, partial(_take, queue_id=queue_id, reviewer=reviewer, now=now, until=until)
        )

    async def finish_review(self, tenant: str, review: Review) -> tuple[int, bool]:
        """Keep a review with its annotations."""
        return await self._db.run(tenant, partial(_finish, review=review))

    async def review_counts(self, tenant: str, queue_id: str, now: int) -> ReviewCounts:
        """How far the queue is."""
        [numbers] = await self._db.read(tenant, _PROGRESS, (tenant, queue_id))
        [(locked,)] = await self._db.read(tenant, _LOCKED, (tenant, queue_id, now))
        items, finished, reviews, compared, agreed = numbers
        return ReviewCounts(
            items=items,
            finished=finished,
            locked=locked,
            reviews=reviews,
            compared=compared,
            agreed=agreed,
        )


async def forget_reviews(transaction: Transaction, run_id: str) -> None:
    """Take a run out of every queue."""
    for sql in (_DELETE_REVIEWS, _DELETE_ITEMS):
        await transaction.queue(sql, (transaction.tenant, run_id))


async def _put(transaction: Transaction, row: QueueRow, run_ids: Sequence[str]) -> None:
    values = (transaction.tenant, row.queue_id, row.created_at, row.overlap, row.body)
    await transaction.queue(_INSERT, values)
    await _add_items(transaction, row.queue_id, run_ids, most=len(run_ids))


async def _add_items(
    transaction: Transaction, queue_id: str, run_ids: Sequence[str], most: int
) -> int:
    key = (transaction.tenant, queue_id)
    await transaction.queue(_HOLD_QUEUE, key)
    added = await transaction.rows(
        _ADD_ITEMS, (*key, run_ids, transaction.tenant, *key, most, *key)
    )
    return len(added)


async def _take(
    transaction: Transaction, queue_id: str, reviewer: str, now: int, until: int
) -> str | None:
    key = (transaction.tenant, queue_id)
    await transaction.queue(_HOLD_QUEUE, key)
    found = await transaction.row(_HELD, (*key, reviewer, now))
    if found is None:
        found = await transaction.row(_NEXT, (*key, reviewer, reviewer, now))
    if found is None:
        return None
    await transaction.queue(_HOLD, (*key, found[0], reviewer, until))
    return str(found[0])


async def _finish(transaction: Transaction, review: Review) -> tuple[int, bool]:
    await require_run(transaction, review.run_id)
    overlap, reviews = await _held(transaction, review)
    for row in review.annotations:
        await insert_annotation(transaction, row)
    tenant = transaction.tenant
    key = (tenant, review.queue_id, review.run_id, review.reviewer)
    await transaction.queue(_FINISH, (review.at, *key))
    said = (review.verdict, review.verdict)
    await transaction.queue(_COUNT_REVIEW, (*said, tenant, review.run_id, review.queue_id))
    await record_annotations(transaction, *review.annotations)
    return reviews + 1, reviews + 1 >= overlap


async def _held(transaction: Transaction, review: Review) -> tuple[int, int]:
    """The overlap and the reviews of a run that this reviewer may finish now."""
    tenant = transaction.tenant
    await transaction.queue(_HOLD_QUEUE, (tenant, review.queue_id))
    item = await transaction.row(_ITEM, (tenant, review.run_id, review.queue_id))
    key = (tenant, review.queue_id, review.run_id, review.reviewer)
    hold = await transaction.row(_REVIEW, key)
    others = 0
    if not is_held(review, item, hold):
        [(others,)] = await transaction.rows(_HELD_BY_OTHERS, (*key, review.at))
    [overlap, reviews] = item or (0, 0)
    require_room(overlap, reviews, others)
    return overlap, reviews
