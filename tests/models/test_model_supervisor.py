"""Supervisors whose decisions are made by a model."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from tests.models.conftest import NewHost
from tests.models.model_runs import payloads
from tests.models.model_server import ModelServer
from tests.models.openai_server import OpenAiServer
from tests.models.turns import Refuse, Say, Turn
from tests.support.agent_definitions import DISPATCH, LOOP, SUPERVISOR
from tests.support.client import Wire
from tests.support.definitions import fresh, from_variable, node, variable, workflow
from wopr.protocol.documents import Json, JsonObject

PROMPT = "Answer the ticket."
BOSS = "local.acme.desk.lead"


def decides(decision: JsonObject, confidence: float = 0.9, reasoning: str = "It is due.") -> Turn:
    answer = {"answer": decision, "confidence": confidence, "reasoning": reasoning}
    return Say(json.dumps(answer))


def starts(*workers: str) -> JsonObject:
    return {"kind": "next-worker", "nextWorkerIds": list(workers)}


DONE: JsonObject = {"kind": "terminate", "reason": "answered"}


def worker(wire: Wire, **fields: Json) -> str:
    """Return a worker that answers "Monday." in its variable `answer`."""
    said = [variable("answer", defaultValue="Monday.")]
    return wire.register(workflow([node("work")], **({"variables": said} | fields)))


def supervised(model: str, workers: dict[str, str], **config: Json) -> JsonObject:
    own = {"model": model, "prompt": PROMPT, "workers": workers} | config
    lead = node("supervisor", SUPERVISOR, config=own, agent={"agentId": BOSS})
    lead["inputs"] = {"ticket": from_variable("ticket"), "reply": from_variable("reply")}
    mapping = {"outputMapping": {"reply": "answer"}}
    return workflow(
        [lead, node("dispatch", DISPATCH, config=mapping)],
        edges=LOOP,
        variables=[
            variable("ticket", defaultValue="Where is A-17?"),
            variable("reply", defaultValue=""),
        ],
    )


def run_of(
    wire: Wire,
    server: ModelServer,
    turns: Sequence[Turn],
    workers: dict[str, str],
    body: JsonObject | None = None,
    **config: Json,
) -> tuple[str, str]:
    """Start a supervised run; return the name of its model and the run's id."""
    model = server.script(turns)
    definition = supervised(f"{server.provider}:{model}", workers, **config)
    wire.register(definition)
    return model, wire.create(definition["id"], **(body or {}))


ENDS = ("run.completed", "run.failed")


def test_a_model_decides_which_worker_runs_and_when_the_run_ends(
    acme: Wire, any_server: ModelServer
) -> None:
    clerk = worker(acme)
    turns = [decides(starts(clerk), reasoning="A clerk knows."), decides(DONE)]

    model, run_id = run_of(acme, any_server, turns, {clerk: "Looks orders up."})
    log = acme.events_until(run_id, *ENDS)

    assert log[-1]["type"] == "run.completed", log[-1]
    assert payloads(log, "runOrchestrator.decided") == [
        {"agentId": BOSS, "decision": starts(clerk) | {"confidence": 0.9}},
        {"agentId": BOSS, "decision": DONE | {"confidence": 0.9}},
    ]
    assert [p["confidence"] for p in payloads(log, "agent.decided")] == [0.9, 0.9]
    assert payloads(log, "agent.reasoned")[0]["reasoning"] == "A clerk knows."
    assert len(payloads(log, "provider.usage")) == 2
    assert [p["outcome"] for p in payloads(log, "agent.invocation.completed")] == ["completed"] * 2
    assert acme.snapshot(run_id)["variables"]["reply"] == "Monday."
    assert acme.snapshot(run_id)["runOrchestrator"]["agentId"] == BOSS
    # The decision is logged before its effect.
    types = [event["type"] for event in log]
    assert types.index("runOrchestrator.decided") < types.index("node.dispatched")
    assert any_server.request_count(model) == 2


def test_the_model_receives_workers_inputs_and_results_of_its_decisions(
    acme: Wire, server: OpenAiServer
) -> None:
    clerk = worker(acme)
    model, run_id = run_of(
        acme, server, [decides(starts(clerk)), decides(DONE)], {clerk: "Looks orders up."}
    )
    acme.events_until(run_id, *ENDS)

    first, second = (server.requests[model][place]["messages"] for place in range(2))
    system, task = first[0]["content"], first[1]["content"]
    assert f"{clerk}: Looks orders up." in system
    assert PROMPT in task
    assert "Where is A-17?" in task
    again = second[1]["content"]
    assert "Monday." in again
    assert "completed" in again
    assert '"turn":1' in again


def test_an_invalid_decision_is_requested_once_more(acme: Wire, server: OpenAiServer) -> None:
    turns = [decides(starts("not-a-worker")), decides(DONE)]

    model, run_id = run_of(acme, server, turns, {worker(acme): "Works."})
    log = acme.events_until(run_id, *ENDS)

    assert log[-1]["type"] == "run.completed"
    assert len(payloads(log, "runOrchestrator.decided")) == 1
    assert server.request_count(model) == 2


