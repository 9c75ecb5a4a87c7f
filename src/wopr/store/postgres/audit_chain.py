"""Write entries of the audit log inside a transaction: one after the other, whoever writes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from wopr.store.port.audit import AuditDraft
from wopr.store.postgres.database import Transaction

_LAST = "SELECT sequence, body FROM host_audit_last()"
_APPEND = "SELECT host_audit_append(%s, %s, %s, %s)"


async def append_entries(transaction: Transaction, drafts: Sequence[AuditDraft]) -> int:
    """Write the next entries of the chain, and answer with the last one's sequence.

    The chain is held from here to the end of the transaction, so this comes last in it.
    """
    if not drafts:
        return -1
    last = await transaction.row(_LAST)
    sequence, body = (-1, None) if last is None else (int(last[0]), bytes(last[1]))
    for draft in drafts:
        sequence += 1
        body = draft.link(sequence, body)
        digest = hashlib.sha256(body).digest()
        await transaction.queue(_APPEND, (sequence, draft.tenant, body, digest))
    return sequence
