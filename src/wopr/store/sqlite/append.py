"""Appends: first the checks, then the writes. This is the hot path of the host."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from wopr.protocol.errors import DescendantLimit, SequenceTaken
from wopr.protocol.observed_ids import is_observed_run
from wopr.store.port import Artifact, Batch, RunRow, Suspension
from wopr.store.port.runs import CreationLimits, too_many_active_error
from wopr.store.port.webhooks import NewDeliveries
from wopr.store.sqlite.database import run_operation
from wopr.store.tables.audit import append_entries
from wopr.store.tables.dialect import encode_names
from wopr.store.tables.feedback.annotations import (
    audit_annotations,
    insert_annotation,
    record_agents,
    record_intervention,
)
from wopr.store.tables.fleet.projections import enqueue_projections
from wopr.store.tables.runs.idempotency import INSERT_RECORD, in_flight_error, record_values
from wopr.store.tables.runs.runs import counts_as_active
from wopr.store.tables.runs.suspensions import suspension_place

_HEAD = """
SELECT last_sequence, status, ended_at, wake_at, wish, has_suspended
FROM runs WHERE run_id = ? AND tenant = ?
"""

_INSERT_RUN = """
INSERT INTO runs (
    run_id, tenant, workflow_id, workflow_version, status, created_at, updated_at, last_sequence,
    ended_at, wake_at, parent_run_id, parent_node_id, tags, wish, sealed, snapshot, source_run_id,
    fork, root_run_id
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (run_id) DO NOTHING
"""

# SQLite rewrites an index when its column is in the SET list, even if the value is the same. Most
# batches change no indexed column and use this statement.
_UPDATE_UNINDEXED = """
UPDATE runs SET updated_at = ?, last_sequence = ?, sealed = ?, snapshot = ?
WHERE run_id = ? AND tenant = ?
"""

_UPDATE_RUN = """
UPDATE runs SET updated_at = ?, last_sequence = ?, sealed = ?, snapshot = ?,
    status = ?, ended_at = ?, wake_at = ?, wish = ?
WHERE run_id = ? AND tenant = ?
"""

_SET_MISSING_TYPES = "UPDATE runs SET missing_types = ? WHERE run_id = ? AND tenant = ?"

_INSERT_EVENT = "INSERT INTO events (run_id, sequence, type, body) VALUES (?, ?, ?, ?)"

_INSERT_TAG = """
INSERT OR IGNORE INTO run_tags (tenant, tag, created_at, run_id) VALUES (?, ?, ?, ?)
"""

_PUT_ARTIFACT = """
INSERT OR REPLACE INTO artifacts (run_id, artifact_id, node_id, artifact_type, created_at, body)
VALUES (?, ?, ?, ?, ?, ?)
"""

_RECORD_EXISTS = "SELECT 1 FROM answers WHERE tenant = ? AND key_hash = ?"

_WAKE = "UPDATE runs SET wake_at = ? WHERE run_id = ? AND tenant = ? AND ended_at IS NULL"

_SET_PENDING_COMMAND = """
UPDATE runs SET wish = ?, wake_at = ? WHERE run_id = ? AND tenant = ? AND ended_at IS NULL
"""

_ACTIVE_RUNS = "SELECT runs FROM active_runs WHERE tenant = ?"

_COUNT_ACTIVE = """
INSERT INTO active_runs (tenant, shard, runs) VALUES (?, 0, ?)
ON CONFLICT (tenant, shard) DO UPDATE SET runs = runs + excluded.runs
"""

_COUNT_BYTES = """
INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes) VALUES (?, 0, ?, ?)
ON CONFLICT (tenant, shard) DO UPDATE SET event_bytes = event_bytes + excluded.event_bytes,
    artifact_bytes = artifact_bytes + excluded.artifact_bytes
