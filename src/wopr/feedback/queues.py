"""Review queues: runs that wait for a review, each locked for one reviewer at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
from msgspec.structs import replace

from wopr.feedback.annotations import AnnotationStore, Annotator, Author, PreparedAnnotation
from wopr.feedback.selection import newest_runs, run_filter
from wopr.protocol.documents import UNSET, Unset, encode, to_iso
from wopr.protocol.errors import Forbidden, NotFound, Refused
from wopr.protocol.resources.annotations import AnnotationCreate
from wopr.protocol.resources.reviews import (
    CreateQueue,
    CreateReview,
    Queue,
    QueueItem,
    QueueProgress,
    ReviewTaken,
    RubricItem,
)
from wopr.security.redact import Redactors
from wopr.store.port.feedback import QueueRow, Review, ReviewCounts, ReviewQueues

MINUTE_MS = 60_000


class QueueStore(AnnotationStore, ReviewQueues, Protocol):
    """The parts of the store that queues use."""


class Queues:
    """Creates queues, locks their runs for reviewers, and stores reviews."""

    def __init__(
        self,
        store: QueueStore,
        annotator: Annotator,
        *,
        redactors: Redactors,
        now: Callable[[], int],
        new_id: Callable[[], str],
    ) -> None:
        self._store = store
        self._annotator = annotator
        self._redactors = redactors
        self._now = now
        self._new_id = new_id

    async def create(self, tenant: str, creator: str, request: CreateQueue) -> Queue:
        """Create a queue with the given runs, or with the runs of a saved filter."""
        await self._annotator.check_quota(tenant)
        now = self._now()
        queue = Queue(
            queue_id=self._new_id(),
            name=request.name,
            rubric=request.rubric,
            overlap=request.overlap,
            lock_minutes=request.lock_minutes,
            most_items=request.most_items,
            created_at=to_iso(now),
            created_by=creator,
            reviewers=request.reviewers,
            filter=request.filter,
        )
        # Questions and labels are free text, which may contain secrets.
        redacted = self._redactors.of_tenant(tenant).json(msgspec.to_builtins(queue))
        queue = msgspec.convert(redacted, Queue)
        runs = await self._first_runs(tenant, request)
        row = QueueRow(
            queue_id=queue.queue_id, created_at=now, overlap=queue.overlap, body=encode(queue)
        )
        await self._store.put_queue(tenant, row, runs)
        return await self._with_progress(tenant, queue)

    async def _first_runs(self, tenant: str, request: CreateQueue) -> list[str]:
        if isinstance(request.filter, Unset):
            chosen = [] if isinstance(request.run_ids, Unset) else request.run_ids
            for run_id in chosen:
                if await self._store.run(tenant, run_id) is None:
                    raise NotFound(f"there is no run {run_id!r}", field="runIds")
            return chosen
        where = run_filter(request.filter, self._redactors.of_tenant(tenant).text)
        return await newest_runs(self._store, tenant, where, request.most_items)

    async def page(
        self, tenant: str, after: tuple[int, str] | None, limit: int
    ) -> tuple[list[Queue], tuple[int, str] | None]:
        """Return a page of queues, newest first, and the position of the next page."""
        rows = await self._store.queues(tenant, after, limit + 1)
        shown = rows[:limit]
        more = len(rows) > limit and shown
        last = (shown[-1].created_at, shown[-1].queue_id) if more else None
        return [_queue(row) for row in shown], last

    async def read(self, tenant: str, queue_id: str) -> Queue:
        """Return a queue with its progress."""
        return await self._with_progress(tenant, await self.find(tenant, queue_id))

    async def take(self, tenant: str, queue_id: str, reviewer: str) -> QueueItem | None:
        """Lock the next run for this reviewer; None if there are no more runs for the reviewer."""
        queue = await self.find(tenant, queue_id)
        _require_reviewer(queue, reviewer)
        now = self._now()
        until = now + queue.lock_minutes * MINUTE_MS
        run_id = await self._take(tenant, queue_id, reviewer, now, until)
        if run_id is None and await self._refill(tenant, queue):
            run_id = await self._take(tenant, queue_id, reviewer, now, until)
        if run_id is None:
            return None
        return QueueItem(
            queue_id=queue_id,
            run_id=run_id,
            locked_until=to_iso(until),
            rubric=queue.rubric,
            status_url=f"/v1/runs/{run_id}",
            events_url=f"/v1/runs/{run_id}/events",
        )

    async def _take(
        self, tenant: str, queue_id: str, reviewer: str, now: int, until: int
    ) -> str | None:
        return await self._store.lock_queue_item(tenant, queue_id, reviewer, now=now, until=until)

    async def _refill(self, tenant: str, queue: Queue) -> bool:
        """Add runs of a saved filter that have ended since; False if there are none."""
        if isinstance(queue.filter, Unset):
            return False
        counts = await self._store.review_counts(tenant, queue.queue_id, self._now())
        free_places = queue.most_items - counts.items
        if free_places <= 0:
            return False
        where = run_filter(queue.filter, self._redactors.of_tenant(tenant).text)
        found = await newest_runs(self._store, tenant, where, queue.most_items)
        added = await self._store.add_queue_items(tenant, queue.queue_id, found, most=free_places)
        return added > 0

    async def finish(
        self,
        tenant: str,
        queue: Queue,
        run_id: str,
        reviewer: str,
        request: CreateReview,
    ) -> ReviewTaken:
        """Store a review with its annotations, and release the reviewer's lock."""
        _require_reviewer(queue, reviewer)
        run = await self._store.run(tenant, run_id)
        if run is None:
            raise NotFound(f"there is no run {run_id!r}")
        _check_rubric(queue.rubric, request.annotations)
        await self._annotator.check_quota(tenant)
        prepared = [
            await self._annotator.prepare(tenant, run, Author(actor=reviewer), each)
            for each in request.annotations
        ]
        review = Review(
            queue_id=queue.queue_id,
            run_id=run_id,
            reviewer=reviewer,
            at=self._now(),
            verdict=_verdict(prepared),
            annotations=tuple(each.row for each in prepared),
        )
        reviews, finished = await self._store.finish_review(tenant, review)
        for each in prepared:
            self._annotator.publisher.publish(each.annotation)
        return ReviewTaken(
            queue_id=queue.queue_id,
            run_id=run_id,
            reviews=reviews,
            finished=finished,
            annotations=[each.annotation for each in prepared],
        )

    async def find(self, tenant: str, queue_id: str) -> Queue:
        """Return the queue without its progress. Raises `NotFound` if it does not exist."""
        row = await self._store.queue(tenant, queue_id)
        if row is None:
            raise NotFound(f"there is no queue {queue_id[:128]!r}")
        return _queue(row)

    async def _with_progress(self, tenant: str, queue: Queue) -> Queue:
        counts = await self._store.review_counts(tenant, queue.queue_id, self._now())
        return replace(queue, progress=_progress(counts))


