from __future__ import annotations

from itertools import pairwise

import pytest

from tests.support.agent_definitions import (
    CHAIN,
    DONE,
    answer,
    child,
    children,
    decision_kinds,
    events_of,
    mock,
    next_worker,
    only_event,
    phases,
    supervised,
    waiting_run,
)
from tests.support.client import Wire
from tests.support.definitions import delay, from_variable, node, variable
from wopr.protocol.documents import Json, JsonObject

FAILS = "conformance-dispatch-deterministic-fail-child"
LASTS = "conformance-dispatch-cancellable-child"
SENTINEL = "this-should-not-be-harvested"
HARVEST: JsonObject = {"outputMapping": {"parentResult": "childOutcome"}}
ASK: JsonObject = {"kind": "ask-user", "prompt": "Which colour?"}
RESULT = [variable("parentResult", defaultValue="untouched")]


def ran(wire: Wire, definition: JsonObject, **body: Json) -> tuple[JsonObject, list[JsonObject]]:
    run_id = wire.create(wire.register(definition), **body)
    found = wire.finished(run_id)
    return found, wire.log(run_id)


# Children


def test_a_child_is_announced_once_when_it_is_created(acme: Wire) -> None:
    _, log = ran(acme, supervised(next_worker("conformance-noop"), DONE))

    dispatched = only_event(log, "node.dispatched")
    assert dispatched["nodeId"] == "dispatch"
    assert dispatched["payload"].keys() == {"childRunId", "childWorkflowId"}
    assert dispatched["payload"]["childWorkflowId"] == "conformance-noop"


def test_parent_and_child_name_each_other(acme: Wire) -> None:
    found, log = ran(acme, supervised(next_worker("conformance-noop"), DONE))
    (child_id,) = children(log)

    born = acme.snapshot(child_id)

    assert (born["parentRunId"], born["parentNodeId"]) == (found["runId"], "dispatch")
    assert [(c["runId"], c["status"]) for c in found["childRuns"]] == [(child_id, "completed")]


def test_children_of_every_turn_are_listed_in_the_order_of_creation(acme: Wire) -> None:
    worker = next_worker("conformance-noop", "conformance-noop")
    found, log = ran(acme, supervised(worker, worker, DONE))

    assert len(children(log)) == 4
    assert [each["runId"] for each in found["childRuns"]] == children(log)


def test_a_child_belongs_to_its_parent_s_tenant(acme: Wire, globex: Wire) -> None:
    _, log = ran(acme, supervised(next_worker("conformance-noop"), DONE))

    assert acme.snapshot(children(log)[0])["status"] == "completed"
    assert globex.get(f"/v1/runs/{children(log)[0]}").status_code == 404


def test_every_event_of_dispatch_is_caused_by_the_decision(acme: Wire) -> None:
    _, log = ran(acme, supervised(next_worker("conformance-noop"), DONE))
    first, last = events_of(log, "runOrchestrator.decided")
    completed = [e for e in events_of(log, "node.completed") if e["nodeId"] == "dispatch"]

    assert only_event(log, "node.dispatched")["causationId"] == first["eventId"]
    assert [e["causationId"] for e in completed] == [first["eventId"], last["eventId"]]


# The chain of a hand-off


def test_a_harvested_child_leaves_a_chain_of_four_events(acme: Wire) -> None:
    worker = acme.register(child(variables=[variable("childOutcome", defaultValue="done")]))
    definition = supervised(next_worker(worker), DONE, dispatch=HARVEST, variables=RESULT)
    found, log = ran(acme, definition)

    chain = events_of(log, CHAIN)
    (child_id,) = children(log)
    link = {"workerId": worker, "parentRunId": found["runId"]}
    born = link | {"childRunId": child_id}
    assert [event["payload"] for event in chain] == [
        {"phase": "dispatch.began", **link},
        {"phase": "dispatch.succeeded", **born},
        {"phase": "child.completed", **born},
        {"phase": "output.harvested", **born, "harvestedKeys": ["parentResult"]},
    ]
    causes = [events_of(log, "runOrchestrator.decided")[0], *chain[:-1]]
    assert [event["causationId"] for event in chain] == [cause["eventId"] for cause in causes]
    assert {event["nodeId"] for event in chain} == {"dispatch"}
    assert found["variables"]["parentResult"] == "done"


