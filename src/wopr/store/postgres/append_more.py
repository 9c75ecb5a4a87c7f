"""What a few batches write beside their run and log, in the same transaction.

These are annotations, the signals of the run, the node types that it waits for, and audit entries.
"""

from __future__ import annotations

from collections.abc import Sequence

from wopr.store.port import Batch
from wopr.store.postgres.annotation_rows import queue_all, write_annotation
from wopr.store.postgres.audit_chain import append_entries
from wopr.store.postgres.database import Transaction
from wopr.store.sql.rows import encoded
from wopr.store.sql.signals import record_agents, record_intervention

# A run that another process holds waits for no code: that process calls its nodes.
_SET_MISSING_TYPES = """
UPDATE runs SET missing_types = CASE WHEN holder IS NULL OR holder = %s THEN %s::bytea END
WHERE run_id = %s AND tenant = %s
"""


def has_more(batches: Sequence[Batch]) -> bool:
    """Whether there is any of it."""
    return any(
        batch.audits
        or batch.annotations
        or batch.agents
        or batch.is_intervention
        or batch.missing_types is not None
        for batch in batches
    )


async def write_more(transaction: Transaction, batches: Sequence[Batch]) -> None:
    """Write it, once the runs are held; the audit log comes last, because it is held by one."""
    for batch in batches:
        await _set_missing_types(transaction, batch)
        for row in batch.annotations:
            await write_annotation(transaction, row)
        run_id = batch.run.run_id
        await queue_all(transaction, record_agents(transaction.tenant, run_id, batch.agents))
        if batch.is_intervention:
            await queue_all(transaction, record_intervention(transaction.tenant, run_id))
    drafts = [
        draft
        for batch in batches
        for draft in (*batch.audits, *(row.audit for row in batch.annotations))
        if draft is not None
    ]
    await append_entries(transaction, drafts)


async def _set_missing_types(transaction: Transaction, batch: Batch) -> None:
    if batch.missing_types is not None:
        process = "" if batch.claim is None else batch.claim.process
        values = (process, encoded(batch.missing_types), batch.run.run_id, transaction.tenant)
        await transaction.queue(_SET_MISSING_TYPES, values)
