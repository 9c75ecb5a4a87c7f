"""One store: every part of the port on one database."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from wopr.store.port.answers import Answers, Invocations
from wopr.store.port.audit import AuditLog
from wopr.store.port.clockwork import Clockwork
from wopr.store.port.definitions import AgentManifests, Workflows
from wopr.store.port.feedback import Annotations, Judges, ReviewQueues
from wopr.store.port.fleet import Fleet
from wopr.store.port.fleet_clockwork import FleetClockwork
from wopr.store.port.keys import Keys
from wopr.store.port.memories import Memories
from wopr.store.port.peers import Peers
from wopr.store.port.projections import Projections
from wopr.store.port.recovery import Recovery
from wopr.store.port.runs import RunLog
from wopr.store.port.secrets import Secrets
from wopr.store.port.suspensions import Suspensions
from wopr.store.port.traces import Traces
from wopr.store.port.usage import Usage
from wopr.store.port.webhooks import Outbox, Webhooks


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFacts:
    """What `wopr doctor` prints about a store."""

    kind: str
    location: str
    schema_version: int
    runs: int
    events: int
    bytes_on_disk: int
    settings: dict[str, str] = field(default_factory=dict)


class Store(
    RunLog,
    Clockwork,
    Recovery,
    Suspensions,
    Workflows,
    AgentManifests,
    Memories,
    Keys,
    Secrets,
    Answers,
    Invocations,
    Annotations,
    ReviewQueues,
    Judges,
    Webhooks,
    Outbox,
    AuditLog,
    Projections,
    Fleet,
    FleetClockwork,
    Traces,
    Usage,
    Protocol,
):
    """One store: all of the above on one database."""

    @property
    def peers(self) -> Peers | None:
        """The processes that share the database; None where there can be one only."""
        ...

    async def close(self) -> None:
        """Finish what is queued and release the database."""
        ...

    async def ready(self) -> None:
        """Raise `Unavailable` unless a write would be taken now."""
        ...

    async def encryption_keys(self) -> list[str]:
        """Ids of the keys that stored content may be encrypted with."""
        ...

    async def add_encryption_key(self, key_id: str) -> None:
        """Record that content is encrypted with a key from now on."""
        ...

    async def facts(self) -> StoreFacts:
        """What there is to know about the store itself; no password is part of it."""
        ...