def test_the_child_is_created_between_the_first_two_events_of_the_chain(acme: Wire) -> None:
    _, log = ran(acme, supervised(next_worker("conformance-noop"), DONE))

    began, succeeded, _ = events_of(log, CHAIN)
    dispatched = only_event(log, "node.dispatched")["sequence"]
    assert began["sequence"] < dispatched < succeeded["sequence"]


def test_without_a_mapping_nothing_is_harvested(acme: Wire) -> None:
    _, log = ran(acme, supervised(next_worker("conformance-noop"), DONE))

    assert phases(log) == ["dispatch.began", "dispatch.succeeded", "child.completed"]


def test_a_terminate_decision_starts_no_chain(acme: Wire) -> None:
    _, log = ran(acme, supervised(DONE))

    assert events_of(log, CHAIN) == []
    assert children(log) == []


# Several workers


def test_a_worker_has_ended_before_the_next_one_is_created(acme: Wire) -> None:
    slow = acme.register(child(delay("wait", 30)))
    found, log = ran(acme, supervised(next_worker(slow, slow, slow), DONE))

    assert found["status"] == "completed"
    lives = [acme.snapshot(child_id) for child_id in children(log)]
    for one, following in pairwise(lives):
        assert one["endedAt"] <= following["startedAt"]
    assert phases(log) == ["dispatch.began", "dispatch.succeeded", "child.completed"] * 3


def test_the_next_worker_is_not_created_while_one_runs(acme: Wire) -> None:
    asks = acme.register(child(node("gate", "core.approvalGate", config={"title": "Go on?"})))
    run_id = acme.create(acme.register(supervised(next_worker(asks, asks), DONE)))
    log = acme.events_until(run_id, "node.dispatched")
    acme.events_until(children(log)[0], "interrupt.requested")

    assert len(acme.snapshot(run_id)["childRuns"]) == 1
    answer(acme, children(log)[0], "gate", {"action": "accept"})
    log = acme.events_until(run_id, "node.dispatched", times=2)

    assert acme.snapshot(children(log)[0])["status"] == "completed"
    acme.post(f"/v1/runs/{run_id}/cancel")


def test_dispatch_reports_its_last_child(acme: Wire) -> None:
    definition = supervised(next_worker("conformance-noop", FAILS), DONE)
    _, log = ran(acme, definition)

    outputs = [
        e["payload"]["outputs"]
        for e in events_of(log, "node.completed")
        if e["nodeId"] == "dispatch"
    ]
    assert outputs[0] == {"childRunId": children(log)[-1], "childStatus": "failed"}


def test_a_reject_policy_refuses_more_than_one_worker(acme: Wire) -> None:
    two = next_worker("conformance-noop", "conformance-noop")
    found, log = ran(acme, supervised(two, dispatch={"fanOutPolicy": "reject"}))

    assert found["status"] == "failed"
    assert found["error"]["code"] == "fan_out_unsupported"
    assert children(log) == []
    one = next_worker("conformance-noop")
    found, _ = ran(acme, supervised(one, DONE, dispatch={"fanOutPolicy": "reject"}))
    assert found["status"] == "completed"


# Failures


def test_an_unknown_worker_fails_dispatch_and_is_recorded_in_the_chain(acme: Wire) -> None:
    found, log = ran(acme, supervised(next_worker("no-such-workflow"), DONE))

    assert found["status"] == "failed"
    assert found["error"]["code"] == "unknown_child_workflow"
    began, failed = events_of(log, CHAIN)
    assert failed["payload"]["phase"] == "dispatch.failed"
    assert failed["payload"]["error"]["code"] == "unknown_child_workflow"
    assert failed["causationId"] == began["eventId"]
    assert "childRunId" not in failed["payload"]
    assert children(log) == []


