"""Builders of workflows with agents, and readers of their logs."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.client import Wire
from tests.support.definitions import edge, fresh, node, workflow
from wopr.protocol.documents import Json, JsonObject

MOCK_AGENT = "core.conformance.mock-agent"
SUPERVISOR = "core.orchestrator.supervisor"
DISPATCH = "core.dispatch"
LOOP = [edge("supervisor", "dispatch"), edge("dispatch", "supervisor")]
DONE: JsonObject = {"kind": "terminate", "reason": "goal-reached"}
CHAIN = "core.workflowChain.event"
ESCALATED = "core.workflowChain.confidence-escalated"


def agent_name() -> str:
    return fresh("core.conformance.agent")


def mock(node_id: str = "actor", agent: JsonObject | None = None, **config: Json) -> JsonObject:
    pin = {} if agent is None else {"agent": agent}
    return node(node_id, MOCK_AGENT, config=config, **pin)


def scripted(nodes: Sequence[JsonObject], **fields: Json) -> JsonObject:
    """Return a workflow that may script its nodes."""
    return workflow(nodes, **({"id": fresh("conformance-agents")} | fields))


def next_worker(*workers: str, **fields: Json) -> JsonObject:
    return {"kind": "next-worker", "nextWorkerIds": list(workers), **fields}


def supervised(
    *plan: Json,
    dispatch: JsonObject | None = None,
    supervisor: JsonObject | None = None,
    agent: JsonObject | None = None,
    **fields: Json,
) -> JsonObject:
    """Return a supervisor that decides by a plan, with the dispatch for its decisions."""
    script: JsonObject = {"mockDispatchPlan": list(plan)} if plan else {}
    pin = {} if agent is None else {"agent": agent}
    nodes = [
        node("supervisor", SUPERVISOR, config=script | (supervisor or {}), **pin),
        node("dispatch", DISPATCH, config=dispatch or {}),
    ]
    return scripted(nodes, **({"edges": LOOP} | fields))


def child(*nodes: JsonObject, **fields: Json) -> JsonObject:
    """Return a worker; without nodes it does nothing."""
    return scripted(nodes or [node("noop", "core.identity")], **({"id": fresh("worker")} | fields))


def agent_events(log: list[JsonObject]) -> list[JsonObject]:
    """Return the events of agents."""
    return [event for event in log if event["type"].startswith("agent.")]


def only_event(log: list[JsonObject], event_type: str) -> JsonObject:
    """Return the one event of a type."""
    (found,) = [event for event in log if event["type"] == event_type]
    return found


def events_of(log: list[JsonObject], event_type: str) -> list[JsonObject]:
    return [event for event in log if event["type"] == event_type]


def decision_kinds(log: list[JsonObject]) -> list[str]:
    """Return the decisions of the supervisor in order."""
    return [e["payload"]["decision"]["kind"] for e in events_of(log, "runOrchestrator.decided")]


def phases(log: list[JsonObject]) -> list[str]:
    """Return the phases of the hand-offs to children in order."""
    return [event["payload"]["phase"] for event in events_of(log, CHAIN)]


def children(log: list[JsonObject]) -> list[str]:
    """Return the run ids of the children in order."""
    return [event["payload"]["childRunId"] for event in events_of(log, "node.dispatched")]


def waiting_run(
    wire: Wire, workflow_id: str, inputs: JsonObject | None = None, **body: Json
) -> str:
    """Start a run and wait until it requests an interrupt."""
    run_id = wire.create(workflow_id, inputs, **body)
    wire.events_until(run_id, "interrupt.requested")
    return run_id


def answer(wire: Wire, run_id: str, node_id: str, value: Json) -> None:
    """Answer a waiting node."""
    response = wire.post(f"/v1/runs/{run_id}/interrupts/{node_id}", {"resumeValue": value})
    assert response.status_code == 200, response.text


def faults(wire: Wire, definition: JsonObject) -> dict[str, str]:
    """Return the faults of a refused definition by place."""
    response = wire.post("/v1/workflows", definition)
    assert response.status_code == 400, response.text
    assert response.json()["error"] == "validation_error"
    return {fault["path"]: fault["message"] for fault in response.json()["details"]["errors"]}


def run_and_log(
    wire: Wire, workflow_id: str, inputs: JsonObject | None = None, **body: Json
) -> tuple[JsonObject, list[JsonObject]]:
    """Return the snapshot and the log of an ended run."""
    run_id = wire.create(workflow_id, inputs, **body)
    return wire.finished(run_id), wire.log(run_id)
