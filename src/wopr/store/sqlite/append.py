"""Write batches: the fences first, then the rows; the hot path of the whole host."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

from wopr.protocol.errors import DescendantLimit, SequenceTaken
from wopr.store.port import Batch, RunRow
from wopr.store.port.runs import OBSERVED_PREFIX, CreationLimits, too_many_active
from wopr.store.sql.batches import counts_as_active, in_flight
from wopr.store.sql.rows import answer_values, encoded
from wopr.store.sql.signals import record_agents, record_intervention
from wopr.store.sqlite.annotation_rows import execute_all, write_annotation
from wopr.store.sqlite.audit import append_entry
from wopr.store.sqlite.outbox import queue_notices
from wopr.store.sqlite.projections import put_projections
from wopr.store.sqlite.suspensions import resume, suspend
from wopr.store.sqlite.usage import count_bytes, growth

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

# SQLite rewrites an index when its column is in the SET list, changed or not. Most steps change
# none of the indexed columns, and those take the short form.
_MOVE_RUN = """
UPDATE runs SET updated_at = ?, last_sequence = ?, sealed = ?, snapshot = ?
WHERE run_id = ? AND tenant = ?
"""

_CHANGE_RUN = """
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

_ANSWER_EXISTS = "SELECT 1 FROM answers WHERE tenant = ? AND key_hash = ?"

INSERT_ANSWER = """
INSERT OR IGNORE INTO answers (tenant, key_hash, request_digest, status, body, created_at)
VALUES (?, ?, ?, ?, ?, ?)
"""

_WAKE = "UPDATE runs SET wake_at = ? WHERE run_id = ? AND tenant = ? AND ended_at IS NULL"

_WISH = """
UPDATE runs SET wish = ?, wake_at = ? WHERE run_id = ? AND tenant = ? AND ended_at IS NULL
"""


ACTIVE_RUNS = "SELECT runs FROM active_runs WHERE tenant = ?"

_COUNT_ACTIVE = """
INSERT INTO active_runs (tenant, shard, runs) VALUES (?, 0, ?)
ON CONFLICT (tenant, shard) DO UPDATE SET runs = runs + excluded.runs
"""

_DESCENDANTS = "SELECT descendants FROM runs WHERE run_id = ? AND tenant = ?"

_COUNT_DESCENDANT = """
UPDATE runs SET descendants = descendants + 1 WHERE run_id = ? AND tenant = ?
"""


class _Head(NamedTuple):
    """What a run's row says before a batch."""

    last_sequence: int
    status: str
    ended_at: int | None
    wake_at: int | None
    wish: bytes | None
    has_suspended: int = 0


def append_batches(connection: sqlite3.Connection, tenant: str, batches: Sequence[Batch]) -> None:
    """Write all batches inside the caller's transaction, or raise: then none must be committed."""
    heads = _pass_fences(connection, tenant, batches)
    for batch in batches:
        if batch.remember is not None:
            check_unanswered(connection, tenant, batch.remember.key_hash)
    for place, batch in enumerate(batches):
        if batch.limits is not None:
            _check_limits(connection, tenant, batch, batch.limits, batches[:place])
    for batch in batches:
        _write_batch(connection, tenant, batch, heads)
    # Last, so that no row of this call overwrites a wake-up of this call.
    for batch in batches:
        if batch.wakes or batch.wishes:
            _wake_others(connection, tenant, batch)


def _pass_fences(
    connection: sqlite3.Connection, tenant: str, batches: Sequence[Batch]
) -> dict[str, _Head]:
    """Find every run's head, and raise `SequenceTaken` unless its batches follow on it."""
    heads: dict[str, _Head] = {}
    last: dict[str, int] = {}
    for batch in batches:
        run_id = batch.run.run_id
        if run_id not in last:
            last[run_id] = _stored_last(connection, tenant, batch, heads)
        if batch.first != last[run_id] + 1:
            raise SequenceTaken("the run's log has moved on", runId=run_id)
        last[run_id] = batch.run.last_sequence
    return heads


def _stored_last(
    connection: sqlite3.Connection, tenant: str, batch: Batch, heads: dict[str, _Head]
) -> int:
    if batch.first == 0:
        return -1  # the insert is the fence
    run_id = batch.run.run_id
    row = connection.execute(_HEAD, (run_id, tenant)).fetchone()
    if row is None:
        return -1
    heads[run_id] = _Head._make(row)
    return heads[run_id].last_sequence


def check_unanswered(connection: sqlite3.Connection, tenant: str, key_hash: bytes) -> None:
    """Raise `Conflict` when an answer is remembered under this key already."""
    if connection.execute(_ANSWER_EXISTS, (tenant, key_hash)).fetchone() is not None:
        raise in_flight()


