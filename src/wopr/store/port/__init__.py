"""The store's port: what the host needs kept, as small protocols that every adapter implements.

Every call names its tenant, and no call crosses one. The exceptions are the host's own clockwork
(such as `due`, `unfinished`, `expire`): they answer with owners and ids only, never content.

Times are milliseconds since the epoch. Bodies are the exact bytes of the wire.
"""

from __future__ import annotations

from typing import Final

from wopr.store.port.answers import Answers, Invocation, Invocations, RememberedAnswer
from wopr.store.port.clockwork import Clockwork
from wopr.store.port.definitions import AgentManifests, AgentRow, WorkflowRow, Workflows
from wopr.store.port.keys import KeyRow, Keys
from wopr.store.port.memories import Memories, MemoryRow
from wopr.store.port.runs import (
    Artifact,
    Batch,
    Claim,
    RunFilter,
    RunLog,
    RunPage,
    RunRow,
    StoredEvent,
    StoredRun,
    Wish,
)
from wopr.store.port.secrets import SecretRow, Secrets
from wopr.store.port.store import Store, StoreFacts
from wopr.store.port.suspensions import Suspension, SuspensionFilter, SuspensionPage, Suspensions

# The tenant of what every tenant can use: built-in definitions and those given at start.
SHARED: Final = "*"

__all__ = [
    "SHARED",
    "AgentManifests",
    "AgentRow",
    "Answers",
    "Artifact",
    "Batch",
    "Claim",
    "Clockwork",
    "Invocation",
    "Invocations",
    "KeyRow",
    "Keys",
    "Memories",
    "MemoryRow",
    "RememberedAnswer",
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
    "Wish",
    "WorkflowRow",
    "Workflows",
]
