"""Annotations of runs, with their counters and the signals that they give a run.

The number of runs by signal is kept by triggers on the tables `runs` and `run_agents`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial

from wopr.protocol.errors import NotFound
from wopr.store.port import IdempotencyRecord
from wopr.store.port.feedback import (
    DAY_MS,
    HOUR_MS,
    INTERVENED,
    AnnotationRow,
    FeedbackCount,
    FeedbackFilter,
    GroupBy,
    SignalCount,
)
from wopr.store.tables.audit import append_entries
from wopr.store.tables.database import Table
from wopr.store.tables.dialect import BEFORE_ALL_ROWS, Parameter, Row, Variants, variants
from wopr.store.tables.feedback.counts import (
    feedback_counts,
    feedback_of_runs,
    feedback_statement,
    signal_counts,
    signal_statement,
)
from wopr.store.tables.fleet.projections import enqueue_projections
from wopr.store.tables.runs.idempotency import insert_first_record
from wopr.store.tables.statements import Operation, execute, execute_many, query

# The size of an index entry is limited, so a longer label is indexed by its digest.
LONGEST_LABEL = 200

_COLUMNS = (
    "annotation_id, run_id, workflow_id, agent_id, node_id, kind, rating, created_at, body, source"
)
_INSERT = f"INSERT INTO annotations (tenant, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_OF_RUN = f"""
SELECT {_COLUMNS} FROM annotations
WHERE tenant = ? AND run_id = ? AND (created_at, annotation_id) > (?, ?)
ORDER BY created_at, annotation_id LIMIT ?
"""
_ALL_OF_RUN = f"SELECT {_COLUMNS} FROM annotations WHERE tenant = ? AND run_id = ?"
_DELETE = "DELETE FROM annotations WHERE tenant = ? AND run_id = ?"
# The lock keeps retention from deleting the run while the transaction adds to it.
_LOCK_RUN = variants(
    lambda dialect: (
        f"SELECT 1 FROM runs WHERE run_id = ? AND tenant = ?{dialect.lock('FOR KEY SHARE')}"
    )
)
_NOTIFY = Variants(
    sqlite="",
    postgres="SELECT pg_notify('wopr', jsonb_build_array(?::text, ?::text, ?::text)::text)",
)

# Hours and days are separate tables, so each needs its own statement.
_UNITS = (("hours", HOUR_MS), ("days", DAY_MS))
_ADD_COUNTS = tuple(
    f"""
INSERT INTO feedback_{unit} AS f (
    tenant, bucket, workflow_id, agent_id, node_id,
    ratings, rating_sum, corrections, labels, flags
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, bucket, workflow_id, agent_id, node_id) DO UPDATE SET
    ratings = f.ratings + excluded.ratings,
    rating_sum = f.rating_sum + excluded.rating_sum,
    corrections = f.corrections + excluded.corrections,
    labels = f.labels + excluded.labels,
    flags = f.flags + excluded.flags
"""
    for unit, _ in _UNITS
)
_DELETE_EMPTY_COUNTS = tuple(
    f"""
DELETE FROM feedback_{unit}
WHERE tenant = ? AND bucket = ? AND workflow_id = ? AND agent_id = ? AND node_id = ?
    AND ratings = 0 AND corrections = 0 AND labels = 0 AND flags = 0
"""
    for unit, _ in _UNITS
)
_ADD_RUN_COUNTS = """
INSERT INTO run_feedback AS f (
    tenant, run_id, ratings, rating_sum, corrections, labels, flags
) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, run_id) DO UPDATE SET
    ratings = f.ratings + excluded.ratings,
    rating_sum = f.rating_sum + excluded.rating_sum,
    corrections = f.corrections + excluded.corrections,
    labels = f.labels + excluded.labels,
    flags = f.flags + excluded.flags