def test_another_tenant_s_workflow_is_an_unknown_worker(acme: Wire, globex: Wire) -> None:
    foreign = globex.register(child())
    found, _ = ran(acme, supervised(next_worker(foreign), DONE))

    assert found["error"]["code"] == "unknown_child_workflow"


def test_inputs_refused_by_a_worker_fail_its_dispatch(acme: Wire) -> None:
    picky = acme.register(child(variables=[variable("count", "number", required=True)]))
    found, log = ran(acme, supervised(next_worker(picky), DONE))

    assert found["status"] == "failed"
    assert found["error"]["code"] == "validation_error"
    assert phases(log) == ["dispatch.began", "dispatch.failed"]


def test_a_failed_child_gives_the_supervisor_another_turn(acme: Wire) -> None:
    definition = supervised(next_worker(FAILS), DONE, dispatch=HARVEST, variables=RESULT)
    found, log = ran(acme, definition)

    assert found["status"] == "completed"
    assert decision_kinds(log) == ["next-worker", "terminate"]
    ended = events_of(log, CHAIN)[-1]
    assert ended["payload"]["phase"] == "child.failed"
    assert ended["payload"]["error"]["code"] == "hvmap_1b_failed_fixture"
    assert ended["causationId"] == events_of(log, CHAIN)[1]["eventId"]


def test_a_failed_child_is_not_harvested(acme: Wire) -> None:
    definition = supervised(next_worker(FAILS), DONE, dispatch=HARVEST, variables=RESULT)
    found, log = ran(acme, definition)

    assert acme.snapshot(children(log)[0])["variables"]["childOutcome"] == SENTINEL
    assert found["variables"]["parentResult"] == "untouched"
    assert "output.harvested" not in phases(log)


def test_the_workers_after_a_failed_one_are_still_started(acme: Wire) -> None:
    _, log = ran(acme, supervised(next_worker(FAILS, "conformance-noop"), DONE))

    assert [p for p in phases(log) if p.startswith("child.")] == ["child.failed", "child.completed"]


def test_a_cancelled_child_returns_to_the_supervisor_without_a_harvest(acme: Wire) -> None:
    definition = supervised(next_worker(LASTS), DONE, dispatch=HARVEST, variables=RESULT)
    run_id = acme.create(acme.register(definition))
    (child_id,) = children(acme.events_until(run_id, "node.dispatched"))
    acme.events_until(child_id, "node.started")
    acme.post(f"/v1/runs/{child_id}/cancel")

    found = acme.finished(run_id)

    assert found["status"] == "completed"
    assert found["variables"]["parentResult"] == "untouched"
    log = acme.log(run_id)
    assert phases(log) == ["dispatch.began", "dispatch.succeeded", "child.cancelled"]
    assert decision_kinds(log) == ["next-worker", "terminate"]
    cancelled = only_event(acme.log(child_id), "run.cancelled")["payload"]
    assert "parentRunId" not in cancelled


def test_cancelling_the_parent_cancels_the_current_child(acme: Wire) -> None:
    run_id = acme.create(acme.register(supervised(next_worker(LASTS), DONE)))
    (child_id,) = children(acme.events_until(run_id, "node.dispatched"))
    acme.post(f"/v1/runs/{run_id}/cancel")

    assert acme.finished(child_id)["status"] == "cancelled"
    assert only_event(acme.log(child_id), "run.cancelled")["payload"] == {
        "reason": "parent-cancelled",
        "parentRunId": run_id,
    }
    assert acme.finished(run_id)["status"] == "cancelled"


def test_a_parent_shows_that_its_child_waits_for_a_person(acme: Wire) -> None:
    asks = acme.register(child(node("gate", "core.approvalGate", config={"title": "Go on?"})))
    run_id = acme.create(acme.register(supervised(next_worker(asks), DONE)))
    (child_id,) = children(acme.events_until(run_id, "node.dispatched"))
    acme.events_until(child_id, "interrupt.requested")

    assert acme.snapshot(run_id)["status"] == "waiting-approval"
    answer(acme, child_id, "gate", {"action": "accept"})
    assert acme.finished(run_id)["status"] == "completed"


# Agents of workers


