"""A tenant far beyond its byte quotas: its nodes write no more, and its runs wait or end."""

from __future__ import annotations

from typing import Literal

import msgspec
import pytest

from tests.fault.waiting import answer
from tests.support.definitions import delay, edge, node
from tests.support.eventually import eventually_async
from tests.support.in_process import TENANT, Bench, Gates
from tests.support.interrupts import ACCEPT, gate
from wopr.protocol.documents import JsonObject
from wopr.protocol.errors import QuotaExceeded
from wopr.protocol.forks import ForkRun
from wopr.store.port.usage import QuotaRow

pytestmark = pytest.mark.anyio

SLEEP_MS = 60_000


def fill(name: str, size: int = 200_000) -> JsonObject:
    return node(name, "core.setVariable", config={"name": name, "value": "x" * size})


async def limit(ours: Bench, quota: str, amount: int) -> None:
    await ours.host.store.set_quota(QuotaRow(tenant=TENANT, quota=quota, amount=amount))
    await ours.host.quotas.read()


async def beyond(ours: Bench) -> None:
    """Wait until the host knows that the tenant is far beyond a quota."""

    async def is_known() -> bool:
        return ours.host.quotas.write_refusal(TENANT) is not None

    await eventually_async(is_known)


async def begun(
    ours: Bench, *nodes: JsonObject, quota: str = "storedBytes", **fields: object
) -> str:
    """Start a run whose first writes put its tenant far beyond a quota."""
    workflow_id = await ours.register(nodes, **fields)
    await limit(ours, quota, 1000)
    run_id = await ours.create(workflow_id)
    await beyond(ours)
    return run_id


@pytest.mark.parametrize("quota", ["storedBytes", "artifactBytes"])
async def test_a_writing_node_in_flight_fails_with_the_quota(
    ours: Bench, gates: Gates, quota: str
) -> None:
    run_id = await begun(ours, fill("large", 300_000), node("slow", "test.gate"), quota=quota)

    gates.open("slow")
    await ours.until(run_id, "failed")

    error = (await ours.snapshot(run_id))["error"]
    assert error["code"] == "quota_exceeded"
    assert (error["details"]["quota"], error["details"]["limit"]) == (quota, 1000)
    assert error["details"]["current"] > 1100
    assert f'"{quota}" of this tenant is used up' in error["message"]
    assert (await ours.types(run_id))[-2:] == ["node.failed", "run.failed"]


async def test_a_flushing_node_fails_with_the_quota(ours: Bench) -> None:
    run_id = await begun(ours, node("talks", "test.chatter"))

    await ours.until(run_id, "failed")

    assert (await ours.snapshot(run_id))["error"]["code"] == "quota_exceeded"


async def test_a_run_that_has_slept_starts_no_node_and_no_failure_handler(
    ours: Bench,
) -> None:
    edges = [edge("sleep", "large"), edge("large", "handler", triggerRule="any_failed")]
    run_id = await begun(
        ours, delay("sleep", SLEEP_MS), fill("large"), fill("handler"), fill("more"), edges=edges
    )
    ours.clock.now += SLEEP_MS
    await ours.wake(run_id)
    await ours.until(run_id, "failed")

    found = await ours.snapshot(run_id)
    assert found["error"]["code"] == "quota_exceeded"
    assert found["nodeStates"]["sleep"]["status"] == "completed"
    assert found["nodeStates"]["large"]["status"] == "failed"
    events = await ours.log(run_id)
    assert [event.node_id for event in events if event.type == "node.started"].count("handler") == 0
    assert "large" not in found["variables"]


async def test_waiting_runs_are_kept_and_can_be_answered_and_cancelled(
    ours: Bench,
) -> None:
    asking = await ours.register([gate("person")])
    sleeping = await ours.register([delay("sleep", SLEEP_MS)])
    await limit(ours, "storedBytes", 1000)
    asked, slept, cancelled = [await ours.create(each) for each in (asking, sleeping, sleeping)]
    await beyond(ours)

    await ours.wake(slept)
    assert (await ours.row(slept)).status == "running"
    ours.clock.now += SLEEP_MS
    await ours.wake(slept)
    await ours.host.commands.cancel(TENANT, cancelled, "")
    await answer(ours, asked, ACCEPT, "person")

    await ours.until(slept, "completed")
    await ours.until(cancelled, "cancelled")
    await ours.until(asked, "completed")


async def test_a_run_continues_while_its_tenant_is_slightly_beyond_its_quota(
    ours: Bench, gates: Gates
) -> None:
    workflow_id = await ours.register([fill("large"), node("slow", "test.gate"), fill("last", 100)])
    run_id = await ours.create(workflow_id)
    await gates.until_reached("slow")
    stored = (await ours.host.store.usage(TENANT, ours.clock.now)).stored_bytes
    await limit(ours, "storedBytes", stored * 100 // 105)

    async def is_refused() -> bool:
        try:
            ours.host.quotas.check_new_run(TENANT)
        except QuotaExceeded:
            return True
        return False

    await eventually_async(is_refused)
    gates.open("slow")
    await ours.until(run_id, "completed")


@pytest.mark.parametrize("mode", ["replay", "branch"])
async def test_a_started_fork_ends_before_its_history_is_written(
    ours: Bench, monkeypatch: pytest.MonkeyPatch, mode: Literal["replay", "branch"]
) -> None:
    source = await ours.create(await ours.register(node(f"step-{n}") for n in range(200)))
    await ours.until(source, "completed")
    await begun(ours, delay("sleep", SLEEP_MS))
    monkeypatch.setattr(ours.host.quotas, "check_new_run", lambda _: None)

    length = len(await ours.log(source))
    request = ForkRun(mode=mode, from_seq=0 if mode == "replay" else length - 1)
    made = await ours.host.commands.fork(TENANT, source, request)
    fork = str(msgspec.json.decode(made)["runId"])
    await ours.until(fork, "failed")

    assert (await ours.snapshot(fork))["error"]["code"] == "quota_exceeded"
    assert len(await ours.log(fork)) < 10
    assert length > 400
