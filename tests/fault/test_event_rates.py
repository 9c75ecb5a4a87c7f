"""Every event appended for a tenant counts in its rate of events, whatever its origin."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal

import msgspec
import pytest

from tests.support.definitions import delay, node
from tests.support.eventually import eventually_async
from tests.support.in_process import TENANT, Bench
from tests.support.kahn_lines import line
from wopr.protocol.forks import ForkRun
from wopr.protocol.observed_ids import observed_run_id
from wopr.store.port.usage import QuotaRow

pytestmark = pytest.mark.anyio

RATE = 5
CHILDREN = 20


class Counted:
    """The events that count in the rate of a tenant since its quota was set."""

    def __init__(self, ours: Bench) -> None:
        self._ours = ours
        self._began = 0.0

    async def begin(self) -> None:
        quota = QuotaRow(tenant=TENANT, quota="eventsPerSecond", amount=RATE)
        await self._ours.host.store.set_quota(quota)
        await self._ours.host.quotas.read()
        self._began = time.monotonic()

    def most(self) -> float:
        """Return the current count, and the tokens that may have been refilled meanwhile."""
        owed = RATE * self._ours.host.quotas.delay(TENANT)
        return owed + 2 * RATE + RATE * (time.monotonic() - self._began)


async def appended(ours: Bench, run_ids: Sequence[str]) -> int:
    return sum([len(await ours.log(run_id)) for run_id in run_ids])


@pytest.mark.parametrize("mode", ["replay", "branch"])
async def test_events_of_forks_count(ours: Bench, mode: Literal["replay", "branch"]) -> None:
    counted = Counted(ours)
    source = await ours.create(await ours.register(node(f"step-{n}") for n in range(100)))
    await ours.until(source, "completed")
    await counted.begin()

    request = ForkRun(mode=mode, from_seq=len(await ours.log(source)) - 1)
    answer = await ours.host.commands.fork(TENANT, source, request)
    fork = str(msgspec.json.decode(answer)["runId"])
    await ours.until(fork, "completed")

    total = await appended(ours, [fork])
    assert total > 200
    assert counted.most() >= total


async def test_first_events_of_children_count(ours: Bench) -> None:
    counted = Counted(ours)
    child = await ours.register([delay("sleep", 60_000)])
    config = {"workflowId": child}
    calls = [node(f"call-{n}", "core.subWorkflow", config=config) for n in range(CHILDREN)]
    workflow_id = await ours.register(calls, edges=[])
    await counted.begin()

    await ours.create(workflow_id)

    async def have_begun() -> bool:
        return sum((await ours.host.store.open_run_counts()).values()) == CHILDREN + 1

    await eventually_async(have_begun)
    runs = await ours.host.store.unfinished_runs(None, 100)
    total = await appended(ours, [run_id for _, run_id in runs])
    assert counted.most() >= total


async def test_events_of_observed_runs_count(ours: Bench) -> None:
    counted = Counted(ours)
    lines = [line("agent_run_start", run_id="r-1", agent_id=f"agent-{n}") for n in range(200)]
    await counted.begin()

    await ours.host.fleet.ingest.push(TENANT, b"\n".join([*lines, b""]))
    await ours.host.fleet.observed.catch_up(TENANT, observed_run_id(TENANT, "r-1"))

    total = await appended(ours, [observed_run_id(TENANT, "r-1")])
    assert total >= 200
    assert counted.most() >= total