def test_a_model_that_never_decides_fails_the_supervisor(acme: Wire, server: OpenAiServer) -> None:
    turns = [decides({"kind": "dance"}), decides({"kind": "ask-user"})]

    _, run_id = run_of(acme, server, turns, {worker(acme): "Works."})
    log = acme.events_until(run_id, *ENDS)

    assert log[-1]["payload"]["error"]["code"] == "envelope_payload_invalid"
    assert payloads(log, "runOrchestrator.decided") == []


def test_a_refusal_fails_the_supervisor(acme: Wire, server: OpenAiServer) -> None:
    _, run_id = run_of(acme, server, [Refuse()], {worker(acme): "Works."})
    log = acme.events_until(run_id, *ENDS)

    assert log[-1]["payload"]["error"]["code"] == "envelope_refused_by_provider"
    assert [p["outcome"] for p in payloads(log, "agent.invocation.completed")] == ["refused"]


# Confidence


def test_a_decision_below_the_threshold_is_held_and_asked_about_once(
    acme: Wire, server: OpenAiServer
) -> None:
    clerk = worker(acme)
    turns = [decides(starts(clerk), 0.4), decides(DONE)]
    model, run_id = run_of(acme, server, turns, {clerk: "Works."})
    log = acme.events_until(run_id, "interrupt.requested")

    held = payloads(log, "node.suspended")[0]
    assert held["reason"] == "low-confidence"
    assert (held["threshold"], held["observed"]) == (0.7, 0.4)
    assert acme.snapshot(run_id)["status"] == "waiting-approval"
    assert payloads(log, "runOrchestrator.decided") == []

    acme.post(f"/v1/runs/{run_id}/interrupts/supervisor", {"resumeValue": {"ratified": True}})
    log = acme.events_until(run_id, *ENDS)

    decided = payloads(log, "runOrchestrator.decided")
    # Ratified by a person: it has no low confidence that the floor would ask about again.
    assert decided[0]["decision"] == starts(clerk)
    assert log[-1]["type"] == "run.completed"
    assert server.request_count(model) == 2


def test_a_person_can_replace_or_reject_the_decision(acme: Wire, server: OpenAiServer) -> None:
    clerk = worker(acme)
    ended: list[JsonObject] = []
    for value in ({"decision": DONE}, {"rejected": True}):
        _, run_id = run_of(acme, server, [decides(starts(clerk), 0.4)], {clerk: "Works."})
        acme.events_until(run_id, "interrupt.requested")
        acme.post(f"/v1/runs/{run_id}/interrupts/supervisor", {"resumeValue": value})
        ended.append(acme.events_until(run_id, *ENDS)[-1])

    assert ended[0]["type"] == "run.completed"
    assert ended[1]["payload"]["error"]["code"] == "decision_rejected"


def test_a_decision_between_the_threshold_and_the_floor_waits_at_the_floor(
    acme: Wire, server: OpenAiServer
) -> None:
    clerk = worker(acme)
    options: JsonObject = {"configurable": {"escalationThreshold": 0.2}}
    _, run_id = run_of(
        acme, server, [decides(starts(clerk), 0.4), decides(DONE)], {clerk: "Works."}, options
    )
    log = acme.events_until(run_id, "interrupt.requested")

    escalated = payloads(log, "core.workflowChain.confidence-escalated")
    assert [(each["confidence"], each["floor"]) for each in escalated] == [(0.4, 0.5)]
    assert log[-1]["nodeId"] == "dispatch"


# Caps, budget and record


def test_the_loop_s_cap_and_the_node_s_budget_apply(acme: Wire, server: OpenAiServer) -> None:
    clerk = worker(acme)
    capped: JsonObject = {"configurable": {"maxLoopIterations": 2}}
    turns = [decides(starts(clerk)) for _ in range(5)]
    _, over_cap = run_of(acme, server, turns, {clerk: "Works."}, capped)
    _, spent = run_of(acme, server, turns, {clerk: "Works."}, budget={"maxTokens": 10})

    codes = [acme.finished(run_id)["error"]["code"] for run_id in (over_cap, spent)]

    assert codes == ["loop_limit_exceeded", "token_budget_exceeded"]


def test_a_replay_repeats_the_decisions_without_a_model_call(
    acme: Wire, server: OpenAiServer
) -> None:
    clerk = worker(acme)
    turns = [decides(starts(clerk)), decides(DONE)]
    model, run_id = run_of(acme, server, turns, {clerk: "Works."})
    acme.events_until(run_id, *ENDS)

    fork = acme.post(f"/v1/runs/{run_id}:fork", {"mode": "replay"}).json()["runId"]
    log = acme.events_until(fork, *ENDS)

    assert payloads(log, "replay.diverged") == []
    assert payloads(log, "runOrchestrator.decided") == payloads(
        acme.log(run_id), "runOrchestrator.decided"
    )
    assert server.request_count(model) == 2


