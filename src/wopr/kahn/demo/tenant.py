"""The demo data in a tenant's fleet: load, check and remove."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, Protocol

import anyio
import anyio.to_thread

from wopr.kahn.demo.generator import DEMO_PREFIX, OPEN_RUN, PROFILES, demo_runs, is_demo
from wopr.kahn.ingest import Ingest
from wopr.kahn.timestamps import from_millis, read_ts
from wopr.protocol.observed_ids import observed_run_id
from wopr.store.port.fleet import Fleet, FleetMaintenance, StoredFleetRun

DEMO_DAYS: Final = 14
DEMO_AGENTS: Final = tuple(profile.agent_id for profile in PROFILES)
_PAGE: Final = 200


class DemoStore(Fleet, FleetMaintenance, Protocol):
    """The parts of the store that the demo uses."""


class Demo:
    """Demo data: three fictional agents."""

    def __init__(self, store: DemoStore, ingest: Ingest, now: Callable[[], int]) -> None:
        self._store = store
        self._ingest = ingest
        self._now = now

    async def is_loaded(self, tenant: str) -> bool:
        """Return whether the demo is in a tenant's fleet."""
        run = await self._store.fleet_run(tenant, OPEN_RUN)
        if run is None or run.hidden_at is not None:
            return False
        agents = await self._store.fleet_run_agents(tenant, OPEN_RUN)
        return any(is_demo(OPEN_RUN, each.agent_id, each.task) for each in agents)

    async def load(self, tenant: str) -> int:
        """Push the demo runs up to now, all or none, and return their number.

        Raises `Conflict` if a different run with the same id is stored.
        """
        body = await anyio.to_thread.run_sync(_body, self._now())
        return len((await self._ingest.push(tenant, body)).runs)

    async def remove(self, tenant: str) -> int:
        """Delete the demo runs with their observed runs, and return their number."""
        removed = 0
        async for page in self._pages(tenant):
            async with anyio.create_task_group() as tasks:
                for run_id in page:
                    tasks.start_soon(self._delete, tenant, run_id)
            removed += len(page)
        return removed

    async def _pages(self, tenant: str) -> AsyncIterator[Sequence[str]]:
        """Yield the ids of the demo runs, page by page."""
        after = DEMO_PREFIX
        while found := await self._store.fleet_runs_to_export(tenant, after, _PAGE):
            after = found[-1].run_id
            named = [run.run_id for run in found if run.run_id.startswith(DEMO_PREFIX)]
            stored = await self._store.fleet_stored_runs(tenant, named)
            yield [run_id for run_id, run in stored.items() if _is_demo_run(run)]
            if not named:
                return

    async def _delete(self, tenant: str, run_id: str) -> None:
        await self._store.fleet_hide([(tenant, run_id)], self._now())
        await self._store.fleet_delete([(tenant, run_id, observed_run_id(tenant, run_id))])


def _body(now: int) -> bytes:
    runs = demo_runs(until=read_ts(from_millis(now)), days=DEMO_DAYS)
    return b"".join(line + b"\n" for run in runs for line in run.lines)


def _is_demo_run(stored: StoredFleetRun) -> bool:
    # A hidden run has no agents any more. Retention deletes it.
    return bool(stored.agents) and all(
        is_demo(stored.run.run_id, agent.agent_id, agent.task) for agent in stored.agents.values()
    )
