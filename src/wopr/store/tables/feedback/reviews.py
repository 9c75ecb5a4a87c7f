"""Review queues. On PostgreSQL a lock of the queue decides which reviewer gets which run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from wopr.protocol.errors import Conflict, NotFound
from wopr.store.port.feedback import QueueRow, Review, ReviewCounts
from wopr.store.tables.database import Table
from wopr.store.tables.dialect import AFTER_ALL_ROWS, Row, Variants, bulk_insert, variants
from wopr.store.tables.feedback.annotations import (
    add_annotations,
    audit_annotations,
    lock_run,
    missing_run_error,
)
from wopr.store.tables.statements import Operation, execute, execute_bulk, query, query_each

_COLUMNS = "queue_id, created_at, overlap, body"
_INSERT = f"INSERT INTO queues (tenant, {_COLUMNS}) VALUES (?, ?, ?, ?, ?)"
_QUEUE = f"SELECT {_COLUMNS} FROM queues WHERE tenant = ? AND queue_id = ?"
_LOCK_QUEUE = Variants(
    sqlite="",
    postgres="SELECT 1 FROM queues WHERE tenant = ? AND queue_id = ? FOR NO KEY UPDATE",
)
_NEWEST = variants(
    lambda dialect: (
        f"""
SELECT {_COLUMNS} FROM queues{dialect.indexed_by("queues_newest")}
WHERE tenant = ? AND (created_at, queue_id) < (?, ?)
ORDER BY created_at DESC, queue_id DESC LIMIT ?
"""
    )
)

_NEXT_PLACE = """
SELECT coalesce(max(place) + 1, 0) FROM queue_items WHERE tenant = ? AND queue_id = ?
"""
_IS_NEW = """
SELECT 1 FROM runs r WHERE r.run_id = ? AND r.tenant = ? AND NOT EXISTS (
    SELECT 1 FROM queue_items i WHERE i.tenant = ? AND i.run_id = ? AND i.queue_id = ?
)
"""
_INSERT_ITEMS = bulk_insert(
    "queue_items (tenant, queue_id, place, run_id, overlap)", "text text bigint text bigint"
)

_LOCKED_BY_REVIEWER = variants(
    lambda dialect: (
        f"""
SELECT run_id FROM queue_reviews{dialect.indexed_by("queue_reviews_held")}
WHERE tenant = ? AND queue_id = ? AND reviewer = ? AND done_at IS NULL AND locked_until > ?
LIMIT 1
"""
    )
)
_LOCKED_BY_OTHERS = """
SELECT count(*) FROM queue_reviews
WHERE tenant = ? AND queue_id = ? AND run_id = ? AND reviewer <> ?
    AND done_at IS NULL AND locked_until > ?
"""
_NEXT = variants(
    lambda dialect: (
        f"""
SELECT i.run_id FROM queue_items i{dialect.indexed_by("queue_items_open")}
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
    )
)
_LOCK_ITEM = """
INSERT INTO queue_reviews (tenant, queue_id, run_id, reviewer, locked_until)
VALUES (?, ?, ?, ?, ?)
ON CONFLICT (tenant, queue_id, run_id, reviewer) DO UPDATE SET locked_until = excluded.locked_until
"""

_ITEM = """
SELECT overlap, reviews FROM queue_items WHERE tenant = ? AND run_id = ? AND queue_id = ?
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
    disputed = disputed OR coalesce(verdict <> ?, false)
WHERE tenant = ? AND run_id = ? AND queue_id = ?
"""
_PROGRESS = """
SELECT count(*), count(*) FILTER (WHERE reviews >= overlap),
    CAST(coalesce(sum(reviews), 0) AS bigint), count(*) FILTER (WHERE reviews > 1),
    count(*) FILTER (WHERE reviews > 1 AND NOT disputed)
FROM queue_items WHERE tenant = ? AND queue_id = ?
"""
_LOCKED = variants(
    lambda dialect: (
        f"""
SELECT count(*) FROM queue_reviews{dialect.indexed_by("queue_reviews_held")}
WHERE tenant = ? AND queue_id = ? AND done_at IS NULL AND locked_until > ?
"""
    )
)

_QUEUES_OF_RUN = variants(
    lambda dialect: (
        f"SELECT queue_id FROM queue_items{dialect.indexed_by('queue_items_by_run')} "
        "WHERE tenant = ? AND run_id = ?"
    )
)
_DELETE_REVIEWS = "DELETE FROM queue_reviews WHERE tenant = ? AND queue_id = ? AND run_id = ?"
_DELETE_ITEMS = "DELETE FROM queue_items WHERE tenant = ? AND run_id = ?"