"""

_SET_RUN_SIGNALS = """
UPDATE runs SET signals = signals | ?
WHERE run_id = ? AND tenant = ? AND signals & ? <> ?
"""
# An agent that joins a run after a person intervened gets the signal `intervened` too.
_ADD_AGENT = f"""
INSERT INTO run_agents (tenant, run_id, agent_id, workflow_id, created_at, signals)
SELECT tenant, run_id, ?, workflow_id, created_at, signals & {INTERVENED}
FROM runs WHERE run_id = ? AND tenant = ?
ON CONFLICT (tenant, run_id, agent_id) DO NOTHING
"""
_SET_AGENT_SIGNALS = """
UPDATE run_agents SET signals = signals | ?
WHERE tenant = ? AND run_id = ? AND agent_id = ? AND signals & ? <> ?
"""
_SET_SIGNALS_OF_ALL_AGENTS = """
UPDATE run_agents SET signals = signals | ?
WHERE tenant = ? AND run_id = ? AND signals & ? <> ?
"""
_ADD_LABEL = """
INSERT INTO run_labels (tenant, label, created_at, run_id)
SELECT tenant, ?, created_at, run_id FROM runs WHERE run_id = ? AND tenant = ?
ON CONFLICT (tenant, label, created_at, run_id) DO NOTHING
"""
_DELETE_SIGNALS = (
    "DELETE FROM run_agents WHERE tenant = ? AND run_id = ?",
    "DELETE FROM run_labels WHERE tenant = ? AND run_id = ?",
    "DELETE FROM run_feedback WHERE tenant = ? AND run_id = ?",
)

# Most runs have fewer annotations. SQLite reads these on the event loop, and the rest of a longer
# page in a thread.
_SMALL_PAGE = 100


class AnnotationTable(Table):
    """`Annotations` in SQL."""

    async def put_annotation(
        self, tenant: str, row: AnnotationRow, idempotency: IdempotencyRecord | None = None
    ) -> None:
        """Store an annotation with its counts, audit entry and response, all or nothing."""
        await self._sql.transact(tenant, partial(_put, tenant, row, idempotency))

    async def annotations(
        self, tenant: str, run_id: str, after: tuple[int, str] | None, limit: int
    ) -> list[AnnotationRow]:
        """List the annotations of a run, oldest first."""
        few = (tenant, run_id, *(after or BEFORE_ALL_ROWS), min(limit, _SMALL_PAGE))
        page = [_row(row) for row in await self._sql.read_few(tenant, _OF_RUN, few)]
        if len(page) == _SMALL_PAGE < limit:
            last = page[-1]
            many = (tenant, run_id, last.created_at, last.annotation_id, limit - _SMALL_PAGE)
            page += [_row(row) for row in await self._sql.read_many(tenant, _OF_RUN, many)]
        return page

    async def feedback_counts(
        self, tenant: str, where: FeedbackFilter, by: GroupBy
    ) -> list[FeedbackCount]:
        """Return the counts of a period, by group."""
        rows = await self._sql.read_many(tenant, *feedback_statement(tenant, where, by))
        return feedback_counts(rows, by)

    async def signal_counts(
        self, tenant: str, where: FeedbackFilter, by: GroupBy
    ) -> list[SignalCount]:
        """Count the runs of a period by their signals, by group."""
        rows = await self._sql.read_many(tenant, *signal_statement(tenant, where, by))
        return signal_counts(rows, by)

    async def run_feedback(self, tenant: str, run_ids: Sequence[str]) -> dict[str, FeedbackCount]:
        """Return the counts of each of these runs."""
        if not run_ids:
            return {}
        return await self._sql.read_snapshot(tenant, feedback_of_runs(tenant, run_ids))


def lock_run(tenant: str, run_id: str) -> Operation[bool]:
    """Lock a run until the transaction ends; False if the tenant has no such run."""
    return bool((yield query(_LOCK_RUN, (run_id, tenant))))


def missing_run_error(run_id: str) -> NotFound:
    """Return the error for a run that does not exist, or that retention has deleted."""
    return NotFound(f"there is no run {run_id!r}")


def add_annotations(tenant: str, rows: Sequence[AnnotationRow]) -> Operation[None]:
    """Store annotations of one run that is locked, and queue the run for projection."""
    for row in rows:
        yield from insert_annotation(tenant, row)
    yield from enqueue_projections(tenant, {row.run_id for row in rows})


def audit_annotations(rows: Sequence[AnnotationRow]) -> Operation[None]:
    """Append the audit entries of annotations. Call it last, because it locks the audit log."""
    yield from append_entries([row.audit for row in rows if row.audit is not None])


def insert_annotation(tenant: str, row: AnnotationRow) -> Operation[None]:
    """Store an annotation of a locked run, count it, and set the signals of its run."""
    yield execute(_INSERT, _values(tenant, row))
    yield from _count(tenant, row, 1)
    if row.source != "audit":
        yield from _record_signals(tenant, row)
    yield execute(_NOTIFY, (tenant, row.run_id, row.annotation_id))


def record_agents(tenant: str, run_id: str, agents: Sequence[str]) -> Operation[None]:
    """Record that these agents took part in a run."""
    yield execute_many(_ADD_AGENT, [(agent, run_id, tenant) for agent in agents])


def record_intervention(tenant: str, run_id: str) -> Operation[None]:
    """Record that a person resolved an interrupt of a run."""
    bits = INTERVENED
    yield execute(_SET_RUN_SIGNALS, (bits, run_id, tenant, bits, bits))
    yield execute(_SET_SIGNALS_OF_ALL_AGENTS, (bits, tenant, run_id, bits, bits))


def delete_annotations(tenant: str, run_id: str) -> Operation[None]:
    """Delete a run's annotations with their counts and signals."""
    for found in (yield query(_ALL_OF_RUN, (tenant, run_id))):
        row = _row(found)
        yield from _count(tenant, row, -1)
        for sql, key in zip(_DELETE_EMPTY_COUNTS, _counter_keys(tenant, row), strict=True):
            yield execute(sql, key)
    yield execute(_DELETE, (tenant, run_id))
    for sql in _DELETE_SIGNALS:
        yield execute(sql, (tenant, run_id))


