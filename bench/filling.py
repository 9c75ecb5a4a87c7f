"""Write runs and annotations directly to a store, as data for reads."""

from __future__ import annotations

import asyncio

import msgspec

from bench.server import TENANT
from wopr.protocol.documents import encode, to_iso
from wopr.protocol.events import RunEvent
from wopr.protocol.runs import RunSnapshot
from wopr.store.port import Batch, RunRow, Store, StoredEvent
from wopr.store.port.feedback import AnnotationRow

BATCH_SIZE = 500
WORKFLOW = "bench-noop"


def run_id(number: int) -> str:
    """Return the id of a run that was written to the store."""
    return f"00000000-0000-7000-8000-{number:012d}"


async def put_runs(store: Store, count: int, newest_at: int) -> None:
    """Write `count` ended runs, one per millisecond."""
    for first in range(0, count, BATCH_SIZE):
        numbers = range(first, min(first + BATCH_SIZE, count))
        await store.append(TENANT, [_run(number, newest_at - count + number) for number in numbers])


def _run(number: int, at: int) -> Batch:
    snapshot = RunSnapshot(
        run_id=run_id(number),
        workflow_id=WORKFLOW,
        status="completed",
        started_at=to_iso(at),
        completed_at=to_iso(at),
        inputs={"question": "What is the answer to a question of ordinary length?"},
        outputs={"answer": "An answer of ordinary length, with a few more words than asked."},
    )
    row = RunRow(
        run_id=run_id(number),
        workflow_id=WORKFLOW,
        workflow_version="1.0",
        status="completed",
        created_at=at,
        updated_at=at,
        ended_at=at,
        last_sequence=0,
        snapshot=encode(snapshot),
    )
    return Batch(run=row, first=0, events=(_run_started(row.run_id, at),))


def _run_started(run: str, at: int) -> StoredEvent:
    """Return the first event of a run. The host decodes it when an annotation queues the run for the fleet."""
    event = RunEvent(
        event_id=f"{run}-0",
        run_id=run,
        type="run.started",
        payload={"workflowId": WORKFLOW},
        timestamp=to_iso(at),
        sequence=0,
    )
    return StoredEvent(sequence=0, type=event.type, body=encode(event))


async def put_annotations(store: Store, count: int, *, runs: int, since: int, until: int) -> None:
    """Write `count` ratings of these runs, distributed evenly over the time."""
    for first in range(0, count, BATCH_SIZE):
        numbers = range(first, min(first + BATCH_SIZE, count))
        rows = (_rating_row(n, n % runs, since + (until - since) * n // count) for n in numbers)
        await asyncio.gather(*(store.put_annotation(TENANT, row) for row in rows))


def _rating_row(number: int, run: int, at: int) -> AnnotationRow:
    stars = number % 5 + 1
    document = {
        "annotationId": f"a-{number:09d}",
        "target": {"runId": run_id(run)},
        "signal": {"kind": "rating", "rating": stars},
        "actor": {"principalRef": "bench"},
        "createdAt": to_iso(at),
    }
    return AnnotationRow(
        annotation_id=f"a-{number:09d}",
        run_id=run_id(run),
        workflow_id=WORKFLOW,
        kind="rating",
        rating=stars,
        created_at=at,
        body=msgspec.json.encode(document),
    )
