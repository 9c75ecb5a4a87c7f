"""Delete a run with all that belongs to it, whoever decides that its time has come."""

from __future__ import annotations

import sqlite3

from wopr.store.sql.rows import texts
from wopr.store.sqlite.annotation_rows import forget_annotations
from wopr.store.sqlite.judges import forget_judgments
from wopr.store.sqlite.outbox import forget_deliveries
from wopr.store.sqlite.queues import forget_reviews
from wopr.store.sqlite.usage import uncount_run

_TAGS = "SELECT created_at, tags FROM runs WHERE run_id = ? AND tenant = ?"

_DELETE_TAG = """
DELETE FROM run_tags WHERE tenant = ? AND tag = ? AND created_at = ? AND run_id = ?
"""
_DELETE_OF_RUN = (
    "DELETE FROM events WHERE run_id = ?",
    "DELETE FROM artifacts WHERE run_id = ?",
    "DELETE FROM runs WHERE run_id = ?",
)


def delete_run(connection: sqlite3.Connection, tenant: str, run_id: str) -> None:
    """Delete a tenant's run inside the caller's transaction; nothing when there is none."""
    row = connection.execute(_TAGS, (run_id, tenant)).fetchone()
    if row is None:
        return
    created_at, tags = row
    connection.executemany(_DELETE_TAG, [(tenant, tag, created_at, run_id) for tag in texts(tags)])
    for forget in (forget_annotations, forget_reviews, forget_judgments):
        forget(connection, tenant, run_id)
    forget_deliveries(connection, run_id)
    uncount_run(connection, tenant, run_id)
    for sql in _DELETE_OF_RUN:
        connection.execute(sql, (run_id,))