def _queue(row: QueueRow) -> Queue:
    return msgspec.json.decode(row.body, type=Queue)


def _require_reviewer(queue: Queue, reviewer: str) -> None:
    if queue.reviewers and reviewer not in queue.reviewers:
        raise Forbidden("this queue is for other reviewers")


def _progress(counts: ReviewCounts) -> QueueProgress:
    compared = counts.compared
    return QueueProgress(
        items=counts.items,
        finished=counts.finished,
        locked=counts.locked,
        reviews=counts.reviews,
        compared=compared,
        agreed=counts.agreed,
        agreement=round(counts.agreed / compared, 4) if compared else UNSET,
    )


def _check_rubric(rubric: Sequence[RubricItem], given: Sequence[AnnotationCreate]) -> None:
    """Refuse annotations that the rubric does not have, and missing required ones."""
    by_kind = {item.kind: item for item in rubric}
    kinds = [each.signal.kind for each in given]
    for place, each in enumerate(given):
        field = f"annotations.{place}.signal"
        item = by_kind.get(each.signal.kind)
        if item is None or each.signal.kind in kinds[:place]:
            raise Refused(
                f"{field}: the rubric does not allow another {each.signal.kind}", field=field
            )
        if item.labels and each.signal.label not in item.labels:
            raise Refused(f"{field}.label must be one of {', '.join(item.labels)}", field=field)
    missing = [kind for kind, item in by_kind.items() if item.required and kind not in kinds]
    if missing:
        raise Refused(f"the rubric also requires {', '.join(missing)}", field="annotations")


def _verdict(prepared: Sequence[PreparedAnnotation]) -> bytes:
    """Return the part of a review on which reviewers can agree, without texts of corrections."""
    signals = [each.annotation.signal for each in prepared]
    return encode(sorted((s.kind, s.stars or 0, s.label or "") for s in signals))
