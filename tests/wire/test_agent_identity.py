from __future__ import annotations

import pytest

from tests.support.agent_definitions import (
    agent_events,
    events_of,
    faults,
    mock,
    only_event,
    scripted,
    supervised,
)
from tests.support.client import Wire
from tests.support.definitions import edge, node, workflow
from wopr.protocol.documents import Json, JsonObject

ALICE: JsonObject = {
    "agentId": "vendor.acme.support.alice",
    "name": "Alice",
    "modelClass": "reasoning",
    "memoryRef": "acme/alice",
    "version": "2.1",
    "sourceManifestId": "vendor.acme.support.alice",
}
BOB: JsonObject = {"agentId": "vendor.acme.support.bob"}
CAROL: JsonObject = {"agentId": "host:carol"}


def pinned(node_id: str, agent: JsonObject, type_id: str = "core.identity") -> JsonObject:
    return node(node_id, type_id, agent=agent)


def handoffs(log: list[JsonObject]) -> list[tuple[str, str, str]]:
    return [
        (e["nodeId"], e["payload"]["fromAgentId"], e["payload"]["toAgentId"])
        for e in events_of(log, "agent.handoff")
    ]


def test_the_start_and_the_end_of_a_pinned_node_contain_its_whole_agent(acme: Wire) -> None:
    run_id = acme.create(acme.register(workflow([pinned("work", ALICE)])))
    acme.finished(run_id)

    log = acme.log(run_id)

    assert only_event(log, "node.started")["payload"]["agent"] == ALICE
    assert only_event(log, "node.completed")["payload"]["agent"] == ALICE


def test_a_pin_is_returned_unchanged_in_the_definition(acme: Wire) -> None:
    workflow_id = acme.register(workflow([pinned("work", ALICE)]))

    assert acme.document(f"/v1/workflows/{workflow_id}")["nodes"][0]["agent"] == ALICE


def test_the_snapshot_keeps_the_agent_after_the_run_has_ended(acme: Wire) -> None:
    found = acme.run(acme.register(workflow([pinned("work", ALICE)])))

    assert found["status"] == "completed"
    assert found["agent"] == ALICE


def test_the_snapshot_of_a_failed_run_keeps_the_agent_too(acme: Wire) -> None:
    found = acme.run(acme.register(workflow([pinned("work", ALICE, "core.fail")])))

    assert found["status"] == "failed"
    assert found["agent"] == ALICE


def test_the_snapshot_shows_the_agent_while_it_waits_for_a_person(acme: Wire) -> None:
    gate = node("gate", "core.approvalGate", agent=BOB, config={"title": "Go on?"})
    run_id = acme.create(acme.register(workflow([pinned("work", ALICE), gate])))
    acme.events_until(run_id, "interrupt.requested")

    assert acme.snapshot(run_id)["agent"] == BOB


def test_a_run_without_agents_shows_none(acme: Wire) -> None:
    found = acme.run(acme.register(workflow([node("work")])))

    assert not {"agent", "runOrchestrator"} & found.keys()


def test_a_supervisor_is_the_orchestrator_and_not_the_worker(acme: Wire) -> None:
    found = acme.run(acme.register(supervised({"kind": "terminate"}, agent=CAROL)))

    assert found["runOrchestrator"] == CAROL
    assert "agent" not in found


def test_orchestrator_and_worker_are_shown_side_by_side(acme: Wire) -> None:
    definition = supervised({"kind": "terminate"}, agent=CAROL)
    definition["nodes"].append(pinned("after", ALICE))
    definition["edges"] = [*definition["edges"], edge("dispatch", "after")]

    found = acme.run(acme.register(definition))

    assert found["runOrchestrator"] == CAROL
    assert found["agent"] == ALICE


def test_a_hand_off_inside_a_node_makes_the_receiver_the_run_s_agent(acme: Wire) -> None:
    hand_over = mock("actor", ALICE, mockHandoff={"toAgentId": BOB["agentId"]})

    found = acme.run(acme.register(scripted([hand_over])))

    assert found["agent"] == BOB