def _check_limits(
    connection: sqlite3.Connection,
    tenant: str,
    batch: Batch,
    limits: CreationLimits,
    before: Sequence[Batch],
) -> None:
    """Refuse a new run beyond its limits, with the new runs of the same call that come before it."""
    if limits.active_runs and counts_as_active(batch):
        row = connection.execute(ACTIVE_RUNS, (tenant,)).fetchone()
        current = (0 if row is None else row[0]) + sum(map(counts_as_active, before))
        if current >= limits.active_runs:
            raise too_many_active(limits.active_runs, current)
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
    if change and not run.run_id.startswith(OBSERVED_PREFIX):
        connection.execute(_COUNT_ACTIVE, (tenant, change))
    if batch.events:
        connection.executemany(
            _INSERT_EVENT, [(run.run_id, e.sequence, e.type, e.body) for e in batch.events]
        )
        count_bytes(connection, tenant, sum([len(e.body) for e in batch.events]))
    if batch.artifacts:
        count_bytes(connection, tenant, 0, growth(connection, run.run_id, batch.artifacts))
        connection.executemany(
            _PUT_ARTIFACT,
            [
                (run.run_id, a.artifact_id, a.node_id, a.artifact_type, a.created_at, a.body)
                for a in batch.artifacts
            ],
        )
    answer = batch.remember
    if answer is not None:
        connection.execute(INSERT_ANSWER, answer_values(tenant, answer))
    if batch.suspends:
        suspend(connection, tenant, batch.suspends)
        after = after._replace(has_suspended=1)
    if after.has_suspended:
        # Second, so that what one batch opens and ends is not pending.
        resume(connection, run.run_id, None if run.ended_at is not None else batch.resumes)
    _write_beside(connection, tenant, batch)
    heads[run.run_id] = after


def _write_beside(connection: sqlite3.Connection, tenant: str, batch: Batch) -> None:
    """Write what is on no log: deliveries, audit entries, annotations, signals, projections."""
    run = batch.run
    if batch.notices:
        queue_notices(connection, tenant, run.run_id, batch.notices, run.updated_at)
    for draft in batch.audits:
        append_entry(connection, draft)
    for row in batch.annotations:
        write_annotation(connection, tenant, row)
    if batch.agents:
        execute_all(connection, record_agents(tenant, run.run_id, batch.agents))
    if batch.is_intervention:
        execute_all(connection, record_intervention(tenant, run.run_id))
    if batch.projects:
        put_projections(connection, tenant, (run.run_id,))
    if batch.missing_types is not None:
        missing = encoded(batch.missing_types)
        connection.execute(_SET_MISSING_TYPES, (missing, run.run_id, tenant))


def _insert_run(connection: sqlite3.Connection, tenant: str, run: RunRow) -> _Head:
    ended = run.ended_at is not None
    head = _Head(
        run.last_sequence,
        run.status,
        run.ended_at,
        None if ended else run.wake_at,
        None if ended else run.wish,
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
            encoded(run.tags),
            head.wish,
            None if ended else run.sealed,
            run.snapshot,
            run.source_run_id,
            run.fork,
            run.root_run_id,
        ),
    )
    if not inserted.rowcount:
        # Should earlier batches of this call be written already, the writer undoes them.
        raise SequenceTaken("the run exists already", runId=run.run_id)
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
    # Whoever left a wish since this run was loaded must find it kept.
    is_known = head.wish == run.wish
    after = _Head(
        run.last_sequence,
        run.status,
        run.ended_at,
        None if ended else run.wake_at if is_known else _next_wake(head, run.wake_at),
        None if ended or (batch.grants and is_known) else head.wish,
        head.has_suspended,
    )
    moved = (run.updated_at, run.last_sequence, None if ended else run.sealed, run.snapshot)
    if after[1:] == head[1:]:
        connection.execute(_MOVE_RUN, (*moved, run.run_id, tenant))
    else:
        connection.execute(_CHANGE_RUN, (*moved, *after[1:5], run.run_id, tenant))
    return after


def _next_wake(head: _Head, wake_at: int | None) -> int | None:
    """The row's own wake-up, or an earlier one that a wish still waits for."""
    if head.wish is None or head.wake_at is None:
        return wake_at
    return head.wake_at if wake_at is None else min(head.wake_at, wake_at)


def _wake_others(connection: sqlite3.Connection, tenant: str, batch: Batch) -> None:
    now = batch.run.updated_at
    if batch.wakes:
        connection.executemany(_WAKE, [(now, run_id, tenant) for run_id in batch.wakes])
    if batch.wishes:
        connection.executemany(
            _WISH, [(wish.body, now, wish.run_id, tenant) for wish in batch.wishes]
        )
