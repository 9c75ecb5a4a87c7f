"""Registered workflow definitions and agent manifests."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowRow:
    """A registered definition, byte for byte.

    The default version has the newest `registered_at`.
    """

    workflow_id: str
    version: str
    digest: bytes
    body: bytes
    registered_at: int


class Workflows(Protocol):
    """Registered definitions, by tenant."""

    async def put_workflow(self, tenant: str, row: WorkflowRow) -> bool:
        """Register a definition; False when the same content is already stored.

        Raises `Conflict` with code `workflow_exists` when other content is stored under this id and
        version.
        """
        ...

    async def workflow(
        self, tenant: str, workflow_id: str, version: str | None
    ) -> WorkflowRow | None:
        """Return the definition of that version, or the newest when `version` is None."""
        ...

    async def workflows(self, tenant: str, after: str | None, limit: int) -> list[WorkflowRow]:
        """Return the newest version of each definition, by id, after the given id."""
        ...

    async def workflow_ids(self, tenant: str, limit: int) -> list[str]:
        """Return the first ids of definitions, in order, without reading definitions."""
        ...

    async def known_workflows(self, tenant: str, workflow_ids: Collection[str]) -> set[str]:
        """Return those of these ids that have a definition, without reading definitions."""
        ...

    async def workflow_versions(
        self, tenant: str, workflow_id: str, limit: int, offset: int
    ) -> list[WorkflowRow]:
        """List up to `limit` versions of one definition, newest first, after the first `offset`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRow:
    """An installed agent manifest, byte for byte. `place` counts registrations."""

    agent_id: str
    version: str
    digest: bytes
    body: bytes
    registered_at: int
    # Assigned by the store. A reader of new registrations continues after the last place it read.
    place: int = field(default=0, compare=False)


class AgentManifests(Protocol):
    """Installed agent manifests, by tenant. They are never changed or deleted."""

    async def put_agent(self, tenant: str, row: AgentRow) -> bool:
        """Install a manifest; False when the same content is already stored.

        Raises `Conflict` with code `agent_exists` when other content is stored under this id and
        version.
        """
        ...

    async def agent(self, tenant: str, agent_id: str, version: str | None) -> AgentRow | None:
        """Return the manifest of that version, or the newest when `version` is None."""
        ...

    async def agents(self, tenant: str, after: str | None, limit: int) -> list[AgentRow]:
        """Return the newest version of each manifest, by id, after the given id."""
        ...

    async def agents_since(self, tenant: str, place: int, limit: int) -> list[AgentRow]:
        """List every version of every manifest that was installed after that place, in order."""
        ...
