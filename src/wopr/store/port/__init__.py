"""The port of the store: small protocols that every adapter implements.

Every call names its tenant and sees only that tenant's data. The exceptions are maintenance calls
(such as `due`, `unfinished`, `delete_expired_runs`): they return tenants and ids, never content.

Times are milliseconds since the epoch. Bodies are the exact bytes that clients receive.
"""

from __future__ import annotations

from typing import Final

from wopr.store.port.credentials import KeyRow, Keys, SecretRow, Secrets
from wopr.store.port.definitions import AgentManifests, AgentRow, WorkflowRow, Workflows
from wopr.store.port.idempotency import (
    Idempotency,
    IdempotencyRecord,
    Invocation,
    RecordBuilder,
)
from wopr.store.port.maintenance import Maintenance
from wopr.store.port.memories import Memories, MemoryRow
from wopr.store.port.runs import (
    Artifact,
    Batch,
    Claim,
    PendingCommand,
    RunFilter,
    RunLog,
    RunPage,
    RunRow,
    StoredEvent,
    StoredRun,
)
from wopr.store.port.store import Store, StoreFacts
from wopr.store.port.suspensions import Suspension, SuspensionFilter, SuspensionPage, Suspensions

# The tenant of shared definitions: built-in ones, and those loaded at startup.
SHARED: Final = "*"

__all__ = [
    "SHARED",
    "AgentManifests",
    "AgentRow",
    "Artifact",
    "Batch",
    "Claim",
    "Idempotency",
    "IdempotencyRecord",
    "Invocation",
    "KeyRow",
    "Keys",
    "Maintenance",
    "Memories",
    "MemoryRow",
    "PendingCommand",
    "RecordBuilder",
    "RunFilter",
    "RunLog",
    "RunPage",
    "RunRow",
    "SecretRow",
    "Secrets",
    "Store",
    "StoreFacts",
    "StoredEvent",
    "StoredRun",
    "Suspension",
    "SuspensionFilter",
    "SuspensionPage",
    "Suspensions",
    "WorkflowRow",
    "Workflows",
]
