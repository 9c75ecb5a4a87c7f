"""Many runs that wait for people: they use no resources, and any process can answer them."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import httpx
import pytest

from tests.fault.cluster import Cluster, Member, cluster
from tests.support.definitions import node, workflow
from tests.support.eventually import eventually
from tests.support.host import ACME
from tests.support.interrupts import gate
from tests.support.postgres.databases import Databases

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(900)]

RUNS = int(os.environ.get("FAULT_WAITING_RUNS", "2000"))
AT_ONCE = 16
# Two pools of ten and their two listeners, the queue's three and its listener, of four processes.
MAX_CONNECTIONS = 4 * (10 + 1 + 3 + 1)


@asynccontextmanager
async def clients(apis: Iterable[Member]) -> AsyncGenerator[list[httpx.AsyncClient], None]:
    headers = {"Authorization": f"Bearer {ACME}"}
    made = [
        httpx.AsyncClient(base_url=api.url, headers=headers, timeout=60, trust_env=False)
        for api in apis
    ]
    yield made
    for each in made:
        await each.aclose()


async def for_each(count: int, act: Callable[[int], Awaitable[None]]) -> None:
    """Do something so many times, a few concurrently."""
    left = iter(range(count))

    async def work() -> None:
        for number in left:
            await act(number)

    async with anyio.create_task_group() as tasks:
        for _ in range(AT_ONCE):
            tasks.start_soon(work)


def in_memory(member: Member) -> float:
    found = re.search(r"^wopr_runs_in_memory (\S+)", member.wire.metrics(), re.M)
    assert found is not None
    return float(found[1])


def holds_nothing(ours: Cluster) -> bool:
    """Check for no job, no holder, and no process with one of the runs in memory."""
    return (
        ours.one("SELECT count(*) FROM procrastinate_jobs") == 0
        and ours.one("SELECT count(*) FROM runs WHERE holder IS NOT NULL") == 0
        and all(in_memory(member) == 0 for member in ours.members)
    )


async def test_runs_that_wait_for_people_hold_nothing_and_can_all_be_answered(
    databases: Databases, tmp_path: Path
) -> None:
    with databases.lent() as url, cluster(url, tmp_path, WOPR_RATE_LIMIT="0") as ours:
        workflow_id = ours.apis[0].wire.register(workflow([gate(), node("after")]))
        runs: list[str] = []

        async with clients(ours.apis) as https:

            async def create(number: int) -> None:
                http = https[number % len(https)]
                made = await http.post("/v1/runs", json={"workflowId": workflow_id})
                assert made.status_code == 201, made.text
                runs.append(made.json()["runId"])

            async def answer(number: int) -> None:
                http = https[(number + 1) % len(https)]
                path = f"/v1/runs/{runs[number]}/interrupts/gate"
                given = await http.post(path, json={"resumeValue": {"action": "accept"}})
                assert given.status_code == 200, given.text

            await for_each(RUNS, create)
            await anyio.to_thread.run_sync(eventually, lambda: holds_nothing(ours))
            assert ours.one("SELECT count(*) FROM suspensions") == RUNS
            connections = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            assert ours.one(connections) <= MAX_CONNECTIONS

            await for_each(RUNS, answer)

        await anyio.to_thread.run_sync(ours.until_over)
        counts = ours.rows("SELECT status, count(*) FROM runs GROUP BY status")
        assert counts == [("completed", RUNS)]
        await anyio.to_thread.run_sync(ours.check)