class ReviewQueueTable(Table):
    """`ReviewQueues` in SQL."""

    async def put_queue(self, tenant: str, row: QueueRow, run_ids: Sequence[str]) -> None:
        """Store a queue with its first runs."""
        await self._sql.transact(tenant, partial(_put, tenant, row, tuple(run_ids)))

    async def queue(self, tenant: str, queue_id: str) -> QueueRow | None:
        """Return the queue, or None."""
        rows = await self._sql.read_few(tenant, _QUEUE, (tenant, queue_id))
        return _row(rows[0]) if rows else None

    async def queues(
        self, tenant: str, after: tuple[int, str] | None, limit: int
    ) -> list[QueueRow]:
        """List queues, newest first."""
        values = (tenant, *(after or AFTER_ALL_ROWS), limit)
        return [_row(row) for row in await self._sql.read_many(tenant, _NEWEST, values)]

    async def add_queue_items(
        self, tenant: str, queue_id: str, run_ids: Sequence[str], *, most: int
    ) -> int:
        """Append up to `most` runs that are new to a queue, and return their number."""
        operation = partial(_add_items, tenant, queue_id, tuple(run_ids), most=most)
        return await self._sql.transact(tenant, operation)

    async def lock_queue_item(
        self, tenant: str, queue_id: str, reviewer: str, *, now: int, until: int
    ) -> str | None:
        """Lock the next run for a reviewer, or renew the lock that the reviewer has."""
        operation = partial(_lock_next, tenant, queue_id, reviewer, now=now, until=until)
        return await self._sql.transact(tenant, operation)

    async def finish_review(self, tenant: str, review: Review) -> tuple[int, bool]:
        """Store a review with its annotations."""
        return await self._sql.transact(tenant, partial(_finish, tenant, review))

    async def review_counts(self, tenant: str, queue_id: str, now: int) -> ReviewCounts:
        """Return the progress of a queue."""
        [numbers] = await self._sql.read_many(tenant, _PROGRESS, (tenant, queue_id))
        [(locked,)] = await self._sql.read_many(tenant, _LOCKED, (tenant, queue_id, now))
        items, finished, reviews, compared, agreed = numbers
        return ReviewCounts(
            items=items,
            finished=finished,
            locked=locked,
            reviews=reviews,
            compared=compared,
            agreed=agreed,
        )


def delete_reviews(tenant: str, run_id: str) -> Operation[None]:
    """Remove a run from every queue."""
    for (queue_id,) in (yield query(_QUEUES_OF_RUN, (tenant, run_id))):
        yield execute(_DELETE_REVIEWS, (tenant, queue_id, run_id))
    yield execute(_DELETE_ITEMS, (tenant, run_id))


def _put(tenant: str, row: QueueRow, run_ids: Sequence[str]) -> Operation[None]:
    yield execute(_INSERT, (tenant, row.queue_id, row.created_at, row.overlap, row.body))
    yield from _add_items(tenant, row.queue_id, run_ids, most=len(run_ids))


def _add_items(tenant: str, queue_id: str, run_ids: Sequence[str], most: int) -> Operation[int]:
    yield execute(_LOCK_QUEUE, (tenant, queue_id))
    queue = yield query(_QUEUE, (tenant, queue_id))
    if not queue:
        return 0
    names = list(dict.fromkeys(run_ids))
    keys = [(run_id, tenant, tenant, run_id, queue_id) for run_id in names]
    found = yield query_each(_IS_NEW, keys)
    numbers: list[int] = [row[0] for row in found]
    new = [names[number] for number in numbers[:most]]
    [(first,)] = yield query(_NEXT_PLACE, (tenant, queue_id))
    overlap = _row(queue[0]).overlap
    items = [(tenant, queue_id, place, run_id, overlap) for place, run_id in enumerate(new, first)]
    yield execute_bulk(_INSERT_ITEMS, items)
    return len(new)


def _lock_next(
    tenant: str, queue_id: str, reviewer: str, now: int, until: int
) -> Operation[str | None]:
    key = (tenant, queue_id)
    yield execute(_LOCK_QUEUE, key)
    found = yield query(_LOCKED_BY_REVIEWER, (*key, reviewer, now))
    if not found:
        found = yield query(_NEXT, (*key, reviewer, reviewer, now))
    if not found:
        return None
    run_id = str(found[0][0])
    yield execute(_LOCK_ITEM, (*key, run_id, reviewer, until))
    return run_id


def _finish(tenant: str, review: Review) -> Operation[tuple[int, bool]]:
    if not (yield from lock_run(tenant, review.run_id)):
        raise missing_run_error(review.run_id)
    overlap, reviews = yield from _require_lock(tenant, review)
    yield from add_annotations(tenant, review.annotations)
    key = (tenant, review.queue_id, review.run_id, review.reviewer)
    yield execute(_FINISH, (review.at, *key))
    values = (review.verdict, review.verdict, tenant, review.run_id, review.queue_id)
    yield execute(_COUNT_REVIEW, values)
    yield from audit_annotations(review.annotations)
    return reviews + 1, reviews + 1 >= overlap


def _require_lock(tenant: str, review: Review) -> Operation[tuple[int, int]]:
    """Return the overlap and the number of reviews of a run that this reviewer may finish.

    An expired lock is enough if the other reviewers have not taken its place.
    """
    yield execute(_LOCK_QUEUE, (tenant, review.queue_id))
    item = yield query(_ITEM, (tenant, review.run_id, review.queue_id))
    key = (tenant, review.queue_id, review.run_id, review.reviewer)
    lock = yield query(_REVIEW, key)
    if not item:
        raise NotFound(f"there is no run {review.run_id!r} in this queue")
    if not lock:
        raise _conflict_error("lock the run with items:next before you finish its review")
    locked_until, done_at = lock[0]
    if done_at is not None:
        raise _conflict_error("you have already reviewed this run")
    others = 0
    if locked_until <= review.at:
        [(others,)] = yield query(_LOCKED_BY_OTHERS, (*key, review.at))
    overlap, reviews = item[0]
    if reviews + others >= overlap:
        raise _conflict_error("the lock has expired, and other reviewers have locked this run")
    return overlap, reviews


def _conflict_error(message: str) -> Conflict:
    return Conflict(message, code="review_conflict")


def _row(row: Row) -> QueueRow:
    return QueueRow(queue_id=row[0], created_at=row[1], overlap=row[2], body=row[3])
