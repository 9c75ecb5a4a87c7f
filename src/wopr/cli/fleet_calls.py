"""The calls that are about the fleet."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, TypeVar

from wopr.api.requests import segment
from wopr.protocol.documents import JsonObject
from wopr.protocol.fleet import AgentRuns, Aggregate, Flakiness, FleetRuns

if TYPE_CHECKING:
    from wopr.cli.connection import Answer

T = TypeVar("T")


class FleetCalls(ABC):
    """Pushes lines and reads the fleet, over whatever connection there is."""

    def transitions(self, run_id: str) -> AsyncGenerator[bytes, None]:
        """Read a run as KAHN lines, piece by piece; an answer that breaks off is a failure."""
        return self._pieces(f"/v1/runs/{segment(run_id)}/transitions", {})

    async def ingest(self, body: bytes) -> Answer[JsonObject]:
        """Push KAHN lines."""
        return await self._post_lines("/v1/ingest/transitions", body, JsonObject)

    async def fleet_agents(self, query: Mapping[str, str]) -> Answer[Aggregate]:
        """Read one row per agent of the fleet."""
        return await self._get("/api/agent-runs/aggregate", Aggregate, query)

    async def fleet_agent_runs(self, agent_id: str, query: Mapping[str, str]) -> Answer[AgentRuns]:
        """Read one page of an agent's runs."""
        path = f"/api/agents/{segment(agent_id)}/agent-runs"
        return await self._get(path, AgentRuns, query)

    async def fleet_runs(self, query: Mapping[str, str]) -> Answer[FleetRuns]:
        """Read one page of KAHN runs."""
        return await self._get("/api/runs", FleetRuns, query)

    async def fleet_audits(self, query: Mapping[str, str]) -> Answer[Flakiness]:
        """Read one row per audit checkpoint."""
        return await self._get("/api/audit-checkpoints/flakiness", Flakiness, query)

    @abstractmethod
    async def _get(
        self, path: str, kind: type[T], query: Mapping[str, str] | None = None
    ) -> Answer[T]: ...

    @abstractmethod
    async def _post_lines(self, path: str, body: bytes, kind: type[T]) -> Answer[T]: ...

    @abstractmethod
    def _pieces(self, path: str, query: Mapping[str, str]) -> AsyncGenerator[bytes, None]: ...