def test_a_branch_from_right_after_a_model_s_decision_carries_it_out(
    acme: Wire, server: OpenAiServer
) -> None:
    clerk = worker(acme)
    turns = [decides(starts(clerk)), decides(DONE), decides(DONE)]
    model, run_id = run_of(acme, server, turns, {clerk: "Works."})
    log = acme.events_until(run_id, *ENDS)
    decided = next(event for event in log if event["type"] == "runOrchestrator.decided")

    body = {"mode": "branch", "fromSeq": decided["sequence"] + 1}
    fork = acme.post(f"/v1/runs/{run_id}:fork", body).json()["runId"]
    log = acme.events_until(fork, *ENDS)

    decisions = [
        payload["decision"]["kind"] for payload in payloads(log, "runOrchestrator.decided")
    ]
    assert decisions == ["next-worker", "terminate"]
    assert len(payloads(log, "node.dispatched")) == 1
    assert server.request_count(model) == 3


def test_a_supervisor_continues_after_a_restart_without_a_repeated_request(
    new_host: NewHost, server: OpenAiServer
) -> None:
    host = new_host()
    gate = node("gate", "core.approvalGate", config={"title": "Go on?"})
    clerk = host.wire.register(workflow([gate], id=fresh("clerk")))
    turns = [decides(starts(clerk)), decides(DONE)]
    model, run_id = run_of(host.wire, server, turns, {clerk: "Works."})
    log = host.wire.events_until(run_id, "node.dispatched")
    child = payloads(log, "node.dispatched")[0]["childRunId"]
    host.wire.events_until(child, "interrupt.requested")

    host.hang_up()
    host.restart()
    host.wire.post(f"/v1/runs/{child}/interrupts/gate", {"resumeValue": {"action": "accept"}})
    log = host.wire.events_until(run_id, *ENDS)

    assert log[-1]["type"] == "run.completed"
    assert server.request_count(model) == 2


def test_a_supervisor_in_a_shared_context_knows_its_own_decisions(
    acme: Wire, server: OpenAiServer
) -> None:
    clerk = worker(acme)
    turns = [decides(starts(clerk)), decides(DONE)]
    model, run_id = run_of(acme, server, turns, {clerk: "Works."}, agentSharing="shared")
    acme.events_until(run_id, *ENDS)

    roles = [message["role"] for message in server.requests[model][1]["messages"]]
    assert roles == ["system", "user", "assistant", "user"]
    assert clerk in server.requests[model][1]["messages"][2]["content"]


def test_a_mock_provider_can_decide(acme: Wire) -> None:
    answer = {"answer": DONE, "confidence": 1, "reasoning": "It is a test."}
    mock = {"id": "stream-text", "config": {"tokens": [json.dumps(answer)]}}
    definition = supervised("local:any", {worker(acme): "Works."})
    acme.register(definition)

    found = acme.run(definition["id"], configurable={"mockProvider": mock})

    assert found["status"] == "completed"


# Refusals at registration

BAD: dict[str, tuple[JsonObject, str]] = {
    "nothing to decide by": ({}, ""),
    "no rules": ({"rules": []}, ""),
    "a prompt without a model": ({"prompt": PROMPT}, ".model"),
    "a model without a prompt": ({"model": "local:m"}, ".prompt"),
    "rules beside a prompt": (
        {"prompt": PROMPT, "model": "local:m", "rules": [{"when": "true", "decision": DONE}]},
        ".rules",
    ),
    "rules beside a model": (
        {"model": "local:m", "rules": [{"when": "true", "decision": DONE}]},
        ".model",
    ),
    "a model without a provider": ({"prompt": PROMPT, "model": "m"}, ".model"),
    "an option of no provider": (
        {"prompt": PROMPT, "model": "local:m", "providerOptions": {"tempo": 1}},
        ".providerOptions.tempo",
    ),
}


@pytest.mark.parametrize(("config", "at"), BAD.values(), ids=BAD)
def test_a_supervisor_that_cannot_decide_is_refused_with_its_place(
    acme: Wire, config: JsonObject, at: str
) -> None:
    response = acme.post("/v1/workflows", workflow([node("supervisor", SUPERVISOR, config=config)]))

    assert response.status_code == 400
    paths = [fault["path"] for fault in response.json()["details"]["errors"]]
    assert f"nodes.0.config{at}" in paths


def test_a_worker_that_is_not_registered_is_refused(acme: Wire) -> None:
    response = acme.post("/v1/workflows", supervised("local:m", {"not-there": "Works."}))

    assert response.json()["error"] == "unknown_child_workflow"
    assert response.json()["details"]["field"] == "nodes.0.config.workers.not-there"
