from __future__ import annotations

from itertools import pairwise

import pytest

from tests.support.client import Wire
from tests.support.definitions import workflow
from tests.support.host import ACME
from tests.support.interrupts import (
    accepted,
    answer,
    events,
    gate,
    inbox,
    payload,
    principal_of,
    refused,
    token_of,
    waiting_run,
)
from tests.support.recorder import Recorder
from wopr.protocol.documents import Json, JsonObject

KINDS = ("conversation.opened", "conversation.exchanged", "conversation.closed")
FIXTURES = [
    "conformance-conversation-lifecycle",
    "conformance-conversation-vs-clarification",
    "conformance-conversation-replay",
]
CHANNEL = {"conversation": {"schema": {"type": "array"}, "reducer": "message"}}


def say(content: Json) -> JsonObject:
    return {"operation": "exchange", "turn": {"content": content}}


def close(**more: Json) -> JsonObject:
    return {"operation": "close"} | more


def convo(wire: Wire, config: dict[str, Json] | None = None, **fields: Json) -> str:
    return waiting_run(wire, gate("convo", "core.conversationGate", **(config or {})), **fields)


def spoken(wire: Wire, run_id: str) -> list[JsonObject]:
    return [event for event in wire.log(run_id) if event["type"] in KINDS]


def turns(wire: Wire, run_id: str) -> list[JsonObject]:
    found: list[JsonObject] = []
    for event in spoken(wire, run_id):
        said = event["payload"]
        found.append(said.get("initialTurn") or said.get("turn") or said["finalTurn"])
    return found


# The fixtures


@pytest.mark.parametrize("workflow_id", FIXTURES)
def test_a_conversation_opens_and_closes_with_one_id_and_no_event_follows(
    fixtures: Wire, workflow_id: str
) -> None:
    run_id = str(fixtures.run(workflow_id)["runId"])

    said = spoken(fixtures, run_id)

    assert fixtures.snapshot(run_id)["status"] == "completed"
    assert len({event["payload"]["conversationId"] for event in said}) == 1
    assert [event["type"] for event in said][:1] == ["conversation.opened"]
    assert [event["type"] for event in said][-1:] == ["conversation.closed"]
    assert not [kind for kind in fixtures.types(run_id) if kind.startswith("clarification.")]


@pytest.mark.parametrize("workflow_id", FIXTURES)
def test_every_turn_has_the_published_form(fixtures: Wire, workflow_id: str) -> None:
    run_id = str(fixtures.run(workflow_id)["runId"])
    recorder = Recorder()

    for turn in turns(fixtures, run_id):
        recorder.check("conversation-turn.schema.json", turn)
    for event in spoken(fixtures, run_id):
        recorder.check("conversation-event.schema.json", event["payload"])

    assert recorder.seen


def test_turns_are_counted_one_by_one_and_stored_in_the_channel(fixtures: Wire) -> None:
    run_id = str(fixtures.run("conformance-conversation-replay")["runId"])

    said = turns(fixtures, run_id)

    assert [turn["turnIndex"] for turn in said] == [0, 1, 2, 3, 4]
    assert [turn["role"] for turn in said] == ["agent", "user", "user", "user", "system"]
    assert fixtures.snapshot(run_id)["channels"]["conversation"] == said
    assert len({turn["messageId"] for turn in said}) == len(said)


def test_no_two_conversations_of_a_tenant_share_an_id(fixtures: Wire) -> None:
    runs = [str(fixtures.run("conformance-conversation-lifecycle")["runId"]) for _ in range(3)]

    ids = [payload(fixtures, run_id, "conversation.opened")["conversationId"] for run_id in runs]

    assert len(set(ids)) == 3


# With a person


def test_a_conversation_waits_for_approval_until_it_is_closed(acme: Wire) -> None:
    run_id = convo(acme, {"prompt": "What now?"})

    statuses = [accepted(acme, run_id, "convo", say(text)) for text in ("first", "second")]
    closed = accepted(acme, run_id, "convo", close(outcome={"agreed": True}))

    assert statuses == ["waiting-approval", "waiting-approval"]
    assert closed == "completed"
    assert acme.snapshot(run_id)["outputs"] == {"convo": {"outcome": {"agreed": True}}}
    assert acme.types(run_id) == [
        "run.started",
        "node.started",
        "node.suspended",
        "interrupt.requested",
        "conversation.opened",
        "conversation.exchanged",
        "conversation.exchanged",
        "conversation.closed",
        "interrupt.resolved",
        "node.resumed",
        "node.completed",
        "run.completed",
    ]


