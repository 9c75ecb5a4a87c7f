"""Annotations as rows: written, counted by run, hour and day, and deleted with their run."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from wopr.store.port.feedback import AnnotationRow
from wopr.store.sql.side_rows import (
    ANNOTATION_COLUMNS,
    annotation_row,
    annotation_values,
    counted_keys,
    counted_numbers,
)
from wopr.store.sql.signals import Statement, forget_signals, record_annotation
from wopr.store.sqlite.audit import append_entry

_INSERT = f"""
INSERT INTO annotations (tenant, {ANNOTATION_COLUMNS})
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""

_COUNTED = f"SELECT {ANNOTATION_COLUMNS} FROM annotations WHERE tenant = ? AND run_id = ?"

_DELETE = "DELETE FROM annotations WHERE tenant = ? AND run_id = ?"

# One statement each, so that every statement names its table.
_ADD = tuple(
    f"""
INSERT INTO feedback_{unit} (
    tenant, bucket, workflow_id, agent_id, node_id,
    ratings, rating_sum, corrections, labels, flags
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, bucket, workflow_id, agent_id, node_id) DO UPDATE SET
    ratings = ratings + excluded.ratings,
    rating_sum = rating_sum + excluded.rating_sum,
    corrections = corrections + excluded.corrections,
    labels = labels + excluded.labels,
    flags = flags + excluded.flags
"""
    for unit in ("hours", "days")
)

_DROP_EMPTY = tuple(
    f"""
DELETE FROM feedback_{unit}
WHERE tenant = ? AND bucket = ? AND workflow_id = ? AND agent_id = ? AND node_id = ?
    AND ratings = 0 AND corrections = 0 AND labels = 0 AND flags = 0
"""
    for unit in ("hours", "days")
)


def write_annotation(connection: sqlite3.Connection, tenant: str, row: AnnotationRow) -> None:
    """Write an annotation of a run that is there, count it and put it on record."""
    connection.execute(_INSERT, annotation_values(tenant, row))
    _count(connection, tenant, row, 1)
    execute_all(connection, record_annotation(tenant, row))
    if row.audit is not None:
        append_entry(connection, row.audit)


def forget_annotations(connection: sqlite3.Connection, tenant: str, run_id: str) -> None:
    """Delete a run's annotations and all that is counted by them."""
    for found in connection.execute(_COUNTED, (tenant, run_id)).fetchall():
        row = annotation_row(found)
        _count(connection, tenant, row, -1)
        for sql, key in zip(_DROP_EMPTY, counted_keys(tenant, row), strict=True):
            connection.execute(sql, key)
    connection.execute(_DELETE, (tenant, run_id))
    execute_all(connection, forget_signals(tenant, run_id))


def execute_all(connection: sqlite3.Connection, statements: Iterable[Statement]) -> None:
    """Run statements in order."""
    for sql, values in statements:
        connection.execute(sql, values)


def _count(connection: sqlite3.Connection, tenant: str, row: AnnotationRow, by: int) -> None:
    if row.source == "audit":
        return
    numbers = counted_numbers(row, by)
    for sql, key in zip(_ADD, counted_keys(tenant, row), strict=True):
        connection.execute(sql, (*key, *numbers))