def test_dispatch_hands_off_to_a_worker_s_agent_and_from_worker_to_worker(acme: Wire) -> None:
    workers = [
        acme.register(child(node("work", "core.identity", agent={"agentId": f"host:{name}"})))
        for name in ("alice", "bob", "bob")
    ]
    boss = {"agentId": "host:boss"}
    _, log = ran(acme, supervised(next_worker(*workers), DONE, agent=boss))

    handed = events_of(log, "agent.handoff")
    assert [event["payload"] for event in handed] == [
        {"fromAgentId": "host:boss", "toAgentId": "host:alice"},
        {"fromAgentId": "host:alice", "toAgentId": "host:bob"},
    ]
    decided = events_of(log, "runOrchestrator.decided")[0]["eventId"]
    assert {event["causationId"] for event in handed} == {decided}
    assert {event["nodeId"] for event in handed} == {"dispatch"}


def workers_of(wire: Wire, *names: str) -> list[str]:
    """Return workers whose entry nodes are pinned to these agents; an empty name is no agent."""
    pins = [{"agent": {"agentId": f"host:{name}"}} if name else {} for name in names]
    return [wire.register(child(node("work", "core.identity", **pin))) for pin in pins]


@pytest.mark.parametrize(
    ("agents", "turns", "expected"),
    [
        ("ab", "0 1", [("boss", "a"), ("a", "b")]),
        ("ab", "0 0", [("boss", "a")]),
        ("ab", "0 1 0", [("boss", "a"), ("a", "b"), ("b", "a")]),
        ("ab", "0+1 1", [("boss", "a"), ("a", "b")]),
        ("ab", "0 ask 1", [("boss", "a"), ("a", "b")]),
        ("ab", "0 ask 0", [("boss", "a")]),
    ],
    ids=[
        "another worker in the next turn",
        "the same worker again",
        "back to the first worker",
        "the last worker of a plan again",
        "another worker after a question",
        "the same worker after a question",
    ],
)
def test_a_hand_off_starts_at_the_last_worker_whatever_the_supervisor_did(
    acme: Wire, agents: str, turns: str, expected: list[tuple[str, str]]
) -> None:
    workers = workers_of(acme, *agents)
    plan = [
        ASK if turn == "ask" else next_worker(*(workers[int(place)] for place in turn.split("+")))
        for turn in turns.split()
    ]
    routing = {"askUserRouting": "clarification"}
    definition = supervised(*plan, DONE, dispatch=routing, agent={"agentId": "host:boss"})

    run_id = acme.create(acme.register(definition))
    if "ask" in turns:
        acme.events_until(run_id, "interrupt.requested")
        answer(acme, run_id, "dispatch", {"answers": {"q1": "go on"}})
    acme.finished(run_id)

    handed = [event["payload"] for event in events_of(acme.log(run_id), "agent.handoff")]
    assert handed == [
        {"fromAgentId": f"host:{sender}", "toAgentId": f"host:{receiver}"}
        for sender, receiver in expected
    ]


def test_a_worker_without_an_agent_breaks_the_chain_of_hand_offs(acme: Wire) -> None:
    first, unnamed, second = workers_of(acme, "a", "", "b")
    boss = {"agentId": "host:boss"}
    _, log = ran(
        acme,
        supervised(next_worker(first), next_worker(unnamed), next_worker(second), DONE, agent=boss),
    )

    handed = [event["payload"]["toAgentId"] for event in events_of(log, "agent.handoff")]
    assert handed == ["host:a"]


def test_a_worker_without_an_agent_gets_no_hand_off(acme: Wire) -> None:
    _, log = ran(acme, supervised(next_worker("conformance-noop"), DONE))

    assert events_of(log, "agent.handoff") == []


def test_a_child_inherits_the_agent_options(acme: Wire) -> None:
    worker = acme.register(
        child(mock("actor", mockReasoning=True, mockConfidence=0.4), id="conformance-inherits")
    )
    options = {"escalationThreshold": 0.3, "reasoningVerbosity": "off", "maxLoopIterations": 5}
    found, log = ran(acme, supervised(next_worker(worker), DONE), configurable=options)

    assert found["status"] == "completed"
    told = acme.types(children(log)[0])
    assert "agent.decided" in told
    assert "agent.reasoned" not in told


