"""What is registered: workflow definitions and agent manifests."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowRow:
    """A registered definition, byte for byte as it came. The newest `registered_at` runs by default."""

    workflow_id: str
    version: str
    digest: bytes
    body: bytes
    registered_at: int


class Workflows(Protocol):
    """Registered definitions, by tenant."""

    async def put_workflow(self, tenant: str, row: WorkflowRow) -> bool:
        """Register; True when new, False when the same content is there already.

        Raises `Conflict` with code `workflow_exists` when this id and version hold other content.
        """
        ...

    async def workflow(
        self, tenant: str, workflow_id: str, version: str | None
    ) -> WorkflowRow | None:
        """The definition of that version, or the newest when `version` is None."""
        ...

    async def workflows(self, tenant: str, after: str | None, limit: int) -> list[WorkflowRow]:
        """The newest version of each definition, by id, after the given id."""
        ...

    async def workflow_ids(self, tenant: str, limit: int) -> list[str]:
        """The first ids of definitions, in order. No definition is read."""
        ...

    async def known_workflows(self, tenant: str, workflow_ids: Collection[str]) -> set[str]:
        """Those of these ids that have a definition. No definition is read."""
        ...

    async def workflow_versions(
        self, tenant: str, workflow_id: str, limit: int, offset: int
    ) -> list[WorkflowRow]:
        """The versions of one definition, newest first: at most `limit`, after `offset` others."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRow:
    """An installed agent manifest, byte for byte as it came. `place` counts registrations."""

    agent_id: str
    version: str
    digest: bytes
    body: bytes
    registered_at: int
    # Given by the store; what reads the registrations in order goes on after it.
    place: int = field(default=0, compare=False)


class AgentManifests(Protocol):
    """Installed agent manifests, by tenant. Nothing is ever taken away or changed."""

    async def put_agent(self, tenant: str, row: AgentRow) -> bool:
        """Install; True when new, False when the same content is there already.

        Raises `Conflict` with code `agent_exists` when this id and version hold other content.
        """
        ...

    async def agent(self, tenant: str, agent_id: str, version: str | None) -> AgentRow | None:
        """The manifest of that version, or the newest when `version` is None."""
        ...

    async def agents(self, tenant: str, after: str | None, limit: int) -> list[AgentRow]:
        """The newest version of each manifest, by id, after the given id."""
        ...

    async def agents_since(self, tenant: str, place: int, limit: int) -> list[AgentRow]:
        """Every version of every manifest that was installed after that place, in order."""
        ...
