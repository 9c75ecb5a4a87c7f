from __future__ import annotations

import anyio
import pytest
from mcp import MCPError
from mcp_types import ElicitResult, InputRequiredResult, InputResponses

from tests.mcp.conftest import NewHost
from tests.support.client import Wire
from tests.support.definitions import node, workflow
from tests.support.host import ACME, DEVELOPER, GLOBEX, LIVE, ServedHost
from tests.support.interrupts import ACCEPT, accepted, principal_of
from tests.support.mcp_clients import MODES, Person, SilentPerson, connected, run_of, text_of
from wopr.protocol.documents import JsonObject

pytestmark = pytest.mark.anyio
APPROVAL = "conformance-approval"


def gate(**config: object) -> JsonObject:
    """Return a workflow with one gate."""
    shown: JsonObject = {"title": "Send it?", "actions": ["accept", "reject"]}
    return workflow([node("gate", "core.approvalGate", config=shown | config)])


def yes() -> Person:
    return Person("accept", {"action": "accept", "reason": "looks right"})


@pytest.mark.parametrize("mode", MODES)
async def test_a_run_that_waits_for_approval_asks_the_person_and_continues(
    host: ServedHost, acme: Wire, mode: str
) -> None:
    person = yes()

    async with connected(host.url, mode=mode, person=person) as client:
        result = await client.call_tool(APPROVAL, {})

    assert not result.is_error
    [asked] = person.asked
    assert "May this run go on?" in asked.message
    assert asked.requested_schema["properties"]["action"]["enum"] == ["accept", "reject"]
    log = acme.log(run_of(result))
    [received] = [e["payload"] for e in log if e["type"] == "approval.received"]
    assert received["decidedBy"] == principal_of(ACME)
    assert received["feedback"] == "looks right"
    assert acme.snapshot(run_of(result))["status"] == "completed"


@pytest.mark.parametrize("mode", MODES)
async def test_a_person_s_rejection_fails_the_run(host: ServedHost, acme: Wire, mode: str) -> None:
    person = Person("accept", {"action": "reject"})

    async with connected(host.url, mode=mode, person=person) as client:
        result = await client.call_tool(APPROVAL, {})

    assert result.is_error
    assert result.structured_content["error"]["code"] == "interrupt_rejected"
    assert acme.snapshot(run_of(result))["status"] == "failed"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_declined_or_cancelled_form_answers_nothing(
    host: ServedHost, acme: Wire, mode: str, action: str
) -> None:
    person = Person("decline" if action == "decline" else "cancel")

    async with connected(host.url, mode=mode, person=person) as client:
        result = await client.call_tool(APPROVAL, {})

    assert not result.is_error
    assert len(person.asked) == 1
    assert result.structured_content["status"] == "waiting-approval"
    assert acme.snapshot(run_of(result))["status"] == "waiting-approval"


async def test_a_person_with_an_older_client_who_never_answers_is_not_waited_for(
    new_host: NewHost,
) -> None:
    # Enough for a busy machine to reach the question.
    host = new_host("--conformance", WOPR_MCP_CALL_SECONDS="10")
    asleep = SilentPerson("cancel")

    async with connected(host.url, mode="legacy", person=asleep) as client:
        with anyio.fail_after(60):
            result = await client.call_tool(APPROVAL, {})

    assert len(asleep.asked) == 1
    assert not result.is_error
    assert result.structured_content["status"] == "waiting-approval"


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_without_elicitation_gets_the_waiting_node_and_where_to_answer(
    host: ServedHost, acme: Wire, mode: str
) -> None:
    async with connected(host.url, mode=mode) as client:
        result = await client.call_tool(APPROVAL, {})

    run_id = run_of(result)
    [waits] = result.structured_content["interrupts"]
    assert not result.is_error
    assert result.structured_content["runId"] == run_id
    assert (waits["kind"], waits["nodeId"]) == ("approval", "gate")
    assert waits["answerUrl"] == f"/v1/runs/{run_id}/interrupts/gate"
    assert waits["answerUrl"] in text_of(result)
    assert accepted(acme, run_id, "gate", ACCEPT) == "completed"


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_without_the_right_to_answer_is_not_asked(
    host: ServedHost, acme: Wire, mode: str
) -> None:
    named = acme.register(gate(approversList=[principal_of(LIVE)]))
    person = yes()

    async with connected(host.url, DEVELOPER, mode=mode, person=person) as client:
        without_scope = await client.call_tool(APPROVAL, {})
    async with connected(host.url, ACME, mode=mode, person=person) as client:
        not_named = await client.call_tool(named, {})

    assert person.asked == []
    for result in (without_scope, not_named):
        assert acme.snapshot(run_of(result))["status"] == "waiting-approval"


async def test_a_gate_for_two_votes_accepts_one_vote_of_one_client(
    host: ServedHost, acme: Wire
) -> None:
    name = acme.register(gate(requiredApprovals=2))
    person = yes()

    async with connected(host.url, person=person) as client:
        result = await client.call_tool(name, {})

    assert len(person.asked) == 1
    assert result.structured_content["status"] == "waiting-approval"


@pytest.mark.parametrize("mode", MODES)
async def test_questions_are_fields_of_one_form_and_answered_together(
    host: ServedHost, acme: Wire, mode: str
) -> None:
    person = Person("accept", {"q1": "blue"})

    async with connected(host.url, mode=mode, person=person) as client:
        result = await client.call_tool("conformance-clarification", {})

    [asked] = person.asked
    assert asked.requested_schema["properties"]["q1"]["title"] == "What is your favorite color?"
    assert acme.snapshot(run_of(result))["status"] == "completed"
    log = acme.log(run_of(result))
    [resolved] = [e["payload"] for e in log if e["type"] == "clarification.resolved"]
    assert resolved["answers"] == {"q1": "blue"}


async def test_an_answer_refused_by_the_gate_leaves_it_open(host: ServedHost, acme: Wire) -> None:
    person = Person("accept", {"action": "edit-accept"})

    async with connected(host.url, person=person) as client:
        result = await client.call_tool(APPROVAL, {})

    assert result.is_error
    assert result.structured_content["error"]["code"] == "validation_error"
    assert result.structured_content["runId"] == run_of(result)
    assert acme.snapshot(run_of(result))["status"] == "waiting-approval"


async def test_a_question_to_one_client_cannot_be_answered_by_another(
    host: ServedHost, acme: Wire
) -> None:
    async with connected(host.url, person=yes()) as client:
        asked = await client.session.call_tool(APPROVAL, {}, allow_input_required=True)
    assert isinstance(asked, InputRequiredResult)
    answer: InputResponses = {"answer": ElicitResult(action="accept", content={"action": "accept"})}

    for key in (LIVE, GLOBEX):
        async with connected(host.url, key, person=yes()) as stranger:
            with pytest.raises(MCPError) as refused:
                await stranger.session.call_tool(
                    APPROVAL, {}, input_responses=answer, request_state=asked.request_state
                )
            assert "requestState" in refused.value.message

    [waits] = acme.document("/v1/interrupts", params={"limit": 1})["items"]
    assert waits["kind"] == "approval"