# Questions to the user


def test_ask_user_by_clarification_asks_one_question_and_passes_the_answer_on(acme: Wire) -> None:
    routing = {"askUserRouting": "clarification"}
    run_id = waiting_run(acme, acme.register(supervised(ASK, DONE, dispatch=routing)))

    assert acme.snapshot(run_id)["status"] == "waiting-input"
    asked = only_event(acme.log(run_id), "clarification.requested")["payload"]
    assert [(q["id"], q["question"]) for q in asked["questions"]] == [("q1", "Which colour?")]
    decided = only_event(acme.log(run_id), "runOrchestrator.decided")
    assert decided["sequence"] < only_event(acme.log(run_id), "clarification.requested")["sequence"]
    answer(acme, run_id, "dispatch", {"answers": {"q1": "blue"}})

    assert acme.finished(run_id)["status"] == "completed"
    log = acme.log(run_id)
    completed = [e for e in events_of(log, "node.completed") if e["nodeId"] == "dispatch"]
    assert completed[0]["payload"]["outputs"] == {"answer": "blue"}
    assert decision_kinds(log) == ["ask-user", "terminate"]
    assert events_of(log, CHAIN) == []


@pytest.mark.parametrize("routing", ["auto", "conversation"])
def test_ask_user_by_conversation_opens_with_the_prompt_and_passes_the_last_turn_on(
    acme: Wire, routing: str
) -> None:
    definition = supervised(ASK, DONE, dispatch={"askUserRouting": routing})
    run_id = acme.create(acme.register(definition))
    acme.events_until(run_id, "conversation.opened")

    log = acme.log(run_id)
    opened = only_event(log, "conversation.opened")
    assert opened["payload"]["initialTurn"]["content"] == "Which colour?"
    assert only_event(log, "runOrchestrator.decided")["sequence"] < opened["sequence"]
    assert opened["causationId"] == only_event(log, "node.suspended")["eventId"]
    assert acme.snapshot(run_id)["status"] == "waiting-approval"
    answer(acme, run_id, "dispatch", {"operation": "exchange", "turn": {"content": "Hm."}})
    answer(acme, run_id, "dispatch", {"operation": "close", "turn": {"content": "Blue."}})

    assert acme.finished(run_id)["status"] == "completed"
    log = acme.log(run_id)
    completed = [e for e in events_of(log, "node.completed") if e["nodeId"] == "dispatch"]
    assert completed[0]["payload"]["outputs"] == {"answer": "Blue."}
    assert not {e["type"] for e in log} & {"clarification.requested", "clarification.resolved"}


def test_two_consecutive_questions_are_two_waits(acme: Wire) -> None:
    again = ASK | {"prompt": "Which size?"}
    definition = supervised(ASK, again, DONE, dispatch={"askUserRouting": "clarification"})
    run_id = waiting_run(acme, acme.register(definition))
    answer(acme, run_id, "dispatch", {"answers": {"q1": "blue"}})
    acme.events_until(run_id, "interrupt.requested", times=2)
    answer(acme, run_id, "dispatch", {"answers": {"q1": "small"}})

    assert acme.finished(run_id)["status"] == "completed"
    asked = events_of(acme.log(run_id), "clarification.requested")
    assert [event["payload"]["questions"][0]["question"] for event in asked] == [
        "Which colour?",
        "Which size?",
    ]


def test_the_output_of_a_worker_reaches_the_node_after_the_loop(acme: Wire) -> None:
    worker = acme.register(child(variables=[variable("childOutcome", defaultValue="fine")]))
    definition = supervised(next_worker(worker), DONE, dispatch=HARVEST, variables=RESULT)
    definition["nodes"].append(
        node("after", "core.identity", inputs={"seen": from_variable("parentResult")})
    )
    definition["edges"] = [
        *definition["edges"],
        {"id": "out", "sourceNodeId": "dispatch", "targetNodeId": "after"},
    ]
    found, _ = ran(acme, definition)

    assert found["outputs"]["after"] == {"seen": "fine"}
