"""Review queues: runs that wait for people's judgment, each held for one reviewer at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
from msgspec.structs import replace

from wopr.feedback.annotations import AnnotationStore, Annotator, Author, Prepared
from wopr.feedback.selection import newest_runs, run_filter
from wopr.protocol.annotations import AnnotationCreate
from wopr.protocol.documents import UNSET, Unset, encode
from wopr.protocol.errors import Forbidden, NotFound, Refused
from wopr.protocol.reviews import (
    CreateQueue,
    CreateReview,
    Queue,
    QueueItem,
    QueueProgress,
    ReviewTaken,
    RubricItem,
)
from wopr.protocol.times import to_iso
from wopr.security.redact import Redactors
from wopr.store.port.feedback import QueueRow, Review, ReviewCounts, ReviewQueues

MINUTE_MS = 60_000


class QueueStore(AnnotationStore, ReviewQueues, Protocol):
    """What queues need of the store."""


class Queues:
    """Opens queues, hands out their runs, and takes the reviews."""

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
        """Open a queue over chosen runs, or over those that a saved filter finds."""
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
        # Questions and labels are free text like any other.
        clean = self._redactors.of(tenant).json(msgspec.to_builtins(queue))
        queue = msgspec.convert(clean, Queue)
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
        where = run_filter(request.filter, self._redactors.of(tenant).text)
        return await newest_runs(self._store, tenant, where, request.most_items)

    async def page(
        self, tenant: str, after: tuple[int, str] | None, limit: int
    ) -> tuple[list[Queue], tuple[int, str] | None]:
        """Queues, newest first, and where the next page begins."""
        rows = await self._store.queues(tenant, after, limit + 1)
        shown = rows[:limit]
        more = len(rows) > limit and shown
        last = (shown[-1].created_at, shown[-1].queue_id) if more else None
        return [_queue(row) for row in shown], last

    async def read(self, tenant: str, queue_id: str) -> Queue:
        """A queue and how far it is."""
        return await self._with_progress(tenant, await self.find(tenant, queue_id))

    async def take(self, tenant: str, queue_id: str, reviewer: str) -> QueueItem | None:
        """Hold the next run for this reviewer; None when there is nothing left for them."""
        queue = await self.find(tenant, queue_id)
        _admit(queue, reviewer)
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
        return await self._store.take_queue_item(tenant, queue_id, reviewer, now=now, until=until)

    async def _refill(self, tenant: str, queue: Queue) -> bool:
        """Look again for runs of a saved filter: more may have ended since it was last asked."""
        if isinstance(queue.filter, Unset):
            return False
        counts = await self._store.review_counts(tenant, queue.queue_id, self._now())
        room = queue.most_items - counts.items
        if room <= 0:
            return False
        where = run_filter(queue.filter, self._redactors.of(tenant).text)
        found = await newest_runs(self._store, tenant, where, queue.most_items)
        added = await self._store.add_queue_items(tenant, queue.queue_id, found, most=room)
        return added > 0

    async def finish(
        self,
        tenant: str,
        queue: Queue,
        run_id: str,
        reviewer: str,
        request: CreateReview,
    ) -> ReviewTaken:
        """Take a review: its annotations are stored, and the run is done for this reviewer."""
        _admit(queue, reviewer)
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
            self._annotator.listener.stored(each.annotation)
        return ReviewTaken(
            queue_id=queue.queue_id,
            run_id=run_id,
            reviews=reviews,
            finished=finished,
            annotations=[each.annotation for each in prepared],
        )

    async def find(self, tenant: str, queue_id: str) -> Queue:
        """The queue as it was made, without its progress."""
        row = await self._store.queue(tenant, queue_id)
        if row is None:
            raise NotFound(f"there is no queue {queue_id[:128]!r}")
        return _queue(row)

    async def _with_progress(self, tenant: str, queue: Queue) -> Queue:
        counts = await self._store.review_counts(tenant, queue.queue_id, self._now())
        return replace(queue, progress=_progress(counts))


def _queue(row: QueueRow) -> Queue:
    return msgspec.json.decode(row.body, type=Queue)


def _admit(queue: Queue, reviewer: str) -> None:
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
    """Refuse answers that the rubric does not ask for, and missing ones that it must have."""
    asked = {item.kind: item for item in rubric}
    kinds = [each.signal.kind for each in given]
    for place, each in enumerate(given):
        field = f"annotations.{place}.signal"
        item = asked.get(each.signal.kind)
        if item is None or each.signal.kind in kinds[:place]:
            raise Refused(
                f"{field}: the rubric asks for no further {each.signal.kind}", field=field
            )
        if item.labels and each.signal.label not in item.labels:
            raise Refused(f"{field}.label must be one of {', '.join(item.labels)}", field=field)
    missing = [kind for kind, item in asked.items() if item.required and kind not in kinds]
    if missing:
        raise Refused(f"the rubric also asks for {', '.join(missing)}", field="annotations")


def _verdict(prepared: Sequence[Prepared]) -> bytes:
    """What two reviewers must both say to agree: the text of a correction is each one's own."""
    signals = [each.annotation.signal for each in prepared]
    said = sorted((s.kind, s.stars or 0, s.label or "") for s in signals)
    return encode(said)