def label_key(label: str) -> str:
    """Return the text under which a label is indexed."""
    if len(label) <= LONGEST_LABEL:
        return label
    return f"sha256:{hashlib.sha256(label.encode('utf-8', 'surrogatepass')).hexdigest()}"


def _put(tenant: str, row: AnnotationRow, idempotency: IdempotencyRecord | None) -> Operation[None]:
    if not (yield from lock_run(tenant, row.run_id)):
        raise missing_run_error(row.run_id)
    yield from insert_first_record(tenant, idempotency)
    yield from add_annotations(tenant, [row])
    yield from audit_annotations([row])


def _record_signals(tenant: str, row: AnnotationRow) -> Operation[None]:
    bits = row.signals
    yield execute(_ADD_RUN_COUNTS, (tenant, row.run_id, *row.numbers))
    if bits:
        yield execute(_SET_RUN_SIGNALS, (bits, row.run_id, tenant, bits, bits))
    if row.agent_id:
        yield from record_agents(tenant, row.run_id, [row.agent_id])
    if row.agent_id and bits:
        values = (bits, tenant, row.run_id, row.agent_id, bits, bits)
        yield execute(_SET_AGENT_SIGNALS, values)
    if row.label is not None:
        yield execute(_ADD_LABEL, (label_key(row.label), row.run_id, tenant))


def _count(tenant: str, row: AnnotationRow, factor: int) -> Operation[None]:
    if row.source == "audit":
        return
    numbers = [factor * number for number in row.numbers]
    for sql, key in zip(_ADD_COUNTS, _counter_keys(tenant, row), strict=True):
        yield execute(sql, (*key, *numbers))


def _counter_keys(tenant: str, row: AnnotationRow) -> list[tuple[str, int, str, str, str]]:
    """Return the keys of the hour and of the day that an annotation is counted in."""
    at = row.created_at
    return [
        (tenant, at - at % length, row.workflow_id, row.agent_id, row.node_id)
        for _, length in _UNITS
    ]


def _row(row: Row) -> AnnotationRow:
    return AnnotationRow(
        annotation_id=row[0],
        run_id=row[1],
        workflow_id=row[2],
        agent_id=row[3],
        node_id=row[4],
        kind=row[5],
        rating=row[6],
        created_at=row[7],
        body=row[8],
        source=row[9],
    )


def _values(tenant: str, row: AnnotationRow) -> tuple[Parameter, ...]:
    return (
        tenant,
        row.annotation_id,
        row.run_id,
        row.workflow_id,
        row.agent_id,
        row.node_id,
        row.kind,
        row.rating,
        row.created_at,
        row.body,
        row.source,
    )
