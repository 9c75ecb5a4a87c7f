"""The demo in a tenant's fleet: load it, tell whether it is there, and take it out again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, Protocol

import anyio
import anyio.to_thread

from wopr.fleet.demo import OPEN_RUN, PREFIX, PROFILES, demo_runs, is_demo
from wopr.fleet.ingest import Ingest
from wopr.fleet.instants import from_millis, read_ts
from wopr.fleet.observed_ids import observed_run_id
from wopr.store.port.fleet import Fleet, HeldRun
from wopr.store.port.fleet_clockwork import FleetClockwork

DEMO_DAYS: Final = 14
DEMO_AGENTS: Final = tuple(profile.agent_id for profile in PROFILES)
_PAGE: Final = 200


class DemoStore(Fleet, FleetClockwork, Protocol):
    """What the demo needs of the store."""


class Demo:
    """Three made-up agents, for whoever wants to see a fleet before having one."""

    def __init__(self, store: DemoStore, ingest: Ingest, now: Callable[[], int]) -> None:
        self._store = store
        self._ingest = ingest
        self._now = now

    async def is_loaded(self, tenant: str) -> bool:
        """Tell whether the demo is in a tenant's fleet."""
        run = await self._store.fleet_run(tenant, OPEN_RUN)
        if run is None or run.hidden_at is not None:
            return False
        agents = await self._store.fleet_run_agents(tenant, OPEN_RUN)
        return any(is_demo(OPEN_RUN, each.agent_id, each.task) for each in agents)

    async def load(self, tenant: str) -> int:
        """Push the demo up to now, all of it or nothing; says how many runs there are.

        Raises `Conflict` when a run of the same name is held that says something else.
        """
        body = await anyio.to_thread.run_sync(_body, self._now())
        return len((await self._ingest.push(tenant, body)).runs)

    async def remove(self, tenant: str) -> int:
        """Delete the demo's runs with the runs that show them; says how many there were."""
        removed = 0
        async for page in self._pages(tenant):
            async with anyio.create_task_group() as tasks:
                for run_id in page:
                    tasks.start_soon(self._delete, tenant, run_id)
            removed += len(page)
        return removed

    async def _pages(self, tenant: str) -> AsyncIterator[Sequence[str]]:
        """The ids of the demo's runs, some at a time."""
        after = PREFIX
        while found := await self._store.fleet_exported(tenant, after, _PAGE):
            after = found[-1].run_id
            named = [run.run_id for run in found if run.run_id.startswith(PREFIX)]
            held = await self._store.fleet_held(tenant, named)
            yield [run_id for run_id, run in held.items() if _is_made_up(run)]
            if not named:
                return

    async def _delete(self, tenant: str, run_id: str) -> None:
        await self._store.fleet_hide([(tenant, run_id)], self._now())
        await self._store.fleet_delete([(tenant, run_id, observed_run_id(tenant, run_id))])


def _body(now: int) -> bytes:
    runs = demo_runs(until=read_ts(from_millis(now)), days=DEMO_DAYS)
    return b"".join(line + b"\n" for run in runs for line in run.lines)


def _is_made_up(held: HeldRun) -> bool:
    # Of a run past its retention no agent is known any more; it goes by itself.
    return bool(held.agents) and all(
        is_demo(held.run.run_id, agent.agent_id, agent.task) for agent in held.agents.values()
    )
