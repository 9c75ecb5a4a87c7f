"""Delete a run with all that belongs to it, whoever decides that its time has come."""

from __future__ import annotations

from wopr.store.postgres.annotation_rows import forget_annotations
from wopr.store.postgres.database import Transaction
from wopr.store.postgres.judges import forget_judgments
from wopr.store.postgres.outbox import forget_deliveries
from wopr.store.postgres.queues import forget_reviews
from wopr.store.sql.rows import texts

# The run is held, and gone for whoever else comes to delete it.
_TAKE_AWAY = """
DELETE FROM runs WHERE run_id = %s AND tenant = %s RETURNING created_at, tags
"""
_DELETE_TAGS = """
DELETE FROM run_tags
WHERE tenant = %s AND tag = ANY (%s::text[]) AND created_at = %s AND run_id = %s
"""
_DELETE_OF_RUN = (
    "DELETE FROM events WHERE run_id = %s",
    "DELETE FROM artifacts WHERE run_id = %s",
)


async def delete_run(transaction: Transaction, run_id: str) -> bool:
    """Delete a run of the tenant; False when there is none, or another process was faster."""
    gone = await transaction.row(_TAKE_AWAY, (run_id, transaction.tenant))
    if gone is None:
        return False
    created_at, tags = gone
    if tags is not None:
        values = (transaction.tenant, list(texts(tags)), created_at, run_id)
        await transaction.queue(_DELETE_TAGS, values)
    for forget in (forget_annotations, forget_reviews, forget_judgments, forget_deliveries):
        await forget(transaction, run_id)
    for sql in _DELETE_OF_RUN:
        await transaction.queue(sql, (run_id,))
    return True
