"""Deletion of a run with all its rows in other tables, and the record that it existed."""

from __future__ import annotations

from wopr.store.tables.dialect import Variants, decode_names
from wopr.store.tables.feedback.annotations import delete_annotations
from wopr.store.tables.feedback.judges import delete_judgments
from wopr.store.tables.feedback.reviews import delete_reviews
from wopr.store.tables.statements import Operation, execute, execute_many, query
from wopr.store.tables.webhooks import delete_deliveries

_RECORD_EXPIRED = """
INSERT INTO expired_runs (tenant, run_id, ended_at) VALUES (?, ?, ?)
ON CONFLICT (tenant, run_id) DO UPDATE SET ended_at = excluded.ended_at
"""
# The first statement, because on PostgreSQL it locks the run. A second process then finds no run.
_DELETE_RUN = "DELETE FROM runs WHERE run_id = ? AND tenant = ? RETURNING created_at, tags"
_DELETE_TAG = """
DELETE FROM run_tags WHERE tenant = ? AND tag = ? AND created_at = ? AND run_id = ?
"""
# On PostgreSQL triggers count the stored bytes.
_SUBTRACT_BYTES = Variants(
    sqlite="""
UPDATE stored_bytes SET
    event_bytes = event_bytes
        - (SELECT coalesce(sum(length(body)), 0) FROM events WHERE run_id = ?),
    artifact_bytes = artifact_bytes
        - (SELECT coalesce(sum(length(body)), 0) FROM artifacts WHERE run_id = ?)
WHERE tenant = ? AND shard = 0
""",
    postgres="",
)
_DELETE_EVENTS = "DELETE FROM events WHERE run_id = ?"
_DELETE_ARTIFACTS = "DELETE FROM artifacts WHERE run_id = ?"


def expire_run(tenant: str, run_id: str, ended_at: int) -> Operation[None]:
    """Delete a run that retention has selected, and record that it existed."""
    yield execute(_RECORD_EXPIRED, (tenant, run_id, ended_at))
    yield from delete_run(tenant, run_id)


def delete_run(tenant: str, run_id: str) -> Operation[bool]:
    """Delete a run of a tenant; False if it does not exist."""
    deleted = yield query(_DELETE_RUN, (run_id, tenant))
    if not deleted:
        return False
    [(created_at, tags)] = deleted
    yield execute_many(
        _DELETE_TAG, [(tenant, tag, created_at, run_id) for tag in decode_names(tags)]
    )
    yield from delete_annotations(tenant, run_id)
    yield from delete_reviews(tenant, run_id)
    yield from delete_judgments(tenant, run_id)
    yield from delete_deliveries(run_id)
    yield execute(_SUBTRACT_BYTES, (run_id, run_id, tenant))
    yield execute(_DELETE_EVENTS, (run_id,))
    yield execute(_DELETE_ARTIFACTS, (run_id,))
    return True