def test_the_opening_is_caused_by_the_suspension_and_each_turn_by_the_previous_one(
    acme: Wire,
) -> None:
    run_id = convo(acme)
    for value in (say("one"), say("two"), close()):
        accepted(acme, run_id, "convo", value)

    said = spoken(acme, run_id)

    [suspended] = events(acme, run_id, "node.suspended")
    assert suspended["payload"]["reason"] == "conversation-input"
    assert suspended["payload"]["kind"] == "conversation.exchange"
    assert said[0]["causationId"] == suspended["eventId"]
    assert all(after["causationId"] == before["eventId"] for before, after in pairwise(said))


def test_the_first_turn_is_the_agent_s_and_the_others_name_their_author(acme: Wire) -> None:
    run_id = convo(acme, {"prompt": "What now?"})
    accepted(acme, run_id, "convo", say("go"))

    first, second = turns(acme, run_id)

    assert (first["role"], first["content"], first["turnIndex"]) == ("agent", "What now?", 0)
    assert first["speakerId"].startswith("host:")
    assert (second["role"], second["from"], second["content"]) == ("user", "user", "go")
    assert second["speakerId"] == principal_of(ACME)
    assert second["messageId"] == f"{first['messageId'].removesuffix(':0:agent')}:1:user"


def test_a_turn_must_satisfy_the_schema_declared_at_the_opening(acme: Wire) -> None:
    schema = {"type": "object", "required": ["text"]}
    run_id = convo(acme, {"turnSchema": schema})

    bad = answer(acme, run_id, "convo", say("bare"))

    assert (bad.status_code, bad.json()["error"]) == (400, "validation_error")
    assert payload(acme, run_id, "conversation.opened")["schema"] == schema
    assert payload(acme, run_id, "interrupt.requested")["data"]["outcomeSchema"] == schema
    assert len(spoken(acme, run_id)) == 1
    assert accepted(acme, run_id, "convo", say({"text": "whole"})) == "waiting-approval"


@pytest.mark.parametrize("value", [None, {}, "hello", {"operation": "open"}, {"turn": 1}])
def test_an_invalid_turn_does_not_change_the_conversation(acme: Wire, value: Json) -> None:
    run_id = convo(acme)

    assert refused(acme, run_id, "convo", value) == (400, "validation_error")
    assert len(spoken(acme, run_id)) == 1


def test_after_the_close_a_turn_is_invalid_and_another_close_is_late(acme: Wire) -> None:
    run_id = convo(acme)
    accepted(acme, run_id, "convo", close())

    assert refused(acme, run_id, "convo", say("wait")) == (400, "validation_error")
    assert refused(acme, run_id, "convo", close()) == (409, "interrupt_already_resolved")
    assert acme.types(run_id)[-1] == "run.completed"


def test_a_conversation_is_one_wait_with_one_token_and_one_inbox_item(
    acme: Wire, anonymous: Wire
) -> None:
    run_id = convo(acme, {"prompt": "What now?"})
    token = token_of(acme, run_id)
    anonymous.post(f"/v1/interrupts/{token}", {"resumeValue": say("one")})

    [item] = inbox(acme, runId=run_id)

    assert (item["kind"], item["question"]) == ("conversation.exchange", "What now?")
    assert set(item["answers"]) == {"exchange", "close"}
    closed = anonymous.post(f"/v1/interrupts/{token}", {"resumeValue": close()})
    assert closed.json()["status"] == "completed"
    assert len(events(acme, run_id, "interrupt.requested")) == 1


def test_turns_are_written_to_the_conversation_channel_if_there_is_one(acme: Wire) -> None:
    run_id = convo(acme, channels=CHANNEL)
    accepted(acme, run_id, "convo", say("hello"))

    kept = acme.snapshot(run_id)["channels"]["conversation"]

    assert kept == turns(acme, run_id)


def test_only_conformance_workflows_can_answer_themselves(acme: Wire) -> None:
    scripted = workflow([gate("convo", "core.conversationGate", mockAutoResume=True)])

    response = acme.post("/v1/workflows", scripted)

    assert response.status_code == 400
    assert "mockAutoResume" in response.json()["message"]


def test_the_capability_is_advertised_and_the_negotiation_fixture_is_not(acme: Wire) -> None:
    discovery = acme.document("/.well-known/openwop")

    assert discovery["conversationPrimitive"] is True
    assert "conformance-conversation-capability-negotiation" not in discovery["fixtures"]
