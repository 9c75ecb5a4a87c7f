from __future__ import annotations

import msgspec
import pytest

from tests.support.definitions import node, variable
from tests.support.in_process import TENANT, Bench
from wopr.protocol.errors import Conflict, Forbidden, NotFound, Refused, TooLarge
from wopr.protocol.runs import CreateRun, Owner, RunAccepted
from wopr.runs.requests import NewRun, check_request
from wopr.security.api_keys import Principal

pytestmark = pytest.mark.anyio

CALLER = Principal(
    tenant=TENANT, key_id="key-1", scopes=frozenset({"runs:write"}), role="admin", is_test=False
)


async def new_run(
    ours: Bench, workflow_id: str, *, dedup: bool = False, run_id: str = ""
) -> NewRun:
    return NewRun(
        request=CreateRun(workflow_id=workflow_id),
        compiled=await ours.host.library.newest(TENANT, workflow_id),
        owner=Owner(tenant=TENANT),
        dedup=dedup,
        run_id=run_id,
    )


async def check(ours: Bench, request: CreateRun) -> NewRun:
    return await check_request(
        request, principal=CALLER, library=ours.host.library, settings=ours.host.settings
    )


async def test_a_run_of_one_noop_node_is_created_and_completed_by_one_append(ours: Bench) -> None:
    workflow_id = await ours.register([node("only")])

    accepted = msgspec.json.decode(
        await ours.host.commands.create(await new_run(ours, workflow_id)), type=RunAccepted
    )

    assert await ours.types(accepted.run_id) == [
        "run.started",
        "node.started",
        "node.completed",
        "run.completed",
    ]
    assert accepted.status == "running"
    assert accepted.events_url == f"/v1/runs/{accepted.run_id}/events"


async def test_an_ended_run_is_not_kept_in_memory(ours: Bench) -> None:
    run_id = await ours.create(await ours.register([node("only")]))

    assert run_id not in ours.host.advancer.active.runs


async def test_with_dedup_a_second_active_run_of_a_workflow_is_refused(ours: Bench) -> None:
    workflow_id = await ours.register([node("gate", "test.gate")])
    first = msgspec.json.decode(
        await ours.host.commands.create(await new_run(ours, workflow_id, dedup=True)),
        type=RunAccepted,
    )

    with pytest.raises(Conflict) as refused:
        await ours.host.commands.create(await new_run(ours, workflow_id, dedup=True))

    assert refused.value.code == "run_already_active"
    assert refused.value.details["activeRunId"] == first.run_id


async def test_a_request_for_another_tenant_is_forbidden(ours: Bench) -> None:
    workflow_id = await ours.register([node("only")])

    with pytest.raises(Forbidden):
        await check(ours, CreateRun(workflow_id=workflow_id, tenant_id="globex"))


async def test_a_request_for_an_unknown_workflow_is_not_found(ours: Bench) -> None:
    with pytest.raises(NotFound):
        await check(ours, CreateRun(workflow_id="no-such-workflow"))


async def test_inputs_of_the_wrong_type_are_named_in_the_refusal(ours: Bench) -> None:
    workflow_id = await ours.register(
        [node("only")], variables=[variable("count", "number", required=True)]
    )

    with pytest.raises(Refused) as refused:
        await check(ours, CreateRun(workflow_id=workflow_id, inputs={"count": "many"}))

    assert refused.value.details["field"] == "inputs.count"


async def test_metadata_that_is_nested_too_deeply_is_refused(ours: Bench) -> None:
    workflow_id = await ours.register([node("only")])
    deep = {"a": {"b": {"c": {"d": {"e": 1}}}}}

    with pytest.raises(Refused, match="metadata"):
        await check(ours, CreateRun(workflow_id=workflow_id, metadata=deep))


async def test_inputs_larger_than_an_event_may_be_are_refused(ours: Bench) -> None:
    workflow_id = await ours.register([node("only")], variables=[variable("text")])
    most = ours.host.settings.max_event_bytes

    with pytest.raises(TooLarge):
        await ours.create(workflow_id, {"text": "x" * (most + 1)})