"""

_ARTIFACT_SIZE = "SELECT length(body) FROM artifacts WHERE run_id = ? AND artifact_id = ?"

_DESCENDANTS = "SELECT descendants FROM runs WHERE run_id = ? AND tenant = ?"

_COUNT_DESCENDANT = """
UPDATE runs SET descendants = descendants + 1 WHERE run_id = ? AND tenant = ?
"""

_INSERT_SUSPENSION = """
INSERT OR REPLACE INTO suspensions (
    run_id, interrupt_id, tenant, place, node_id, workflow_id, kind, created_at, expires_at, body
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""

_MARK_SUSPENDED = "UPDATE runs SET has_suspended = 1 WHERE run_id = ? AND tenant = ?"

_DELETE_SUSPENSION = "DELETE FROM suspensions WHERE run_id = ? AND interrupt_id = ?"

_DELETE_SUSPENSIONS = "DELETE FROM suspensions WHERE run_id = ?"

_CAN_RECEIVE = "SELECT 1 FROM webhooks WHERE webhook_id = ? AND tenant = ? AND state <> 'failed'"
_OPEN_QUEUE = """
INSERT OR IGNORE INTO delivery_lanes (run_id, webhook_id, tenant, due_at, attempts)
VALUES (?, ?, ?, ?, 0)
"""
_QUEUE_DELIVERY = "INSERT OR IGNORE INTO deliveries (run_id, webhook_id, sequence) VALUES (?, ?, ?)"


class _Head(NamedTuple):
    """The columns of a run's row that a batch may change."""

    last_sequence: int
    status: str
    ended_at: int | None
    wake_at: int | None
    pending_command: bytes | None
    has_suspended: int = 0


def append_batches(connection: sqlite3.Connection, tenant: str, batches: Sequence[Batch]) -> None:
    """Write all batches inside the caller's transaction. After an error it must be rolled back."""
    heads = _check_sequences(connection, tenant, batches)
    for batch in batches:
        if batch.idempotency is not None:
            _check_no_record(connection, tenant, batch.idempotency.key_hash)
    for place, batch in enumerate(batches):
        if batch.limits is not None:
            _check_limits(connection, tenant, batch, batch.limits, batches[:place])
    for batch in batches:
        _write_batch(connection, tenant, batch, heads)
    # After all rows, so that no row of this call overwrites these wake-ups.
    for batch in batches:
        if batch.wakes or batch.commands:
            _wake_others(connection, tenant, batch)


def _check_sequences(
    connection: sqlite3.Connection, tenant: str, batches: Sequence[Batch]
) -> dict[str, _Head]:
    """Return the current row of each run.

    Raises `SequenceTaken` if a batch does not continue its log.
    """
    heads: dict[str, _Head] = {}
    last: dict[str, int] = {}
    for batch in batches:
        run_id = batch.run.run_id
        if run_id not in last:
            last[run_id] = _stored_last(connection, tenant, batch, heads)
        if batch.first != last[run_id] + 1:
            raise SequenceTaken("the run's log has newer events", runId=run_id)
        last[run_id] = batch.run.last_sequence
    return heads


def _stored_last(
    connection: sqlite3.Connection, tenant: str, batch: Batch, heads: dict[str, _Head]
) -> int:
    if batch.first == 0:
        return -1  # the insert fails if the run exists
    run_id = batch.run.run_id
    row = connection.execute(_HEAD, (run_id, tenant)).fetchone()
    if row is None:
        return -1
    heads[run_id] = _Head._make(row)
    return heads[run_id].last_sequence


def _check_no_record(connection: sqlite3.Connection, tenant: str, key_hash: bytes) -> None:
    """Raise `Conflict` when a response is already stored under this key."""
    if connection.execute(_RECORD_EXISTS, (tenant, key_hash)).fetchone() is not None:
        raise in_flight_error()


def _check_limits(
    connection: sqlite3.Connection,
    tenant: str,
    batch: Batch,
    limits: CreationLimits,
    before: Sequence[Batch],
) -> None:
    """Refuse a new run beyond its limits; earlier new runs of the same call count too."""
    if limits.active_runs and counts_as_active(batch):
        row = connection.execute(_ACTIVE_RUNS, (tenant,)).fetchone()
        current = (0 if row is None else row[0]) + sum(map(counts_as_active, before))
        if current >= limits.active_runs:
            raise too_many_active_error(limits.active_runs, current)
    root = batch.run.root_run_id
    if limits.descendants and root is not None:
        row = connection.execute(_DESCENDANTS, (root, tenant)).fetchone()
        created = sum(each.first == 0 and each.run.root_run_id == root for each in before)
        current = (0 if row is None else row[0]) + created
        if current >= limits.descendants:
            raise DescendantLimit(root, limit=limits.descendants, current=current)


def _write_batch(
    connection: sqlite3.Connection, tenant: str, batch: Batch, heads: dict[str, _Head]
) -> None:
    run = batch.run
    head = heads.get(run.run_id)
    if head is None:
        after = _insert_run(connection, tenant, run)
        change = int(counts_as_active(batch))
    else:
        after = _update_run(connection, tenant, batch, head)
        change = -int(head.ended_at is None and run.ended_at is not None)
    if change and not is_observed_run(run.run_id):
        connection.execute(_COUNT_ACTIVE, (tenant, change))
    if batch.events:
        connection.executemany(
            _INSERT_EVENT, [(run.run_id, e.sequence, e.type, e.body) for e in batch.events]
        )
        connection.execute(_COUNT_BYTES, (tenant, sum([len(e.body) for e in batch.events]), 0))
    if batch.artifacts:
        added = _added_bytes(connection, run.run_id, batch.artifacts)
        connection.execute(_COUNT_BYTES, (tenant, 0, added))
        connection.executemany(
            _PUT_ARTIFACT,
            [
                (run.run_id, a.artifact_id, a.node_id, a.artifact_type, a.created_at, a.body)
                for a in batch.artifacts
            ],
        )
    record = batch.idempotency
    if record is not None:
        connection.execute(INSERT_RECORD, record_values(tenant, record))
    if batch.suspends:
        _suspend(connection, tenant, batch.suspends)
        after = after._replace(has_suspended=1)
    if after.has_suspended:
        # After `_suspend`, so that an interrupt that one batch opens and ends is not pending.
        _resume(connection, run.run_id, None if run.ended_at is not None else batch.resumes)
    _write_side_rows(connection, tenant, batch)
    heads[run.run_id] = after


def _added_bytes(connection: sqlite3.Connection, run_id: str, artifacts: Iterable[Artifact]) -> int:
    """Return the bytes that artifacts will add; a replacement adds the difference."""
    added = 0
    for artifact in artifacts:
        row = connection.execute(_ARTIFACT_SIZE, (run_id, artifact.artifact_id)).fetchone()
        added += len(artifact.body) - (0 if row is None else row[0])
    return added


def _write_side_rows(connection: sqlite3.Connection, tenant: str, batch: Batch) -> None:
    """Write the other rows of a batch, such as deliveries, audit entries and annotations."""
    run = batch.run
    if batch.deliveries:
        _queue_deliveries(connection, tenant, run.run_id, batch.deliveries, run.updated_at)
    if batch.audits:
        run_operation(connection, append_entries(batch.audits))
    for row in batch.annotations:
        run_operation(connection, insert_annotation(tenant, row))
    if batch.annotations:
        run_operation(connection, audit_annotations(batch.annotations))
    if batch.agents:
        run_operation(connection, record_agents(tenant, run.run_id, batch.agents))
    if batch.is_intervention:
        run_operation(connection, record_intervention(tenant, run.run_id))
    if batch.projects:
        run_operation(connection, enqueue_projections(tenant, (run.run_id,)))
    if batch.missing_types is not None:
        missing = encode_names(batch.missing_types)
        connection.execute(_SET_MISSING_TYPES, (missing, run.run_id, tenant))


def _insert_run(connection: sqlite3.Connection, tenant: str, run: RunRow) -> _Head:
    ended = run.ended_at is not None
    head = _Head(
        run.last_sequence,
        run.status,
        run.ended_at,
        None if ended else run.wake_at,
        None if ended else run.pending_command,
    )
    inserted = connection.execute(
        _INSERT_RUN,
        (
            run.run_id,
            tenant,
            run.workflow_id,
            run.workflow_version,
            run.status,
            run.created_at,
            run.updated_at,
            run.last_sequence,
            run.ended_at,
            head.wake_at,
            run.parent_run_id,
            run.parent_node_id,
            encode_names(run.tags),
            head.pending_command,
            None if ended else run.sealed,
            run.snapshot,
            run.source_run_id,
            run.fork,
            run.root_run_id,
        ),
    )
    if not inserted.rowcount:
        # The writer rolls back earlier batches of this call.
        raise SequenceTaken("the run already exists", runId=run.run_id)
    if run.root_run_id is not None:
        connection.execute(_COUNT_DESCENDANT, (run.root_run_id, tenant))
    if run.tags:
        connection.executemany(
            _INSERT_TAG, [(tenant, tag, run.created_at, run.run_id) for tag in run.tags]
        )
    return head


def _update_run(connection: sqlite3.Connection, tenant: str, batch: Batch, head: _Head) -> _Head:
    run = batch.run
    ended = run.ended_at is not None
    # A command that was stored since this run was loaded must stay.
    is_known = head.pending_command == run.pending_command
    after = _Head(
        run.last_sequence,
        run.status,
        run.ended_at,
        None if ended else run.wake_at if is_known else _next_wake(head, run.wake_at),
        None if ended or (batch.completes_command and is_known) else head.pending_command,
        head.has_suspended,
    )
    unindexed = (run.updated_at, run.last_sequence, None if ended else run.sealed, run.snapshot)
    if after[1:] == head[1:]:
        connection.execute(_UPDATE_UNINDEXED, (*unindexed, run.run_id, tenant))
    else:
        connection.execute(_UPDATE_RUN, (*unindexed, *after[1:5], run.run_id, tenant))
    return after


def _next_wake(head: _Head, wake_at: int | None) -> int | None:
    """Return the earlier of the row's wake-up and that of a pending command."""
    if head.pending_command is None or head.wake_at is None:
        return wake_at
    return head.wake_at if wake_at is None else min(head.wake_at, wake_at)


def _suspend(
    connection: sqlite3.Connection, tenant: str, suspensions: Sequence[Suspension]
) -> None:
    """Write the interrupts that a batch opens.

    All belong to one run, which the caller has checked.
    """
    connection.execute(_MARK_SUSPENDED, (suspensions[0].run_id, tenant))
    connection.executemany(
        _INSERT_SUSPENSION,
        [
            (
                s.run_id,
                s.interrupt_id,
                tenant,
                suspension_place(s),
                s.node_id,
                s.workflow_id,
                s.kind,
                s.created_at,
                s.expires_at,
                s.body,
            )
            for s in suspensions
        ],
    )


def _resume(
    connection: sqlite3.Connection, run_id: str, interrupt_ids: Sequence[str] | None
) -> None:
    """Delete interrupts of a run that the caller has checked: these interrupts, or all if None."""
    if interrupt_ids is None:
        connection.execute(_DELETE_SUSPENSIONS, (run_id,))
    elif interrupt_ids:
        connection.executemany(_DELETE_SUSPENSION, [(run_id, each) for each in interrupt_ids])


def _queue_deliveries(
    connection: sqlite3.Connection,
    tenant: str,
    run_id: str,
    deliveries: Sequence[NewDeliveries],
    now: int,
) -> None:
    """Queue events of a run for subscriptions."""
    for each in deliveries:
        # The subscription may have been deleted since the batch was created.
        if connection.execute(_CAN_RECEIVE, (each.webhook_id, tenant)).fetchone() is None:
            continue
        connection.execute(_OPEN_QUEUE, (run_id, each.webhook_id, tenant, now))
        connection.executemany(
            _QUEUE_DELIVERY,
            [(run_id, each.webhook_id, sequence) for sequence in each.sequences],
        )


def _wake_others(connection: sqlite3.Connection, tenant: str, batch: Batch) -> None:
    now = batch.run.updated_at
    if batch.wakes:
        connection.executemany(_WAKE, [(now, run_id, tenant) for run_id in batch.wakes])
    if batch.commands:
        connection.executemany(
            _SET_PENDING_COMMAND,
            [(command.body, now, command.run_id, tenant) for command in batch.commands],
        )
