"""Busy clients of several processes, while processes and the database are stopped and started."""

from __future__ import annotations

import os
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import httpx
import pytest

from tests.fault.cluster import Cluster, Member, cluster
from tests.fault.load import Ledger, Load
from tests.fault.test_kill import compare
from tests.support.host import ACME
from tests.support.postgres.databases import Databases
from tests.support.postgres.restartable import own_server

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]

ROUNDS = int(os.environ.get("FAULT_PG_ROUNDS", "4"))
SEED = int(os.environ.get("FAULT_SEED") or time.time())
SETTLING_SECONDS = 120


class LoadScenario:
    """Clients of several processes, and everything that they received."""

    def __init__(self, ours: Cluster, seed: int) -> None:
        self.ours = ours
        self.chance = random.Random(seed)
        self.ledger = Ledger()

    async def live(self, disturb: Callable[[], Awaitable[None]]) -> None:
        """Keep busy, disturb, and keep busy a little longer."""
        loads = [
            Load(api.url, self.ledger, random.Random(self.chance.random()))
            for api in self.ours.apis
            if api.process is not None
        ]
        async with anyio.create_task_group() as tasks:
            for load in loads:
                tasks.start_soon(load.run, 2, 2)
            await self._until_noted(loads, 30)
            await disturb()
            await self._until_noted(loads, 30)
            tasks.cancel_scope.cancel()

    async def _until_noted(self, loads: list[Load], more: int) -> None:
        with anyio.move_on_after(10):
            for load in loads:
                await load.until_noted(load.noted + more)

    async def settle(self) -> None:
        """Repeat unanswered requests, and wait until every run has ended."""
        api = next(api for api in self.ours.apis if api.process is not None)
        async with client(api) as http:
            load = Load(api.url, self.ledger, self.chance)
            for key in sorted(self.ledger.unanswered):
                await load.create_with(http, key)
            with anyio.fail_after(SETTLING_SECONDS):
                while await anyio.to_thread.run_sync(self.ours.unfinished):
                    await self._resume_all(http)
                    await anyio.sleep(0.2)
        await anyio.to_thread.run_sync(self.ours.check)
        compare(self.ledger, self.ours.stored().runs)

    async def _resume_all(self, http: httpx.AsyncClient) -> None:
        found = await http.get("/v1/runs", params={"status": "paused", "limit": 200})
        for item in found.json()["items"]:
            await http.post(f"/v1/runs/{item['runId']}:resume")


@asynccontextmanager
async def client(api: Member) -> AsyncGenerator[httpx.AsyncClient, None]:
    headers = {"Authorization": f"Bearer {ACME}"}
    async with httpx.AsyncClient(
        base_url=api.url, headers=headers, timeout=60, trust_env=False
    ) as http:
        yield http


async def test_no_acknowledged_write_is_lost_whichever_process_is_killed(
    databases: Databases, tmp_path: Path
) -> None:
    print(f"FAULT_SEED={SEED}")
    with databases.lent() as url, cluster(url, tmp_path) as ours:
        story = LoadScenario(ours, SEED)
        for number in range(ROUNDS):
            victim = [ours.workers, ours.apis][number % 2][story.chance.randrange(2)]

            async def kill(victim: Member = victim) -> None:
                await anyio.to_thread.run_sync(victim.kill)

            await story.live(kill)
            await anyio.to_thread.run_sync(victim.start)
        await story.settle()

        print(f"{dict(story.ledger.counts)}")


@pytest.mark.parametrize("way", ["restart", "crash"])
async def test_an_interrupted_database_loses_nothing(tmp_path: Path, way: str) -> None:
    print(f"FAULT_SEED={SEED}")
    with own_server() as server, cluster(server.url, tmp_path) as ours:
        story = LoadScenario(ours, SEED)
        for _ in range(2):

            async def disturb() -> None:
                await anyio.to_thread.run_sync(getattr(server, way))

            await story.live(disturb)
        await story.settle()

        print(f"{dict(story.ledger.counts)}")