def test_control_is_handed_off_between_agents_before_the_receiver_starts(
    acme: Wire,
) -> None:
    definition = workflow([pinned("first", ALICE), pinned("second", BOB)])
    run_id = acme.create(acme.register(definition))
    acme.finished(run_id)

    log = acme.log(run_id)

    assert handoffs(log) == [("second", ALICE["agentId"], BOB["agentId"])]
    at = log.index(only_event(log, "agent.handoff"))
    assert (log[at + 1]["type"], log[at + 1]["nodeId"]) == ("node.started", "second")


def test_the_engine_hands_off_from_the_current_agent(acme: Wire) -> None:
    hand_over = mock("first", ALICE, mockHandoff={"toAgentId": CAROL["agentId"]})
    run_id = acme.create(acme.register(scripted([hand_over, pinned("second", BOB)])))
    acme.finished(run_id)

    assert handoffs(acme.log(run_id)) == [
        ("first", ALICE["agentId"], CAROL["agentId"]),
        ("second", CAROL["agentId"], BOB["agentId"]),
    ]


def test_where_branches_join_each_agent_hands_off(acme: Wire) -> None:
    definition = workflow(
        [pinned("left", ALICE), pinned("right", CAROL), pinned("join", BOB)],
        edges=[edge("left", "join"), edge("right", "join")],
    )
    run_id = acme.create(acme.register(definition))
    acme.finished(run_id)

    assert handoffs(acme.log(run_id)) == [
        ("join", ALICE["agentId"], BOB["agentId"]),
        ("join", CAROL["agentId"], BOB["agentId"]),
    ]


@pytest.mark.parametrize(
    "nodes",
    [
        [pinned("first", ALICE), pinned("second", ALICE)],
        [pinned("first", ALICE), node("second")],
        [node("first"), pinned("second", ALICE)],
        [pinned("first", ALICE), node("between"), pinned("second", BOB)],
    ],
    ids=["same agent", "to an unpinned node", "from an unpinned node", "through an unpinned node"],
)
def test_nothing_is_handed_off_without_two_known_agents(
    acme: Wire, nodes: list[JsonObject]
) -> None:
    run_id = acme.create(acme.register(workflow(nodes)))
    acme.finished(run_id)

    assert agent_events(acme.log(run_id)) == []


def test_a_retried_node_is_not_handed_off_again(acme: Wire) -> None:
    retry = {"maxRetries": 2, "backoff": {"initialMs": 1}}
    fails = node("second", "core.fail", agent=BOB, settings=retry)
    run_id = acme.create(acme.register(workflow([pinned("first", ALICE), fails])))
    acme.finished(run_id)

    log = acme.log(run_id)

    assert len(events_of(log, "node.retried")) == 2
    assert len(handoffs(log)) == 1


@pytest.mark.parametrize(
    ("fields", "at"),
    [
        ({"version": "1", "channel": "stable"}, "nodes.0.agent"),
        ({"channel": "stable"}, "nodes.0.agent.channel"),
        ({"agentId": "ab"}, "nodes.0.agent.agentId"),
        ({"agentId": "x" * 257}, "nodes.0.agent.agentId"),
        ({"modelClass": "writing"}, "nodes.0.agent.modelClass"),
        ({"memoryRef": ""}, "nodes.0.agent.memoryRef"),
        ({"version": "x" * 65}, "nodes.0.agent.version"),
        ({"agentSharing": "isolated"}, "nodes.0.agent.agentSharing"),
    ],
    ids=["version and channel", "channel", "short", "long", "class", "memory", "pin", "closed"],
)
def test_an_invalid_agent_reference_is_refused_by_place(
    acme: Wire, fields: JsonObject, at: str
) -> None:
    found = faults(acme, workflow([pinned("work", BOB | fields)]))

    assert list(found) == [at]


def test_a_channel_is_refused_with_the_missing_capability(acme: Wire) -> None:
    found = faults(acme, workflow([pinned("work", BOB | {"channel": "stable"})]))

    assert "agents.deployment" in found["nodes.0.agent.channel"]
    assert "deployment" not in acme.document("/.well-known/openwop")["agents"]


@pytest.mark.parametrize("agent_id", ["host:a2a:peer:x", "core.chat", "did:web:acme", "abc"])
def test_a_reader_accepts_any_agent_id_of_the_right_length(acme: Wire, agent_id: Json) -> None:
    found = acme.run(acme.register(workflow([pinned("work", {"agentId": agent_id})])))

    assert found["agent"] == {"agentId": agent_id}
