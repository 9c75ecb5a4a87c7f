"""Annotations as rows: written, counted by run, hour and day, and deleted with their run."""

from __future__ import annotations

from collections.abc import Iterable

from wopr.store.port.feedback import AnnotationRow
from wopr.store.postgres.audit_chain import append_entries
from wopr.store.postgres.database import Transaction
from wopr.store.postgres.notify import notify_annotation
from wopr.store.sql.dialect import POSTGRES
from wopr.store.sql.side_rows import (
    ANNOTATION_COLUMNS,
    annotation_row,
    annotation_values,
    counted_keys,
    counted_numbers,
)
from wopr.store.sql.signals import Statement, forget_signals, record_annotation

_INSERT = f"""
INSERT INTO annotations (tenant, {ANNOTATION_COLUMNS})
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
"""

_COUNTED = f"SELECT {ANNOTATION_COLUMNS} FROM annotations WHERE tenant = %s AND run_id = %s"

_DELETE = "DELETE FROM annotations WHERE tenant = %s AND run_id = %s"

# One statement each, so that every statement names its table.
_ADD = tuple(
    f"""
INSERT INTO feedback_{unit} AS f (
    tenant, bucket, workflow_id, agent_id, node_id,
    ratings, rating_sum, corrections, labels, flags
) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (tenant, bucket, workflow_id, agent_id, node_id) DO UPDATE SET
    ratings = f.ratings + excluded.ratings,
    rating_sum = f.rating_sum + excluded.rating_sum,
    corrections = f.corrections + excluded.corrections,
    labels = f.labels + excluded.labels,
    flags = f.flags + excluded.flags
"""
    for unit in ("hours", "days")
)

_DROP_EMPTY = tuple(
    f"""
DELETE FROM feedback_{unit}
WHERE tenant = %s AND bucket = %s AND workflow_id = %s AND agent_id = %s AND node_id = %s
    AND ratings = 0 AND corrections = 0 AND labels = 0 AND flags = 0
"""
    for unit in ("hours", "days")
)


async def write_annotation(transaction: Transaction, row: AnnotationRow) -> None:
    """Write an annotation of a run that is held, and count it; `record_annotations` comes last."""
    await transaction.queue(_INSERT, annotation_values(transaction.tenant, row))
    await _count(transaction, row, 1)
    await queue_all(transaction, record_annotation(transaction.tenant, row))
    await notify_annotation(transaction, row.run_id, row.annotation_id)


async def record_annotations(transaction: Transaction, *rows: AnnotationRow) -> None:
    """Put annotations on record; this holds the audit log, so it comes last."""
    await append_entries(transaction, [row.audit for row in rows if row.audit is not None])


async def forget_annotations(transaction: Transaction, run_id: str) -> None:
    """Delete a run's annotations and all that is counted by them."""
    for found in await transaction.rows(_COUNTED, (transaction.tenant, run_id)):
        row = annotation_row(found)
        await _count(transaction, row, -1)
        for sql, key in zip(_DROP_EMPTY, counted_keys(transaction.tenant, row), strict=True):
            await transaction.queue(sql, key)
    await transaction.queue(_DELETE, (transaction.tenant, run_id))
    await queue_all(transaction, forget_signals(transaction.tenant, run_id))


async def queue_all(transaction: Transaction, statements: Iterable[Statement]) -> None:
    """Run statements in order."""
    for sql, values in statements:
        await transaction.queue(POSTGRES.spelled(sql), values)


async def _count(transaction: Transaction, row: AnnotationRow, by: int) -> None:
    if row.source == "audit":
        return
    numbers = counted_numbers(row, by)
    for sql, key in zip(_ADD, counted_keys(transaction.tenant, row), strict=True):
        await transaction.queue(sql, (*key, *numbers))
