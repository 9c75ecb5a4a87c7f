"""Appends: encodes batches for the database, and commits several calls in one transaction.

A call of the SQL function `append` has a JSON document and an array of bytes. Some batches also
write side rows: annotations, signals, missing node types and audit entries. Other statements of the
same transaction write them.

PostgreSQL commits only one transaction with a notification at a time, and waits for the disk
meanwhile. So the calls that are queued during a commit go into the next transaction together, with
one wait for each group. A call that changes several runs, or the audit log, has its own
transaction, because a group must not wait for another group.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

import msgspec
import psycopg

from wopr.protocol.documents import JsonObject
from wopr.protocol.errors import LeaseLost, SequenceTaken, WoprError
from wopr.store.port import Batch, RunRow
from wopr.store.postgres.database import Connection, Database, Transaction, execute
from wopr.store.postgres.faults import is_disconnection
from wopr.store.postgres.schema_constants import HORIZON_MS
from wopr.store.postgres.texts import escape_json
from wopr.store.tables.audit import append_entries
from wopr.store.tables.dialect import encode_names
from wopr.store.tables.feedback.annotations import (
    insert_annotation,
    record_agents,
    record_intervention,
)
from wopr.store.tables.runs.idempotency import in_flight_error
from wopr.store.tables.runs.runs import URGENT
from wopr.store.tables.runs.suspensions import suspension_place

APPEND = "SELECT signed_append(%s, %s::jsonb, %b::bytea[], %b::text[])"
APPEND_EACH = "SELECT signed_append_each(%b::text[], %b::text[], %b::bytea[], %b::bigint[])"

_RUN_TEXTS = (
    "run_id",
    "workflow_id",
    "workflow_version",
    "status",
    "created_at",
    "updated_at",
    "last_sequence",
    "ended_at",
    "wake_at",
    "parent_run_id",
    "parent_node_id",
    "source_run_id",
    "root_run_id",
    "wakes",
)
# The JSON escape sequences of the characters that `texts` escapes.
_ESCAPES = (rb"\u0000", rb"\u001a")
# Fields of `RunRow` that are sent as blobs, with their names in the SQL function. The function has
# older names for some members: `wish` is a pending command, `answer` an idempotency record,
# `notices` are deliveries, and `grants` means that the batch completes the command.
_RUN_BLOBS = {
    "pending_command": "wish",
    "sealed": "sealed",
    "snapshot": "snapshot",
    "fork": "fork",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendCall:
    """One call of `append`, encoded."""

    tenant: str
    document: str
    blobs: list[bytes]
    locks: list[str] | None
    run_id: str

    def values(self, token: str) -> tuple[str, str, list[bytes], list[str] | None]:
        """Return the parameters of `APPEND`; the token is signed for the connection."""
        return (token, self.document, self.blobs, self.locks)


class _Blobs(list[bytes]):
    """The bytes of a call, numbered from 1."""

    def put(self, body: bytes) -> int:
        self.append(body)
        return len(self)


def encode_call(tenant: str, batches: Sequence[Batch]) -> AppendCall:
    """Encode a call."""
    blobs = _Blobs()
    steps = [_step(batch, blobs) for batch in batches]
    # Several runs are locked in order. The row of a single run is locked when it is changed.
    runs = {batch.run.run_id for batch in batches}
    for batch in batches:
        runs.update(batch.wakes, (command.run_id for command in batch.commands))
        if batch.first == 0 and batch.run.root_run_id is not None:
            runs.add(batch.run.root_run_id)
    return AppendCall(
        tenant=tenant,
        document=_document(steps),
        blobs=blobs,
        locks=sorted(runs) if len(runs) > 1 else None,
        run_id=batches[0].run.run_id if batches else "",
    )


def is_written(result: str, run_id: str) -> bool:
    """Return whether the call was written; False if another process holds a claimed run.

    Raises the error that any other result of the SQL function means.
    """
    if result in ("ok", "held"):
        return result == "ok"
    if result == "answered":
        raise in_flight_error()
    if result == "lost":
        raise LeaseLost("another process holds the run", runId=run_id)
    if result == "exists":
        raise SequenceTaken("the run already exists", runId=run_id)
    raise SequenceTaken("the run's log has newer events", runId=run_id)


def _document(steps: list[JsonObject]) -> str:
    document = msgspec.json.encode(steps)
    if any(escape in document for escape in _ESCAPES):
        document = msgspec.json.encode([escape_json(step) for step in steps])
    return document.decode()


def _step(batch: Batch, blobs: _Blobs) -> JsonObject:
    step: JsonObject = {"run": _run(batch.run, blobs), "first": batch.first}
    if batch.first == 0 and batch.run.tags:
        step["tag_names"] = list(batch.run.tags)
    if batch.limits is not None and batch.limits.active_runs:
        step["most_active"] = batch.limits.active_runs
    if batch.limits is not None and batch.limits.descendants:
        step["most_descendants"] = batch.limits.descendants
    if batch.completes_command:
        step["grants"] = True
    if batch.claim is not None:
        step["claim"] = asdict(batch.claim)
    if batch.events:
        step["types"] = [event.type for event in batch.events]
        step["bodies"] = len(blobs) + 1
        blobs += [event.body for event in batch.events]
    if batch.projects:
        step["projects"] = True
    if batch.deliveries:
        step["notices"] = [
            {"webhook_id": each.webhook_id, "sequences": list(each.sequences)}
            for each in batch.deliveries
        ]
    _add_idempotency_record(step, batch, blobs)
    _add_artifacts(step, batch, blobs)
    _add_suspensions(step, batch, blobs)
    _add_wakes(step, batch, blobs)
    _add_job(step, batch)
    return step


def _run(run: RunRow, blobs: _Blobs) -> JsonObject:
    document: JsonObject = {
        name: value for name in _RUN_TEXTS if (value := getattr(run, name)) is not None
    }
    for field, name in _RUN_BLOBS.items():
        if (body := getattr(run, field)) is not None:
            document[name] = blobs.put(body)
    if (tags := encode_names(run.tags)) is not None:
        document["tags"] = blobs.put(tags)
    return document


def _add_idempotency_record(step: JsonObject, batch: Batch, blobs: _Blobs) -> None:
    record = batch.idempotency
    if record is not None:
        step["answer"] = {
            "key_hash": blobs.put(record.key_hash),
            "request_digest": blobs.put(record.request_digest),
            "status": record.status,
            "body": blobs.put(record.body),
            "created_at": record.created_at,
        }


def _add_artifacts(step: JsonObject, batch: Batch, blobs: _Blobs) -> None:
    if batch.artifacts:
        # Only the later artifact is sent, because a statement cannot write the same row twice.
        latest = {artifact.artifact_id: artifact for artifact in batch.artifacts}
        step["artifacts"] = [
            {
                "artifact_id": artifact.artifact_id,
                "node_id": artifact.node_id,
                "artifact_type": artifact.artifact_type,
                "created_at": artifact.created_at,
                "body": blobs.put(artifact.body),
            }
            for artifact in latest.values()
        ]


def _add_suspensions(step: JsonObject, batch: Batch, blobs: _Blobs) -> None:
    if batch.suspends:
        latest = {suspension.interrupt_id: suspension for suspension in batch.suspends}
        step["suspends"] = [
            {
                "interrupt_id": suspension.interrupt_id,
                "place": suspension_place(suspension),
                "node_id": suspension.node_id,
                "workflow_id": suspension.workflow_id,
                "kind": suspension.kind,
                "created_at": suspension.created_at,
                "expires_at": suspension.expires_at,
                "body": blobs.put(suspension.body),
            }
            for suspension in latest.values()
        ]
    if batch.resumes:
        step["resumes"] = list(batch.resumes)


def _add_wakes(step: JsonObject, batch: Batch, blobs: _Blobs) -> None:
    if batch.wakes:
        step["wakes"] = list(batch.wakes)
    if batch.commands:
        latest = {command.run_id: command for command in batch.commands}
        step["wishes"] = [
            {"run_id": command.run_id, "body": blobs.put(command.body)}
            for command in latest.values()
        ]


def _add_job(step: JsonObject, batch: Batch) -> None:
    """Add the priority of the batch's wake-ups, and the delay of the run's own job if it needs one.

    A run that no process holds and that is due later has no job: a process finds it by its row.
    """
    run = batch.run
    if batch.is_urgent:
        step["urgency"] = URGENT
    if run.wake_at is None or run.ended_at is not None:
        return
    # Both times are of the writer's clock.
    delay = run.wake_at - run.updated_at
    is_held = batch.claim is not None and batch.claim.keeps
    if delay <= 0 or (is_held and delay <= HORIZON_MS):
        step["delay"] = max(delay, 0)


# A run that another process holds does not wait for code: that process calls its nodes.
_SET_MISSING_TYPES = """
UPDATE runs SET missing_types = CASE WHEN holder IS NULL OR holder = %s THEN %s::bytea END
WHERE run_id = %s AND tenant = %s
"""


def _has_side_rows(batches: Sequence[Batch]) -> bool:
    """Return whether a batch has side rows."""
    return any(
        batch.audits
        or batch.annotations
        or batch.agents
        or batch.is_intervention
        or batch.missing_types is not None
        for batch in batches
    )


async def _write_side_rows(transaction: Transaction, batches: Sequence[Batch]) -> None:
    """Write side rows after `append` has locked the runs.

    The audit log is last, because a write locks it.
    """
    for batch in batches:
        await _set_missing_types(transaction, batch)
        for row in batch.annotations:
            await transaction.run(insert_annotation(transaction.tenant, row))
        run_id = batch.run.run_id
        await transaction.run(record_agents(transaction.tenant, run_id, batch.agents))
        if batch.is_intervention:
            await transaction.run(record_intervention(transaction.tenant, run_id))
    drafts = [
        draft
        for batch in batches
        for draft in (*batch.audits, *(row.audit for row in batch.annotations))
        if draft is not None
    ]
    await transaction.run(append_entries(drafts))


async def _set_missing_types(transaction: Transaction, batch: Batch) -> None:
    if batch.missing_types is not None:
        process = "" if batch.claim is None else batch.claim.process
        values = (process, encode_names(batch.missing_types), batch.run.run_id, transaction.tenant)
        await transaction.queue(_SET_MISSING_TYPES, values)


# The largest number of calls in a group, because the first waits for the last.
GROUP_LIMIT = 64
# The number of groups that are committed at the same time.
CONCURRENT_GROUPS = 2


class _Job(NamedTuple):
    call: AppendCall
    done: asyncio.Future[bool]


class AppendBatcher:
    """Appends in groups, on up to two connections at once."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._queue: deque[_Job] = deque()
        self._drain_count = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def append(self, tenant: str, batches: Sequence[Batch]) -> bool:
        """Write every batch or none, durably; False when another process holds a claimed run."""
        call = encode_call(tenant, batches)
        if len(batches) == 1 and call.locks is None and not _has_side_rows(batches):
            return await self._append_in_group(call)
        return await self._append_alone(call, batches)

    async def finish(self) -> None:
        """Wait until the last queued call is committed."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _append_in_group(self, call: AppendCall) -> asyncio.Future[bool]:
        """Queue a call. It is written even if its caller is cancelled."""
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._queue.append(_Job(call, done))
        # Not the number of tasks, because a task ends some time after it last reads the queue.
        if self._drain_count < CONCURRENT_GROUPS:
            self._drain_count += 1
            task = asyncio.create_task(self._drain())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return done

    async def _drain(self) -> None:
        try:
            while self._queue:
                count = min(len(self._queue), GROUP_LIMIT)
                await self._commit_or_fail([self._queue.popleft() for _ in range(count)])
        finally:
            self._drain_count -= 1

    async def _commit_or_fail(self, jobs: Sequence[_Job]) -> None:
        try:
            await self._commit(jobs)
        except Exception as error:
            if len(jobs) == 1 or _may_be_written(error):
                for job in jobs:
                    _fail(job, error)
                return
            # One call failed the group. Each is written alone, so that only the failing call fails.
            for job in jobs:
                await self._commit_or_fail([job])

    async def _commit(self, jobs: Sequence[_Job]) -> None:
        async with self._db.connection("append") as connection:
            if len(jobs) == 1:
                call = jobs[0].call
                values = call.values(self._db.token(connection, call.tenant))
                results = [await _fetch_result(await execute(connection, APPEND, values))]
            else:
                results = await self._write(connection, [job.call for job in jobs])
        for job, result in zip(jobs, results, strict=True):
            _resolve(job, result)

    async def _append_alone(self, call: AppendCall, batches: Sequence[Batch]) -> bool:
        async def write(transaction: Transaction) -> bool:
            cursor = await execute(transaction.connection, APPEND, call.values(transaction.token))
            written = is_written(await _fetch_result(cursor), call.run_id)
            await _write_side_rows(transaction, batches)
            return written

        return await self._db.run(call.tenant, write)

    async def _write(self, connection: Connection, calls: Sequence[AppendCall]) -> list[str]:
        """Send several calls in one statement, which is one transaction."""
        tokens: dict[str, str] = {}
        for call in calls:
            if call.tenant not in tokens:
                tokens[call.tenant] = self._db.token(connection, call.tenant)
        values = (
            [tokens[call.tenant] for call in calls],
            [call.document for call in calls],
            [blob for call in calls for blob in call.blobs],
            [len(call.blobs) for call in calls],
        )
        cursor = await execute(connection, APPEND_EACH, values)
        return [str(result) for (result,) in await cursor.fetchall()]


def _may_be_written(error: Exception) -> bool:
    """Return whether the calls may have been written. Then they must not be repeated."""
    return isinstance(error.__cause__, psycopg.Error) and is_disconnection(error.__cause__)


async def _fetch_result(cursor: psycopg.AsyncCursor[tuple[object, ...]]) -> str:
    [(result,)] = await cursor.fetchall()
    return str(result)


def _resolve(job: _Job, result: str) -> None:
    try:
        written = is_written(result, job.call.run_id)
    except WoprError as refused:
        _fail(job, refused)
    else:
        # A cancelled caller does not wait.
        if not job.done.done():
            job.done.set_result(written)


def _fail(job: _Job, error: Exception) -> None:
    if not job.done.done():
        job.done.set_exception(error)
