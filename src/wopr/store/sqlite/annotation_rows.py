"""Annotations as rows: written, counted by the hour and the day, and taken away again."""

from __future__ import annotations

import sqlite3

from wopr.store.port.feedback import DAY_MS, HOUR_MS, AnnotationRow
from wopr.store.sqlite.audit import append_entry
from wopr.store.sqlite.reader import Row

_INSERT = """
INSERT INTO annotations (
    tenant, run_id, created_at, annotation_id, workflow_id, agent_id, node_id, kind, rating, body
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""

COLUMNS = "annotation_id, run_id, workflow_id, agent_id, node_id, kind, rating, created_at, body"

_COUNTED = f"SELECT {COLUMNS} FROM annotations WHERE tenant = ? AND run_id = ?"

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
    connection.execute(
        _INSERT,
        (
            tenant,
            row.run_id,
            row.created_at,
            row.annotation_id,
            row.workflow_id,
            row.agent_id,
            row.node_id,
            row.kind,
            row.rating,
            row.body,
        ),
    )
    _count(connection, tenant, row, 1)
    if row.audit is not None:
        append_entry(connection, row.audit)


def forget_annotations(connection: sqlite3.Connection, tenant: str, run_id: str) -> None:
    """Delete a run's annotations and count them no longer."""
    for found in connection.execute(_COUNTED, (tenant, run_id)).fetchall():
        row = annotation_row(found)
        _count(connection, tenant, row, -1)
        for sql, key in zip(_DROP_EMPTY, _keys(tenant, row), strict=True):
            connection.execute(sql, key)
    connection.execute(_DELETE, (tenant, run_id))


def _count(connection: sqlite3.Connection, tenant: str, row: AnnotationRow, by: int) -> None:
    numbers = (
        by * (row.kind == "rating"),
        by * (row.rating or 0),
        by * (row.kind == "correction"),
        by * (row.kind == "label"),
        by * (row.kind == "flag"),
    )
    for sql, key in zip(_ADD, _keys(tenant, row), strict=True):
        connection.execute(sql, (*key, *numbers))


def _keys(tenant: str, row: AnnotationRow) -> list[tuple[str, int, str, str, str]]:
    """The keys of the hour and of the day that an annotation is counted in."""
    return [
        (
            tenant,
            row.created_at - row.created_at % unit,
            row.workflow_id,
            row.agent_id,
            row.node_id,
        )
        for unit in (HOUR_MS, DAY_MS)
    ]


def annotation_row(row: Row) -> AnnotationRow:
    """Name the columns of `COLUMNS`."""
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
    )
