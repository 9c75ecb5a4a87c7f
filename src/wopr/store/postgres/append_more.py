"""What a batch writes beside its run and log, in the same transaction.

These are annotations, the signals of the run, and audit entries.
"""

from __future__ import annotations

from collections.abc import Sequence

from wopr.store.port import Batch
from wopr.store.postgres.annotation_rows import queue_all, write_annotation
from wopr.store.postgres.audit_chain import append_entries
from wopr.store.postgres.database import Transaction
from wopr.store.sql.signals import record_agents, record_intervention


def has_more(batches: Sequence[Batch]) -> bool:
    """Whether there is any of it."""
    return any(
        batch.audits or batch.annotations or batch.agents or batch.is_intervention
        for batch in batches
    )


async def write_more(transaction: Transaction, batches: Sequence[Batch]) -> None:
    """Write it, once the runs are held; the audit log comes last, because it is held by one."""
    for batch in batches:
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
