from __future__ import annotations

import msgspec
import pytest

from tests.support.definitions import edge, node
from tests.support.in_process import TENANT, Bench
from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.errors import Conflict, Forbidden, NotFound, Refused, Unprocessable
from wopr.runs.interrupts.approvals import Resolver, may_resolve
from wopr.store.port import SuspensionFilter

pytestmark = pytest.mark.anyio

ANN = Resolver(name="ann", role="admin")
BEN = Resolver(name="ben", role="admin")


async def waiting_run(ours: Bench, **config: Json) -> str:
    """Start a run that waits at an approval gate, with a node after it."""
    gate = node("gate", "core.approvalGate", config={"title": "Ship it?", **config})
    return await ours.create(
        await ours.register([gate, node("after")], edges=[edge("gate", "after")])
    )


async def respond(ours: Bench, run_id: str, action: str, by: Resolver = ANN) -> str:
    taken = await ours.host.commands.resolve_interrupt(
        TENANT, run_id, "gate", {"action": action}, by
    )
    return taken.status


async def inbox(ours: Bench, run_id: str) -> list[JsonObject]:
    page = await ours.host.store.pending_interrupts(
        TENANT, SuspensionFilter(run_id=run_id), None, 10
    )
    return [msgspec.json.decode(row.body) for row in page.suspensions]


async def test_a_gate_suspends_the_run_and_shows_it_in_the_inbox(ours: Bench) -> None:
    run_id = await waiting_run(ours)

    [item] = await inbox(ours, run_id)

    assert (await ours.row(run_id)).status == "waiting-approval"
    assert (item["nodeId"], item["kind"]) == ("gate", "approval")
    types = await ours.types(run_id)
    assert types[-3:] == ["node.suspended", "interrupt.requested", "approval.requested"]


async def test_an_accepted_gate_resumes_the_node_and_completes_the_run(ours: Bench) -> None:
    run_id = await waiting_run(ours)

    status = await respond(ours, run_id, "accept")

    types = await ours.types(run_id)
    assert status == "completed"
    assert await inbox(ours, run_id) == []
    assert types.index("interrupt.resolved") < types.index("node.resumed")


async def test_the_first_of_two_responses_is_accepted(ours: Bench) -> None:
    run_id = await waiting_run(ours)
    await respond(ours, run_id, "accept")

    with pytest.raises(Conflict) as refused:
        await respond(ours, run_id, "reject", BEN)

    assert refused.value.code == "interrupt_already_resolved"
    assert refused.value.details["resolvedBy"] == "ann"


async def test_a_quorum_counts_each_voter_once(ours: Bench) -> None:
    run_id = await waiting_run(ours, requiredApprovals=2)

    first = await respond(ours, run_id, "accept")
    again = await respond(ours, run_id, "accept")
    second = await respond(ours, run_id, "accept", BEN)

    assert (first, again, second) == ("waiting-approval", "waiting-approval", "completed")


async def test_a_gate_that_names_its_approvers_forbids_others(ours: Bench) -> None:
    run_id = await waiting_run(ours, approversList=["ben"])
    before = await ours.types(run_id)

    with pytest.raises(Forbidden):
        await respond(ours, run_id, "accept")

    assert await ours.types(run_id) == before
    [item] = await inbox(ours, run_id)
    assert not may_resolve("approval", item["data"], ANN)
    assert may_resolve("approval", item["data"], BEN)


async def test_an_invalid_response_does_not_change_the_run(ours: Bench) -> None:
    run_id = await waiting_run(ours)
    before = await ours.types(run_id)

    with pytest.raises(Refused):
        await respond(ours, run_id, "perhaps")

    assert await ours.types(run_id) == before


async def test_a_node_that_does_not_wait_accepts_no_response(ours: Bench) -> None:
    run_id = await ours.create(await ours.register([node("gate")]))

    with pytest.raises(NotFound) as refused:
        await respond(ours, run_id, "accept")

    assert refused.value.code == "interrupt_not_found"


async def test_a_response_is_in_the_audit_log_with_its_author(ours: Bench) -> None:
    run_id = await waiting_run(ours)
    await respond(ours, run_id, "accept")

    entries = await ours.host.store.audit_page(TENANT, None, 100)

    actions = [msgspec.json.decode(entry.body) for entry in entries]
    [resolved] = [entry for entry in actions if entry["action"] == "interrupt.resolve"]
    assert (resolved["principal"], resolved["resource"]) == ("ann", run_id)


async def test_a_rejected_gate_fails_its_node(ours: Bench) -> None:
    run_id = await waiting_run(ours)

    status = await respond(ours, run_id, "reject")

    assert status == "failed"
    assert "approval.received" in await ours.types(run_id)


async def test_a_wait_whose_time_is_over_fails_its_node(ours: Bench) -> None:
    run_id = await waiting_run(ours, timeoutMs=60_000)

    ours.clock.now += 60_000
    await ours.wake(run_id)

    [failed] = [event for event in await ours.log(run_id) if event.type == "node.failed"]
    assert failed.payload["error"]["code"] == "interrupt_timeout"


async def test_a_wait_of_a_cancelled_run_takes_no_response(ours: Bench) -> None:
    run_id = await waiting_run(ours)
    await ours.host.commands.cancel(TENANT, run_id, "enough")

    with pytest.raises(Unprocessable) as refused:
        await respond(ours, run_id, "accept")

    assert refused.value.code == "interrupt_cancelled"


async def test_a_token_resolves_no_gate_that_names_its_approvers(ours: Bench) -> None:
    run_id = await waiting_run(ours, approversList=["ann"])
    bearer = Resolver(name="ann", role="admin", by_token=True)

    with pytest.raises(Forbidden, match="token"):
        await respond(ours, run_id, "accept", bearer)


async def test_a_response_to_another_interrupt_of_the_node_is_refused(ours: Bench) -> None:
    run_id = await waiting_run(ours)

    with pytest.raises(Conflict) as refused:
        await ours.host.commands.resolve_interrupt(
            TENANT, run_id, "gate", {"action": "accept"}, ANN, interrupt_id="int-other"
        )

    assert refused.value.code == "interrupt_already_resolved"
