from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests.support.definitions import delay, edge, node, variable
from tests.support.in_process import TENANT, Bench, Gates
from wopr.protocol.errors import Conflict, NotFound, Unprocessable
from wopr.protocol.runs import BulkCancel, PauseRun

pytestmark = pytest.mark.anyio

IMMEDIATE = PauseRun(drain_policy="immediate")
DRAIN = PauseRun(drain_policy="drain-current-node")
MINUTE = 60_000


async def sleeping_run(ours: Bench) -> str:
    return await ours.create(await ours.register([delay("sleep", MINUTE), node("after")]))


async def paused_run(ours: Bench) -> str:
    run_id = await sleeping_run(ours)
    await ours.host.commands.pause(TENANT, run_id, IMMEDIATE)
    return run_id


async def ended_run(ours: Bench) -> str:
    return await ours.create(await ours.register([node("only")]))


async def test_an_immediate_pause_interrupts_the_node_in_flight(ours: Bench, gates: Gates) -> None:
    run_id = await ours.create(await ours.register([node("gate", "test.gate")]))
    await gates.until_reached("gate")

    answer = await ours.host.commands.pause(TENANT, run_id, IMMEDIATE)

    assert answer.status == "paused"
    assert (await ours.types(run_id))[-2:] == ["node.cancelled", "run.paused"]


async def test_a_resumed_run_calls_the_interrupted_node_again(ours: Bench) -> None:
    run_id = await paused_run(ours)

    await ours.host.commands.resume(TENANT, run_id, "go on")

    resumed = (await ours.log(run_id))[-2:]
    assert [event.type for event in resumed] == ["run.resumed", "node.started"]
    assert resumed[0].payload == {"reason": "go on"}


async def test_a_pause_that_drains_is_stored_with_the_run_until_it_is_carried_out(
    ours: Bench, gates: Gates
) -> None:
    nodes = [node("gate", "test.gate"), node("after")]
    run_id = await ours.create(await ours.register(nodes))
    await gates.until_reached("gate")

    await ours.host.commands.pause(TENANT, run_id, DRAIN)
    pending = (await ours.row(run_id)).pending_command
    gates.open("gate")
    await ours.until(run_id, "paused")

    assert pending is not None
    assert (await ours.row(run_id)).pending_command is None


async def test_a_run_whose_pause_is_pending_is_not_paused_again(ours: Bench, gates: Gates) -> None:
    run_id = await ours.create(await ours.register([node("gate", "test.gate")]))
    await gates.until_reached("gate")
    await ours.host.commands.pause(TENANT, run_id, DRAIN)

    with pytest.raises(Conflict):
        await ours.host.commands.pause(TENANT, run_id, DRAIN)


@pytest.mark.parametrize("state", [paused_run, ended_run])
async def test_only_a_running_run_is_paused(
    ours: Bench, state: Callable[[Bench], Awaitable[str]]
) -> None:
    run_id = await state(ours)
    before = await ours.types(run_id)

    with pytest.raises(Conflict, match="Only a running run can be paused"):
        await ours.host.commands.pause(TENANT, run_id, IMMEDIATE)

    assert await ours.types(run_id) == before


async def test_an_unknown_drain_policy_is_refused(ours: Bench) -> None:
    run_id = await sleeping_run(ours)

    with pytest.raises(Unprocessable) as refused:
        await ours.host.commands.pause(TENANT, run_id, PauseRun(drain_policy="later"))

    assert refused.value.details["field"] == "drainPolicy"


async def test_only_a_paused_run_is_resumed(ours: Bench) -> None:
    run_id = await sleeping_run(ours)

    with pytest.raises(Conflict, match="Only a paused run can be resumed"):
        await ours.host.commands.resume(TENANT, run_id)


async def test_a_paused_run_is_cancelled(ours: Bench) -> None:
    run_id = await paused_run(ours)

    answer = await ours.host.commands.cancel(TENANT, run_id, "enough")

    assert answer.status == "cancelled"
    assert (await ours.log(run_id))[-1].payload == {"reason": "enough"}


async def test_a_run_of_another_tenant_is_not_found(ours: Bench) -> None:
    run_id = await sleeping_run(ours)

    with pytest.raises(NotFound):
        await ours.host.commands.cancel("globex", run_id, "")


async def test_each_run_of_a_bulk_cancel_has_its_own_result(ours: Bench) -> None:
    running, ended = await sleeping_run(ours), await ended_run(ours)
    request = BulkCancel(run_ids=[running, ended, "no-such-run"])

    answer = await ours.host.commands.bulk_cancel(TENANT, request)

    assert [result.ok for result in answer.results] == [True, False, False]


async def test_variables_of_an_active_run_are_changed(ours: Bench) -> None:
    nodes, edges = [delay("sleep", MINUTE), node("after")], [edge("sleep", "after")]
    workflow_id = await ours.register(nodes, edges=edges, variables=[variable("name")])
    run_id = await ours.create(workflow_id, {"name": "ann"})

    variables = await ours.host.commands.set_variables(TENANT, run_id, {"name": "ben"}, by="key-1")

    changed = (await ours.log(run_id))[-1]
    assert variables == {"name": "ben"}
    assert changed.payload == {"name": "name", "previous": "ann", "next": "ben"}


async def test_variables_of_a_run_that_has_ended_are_not_changed(ours: Bench) -> None:
    run_id = await ended_run(ours)

    with pytest.raises(Conflict):
        await ours.host.commands.set_variables(TENANT, run_id, {"name": "ben"}, by="key-1")
