"""Builders of workflows in which agents act, and what their tests read from a log."""

from __future__ import annotations

import time
from collections.abc import Sequence

from tests.wire.client import DEADLINE_SECONDS, Wire
from tests.wire.definitions import edge, fresh, node, workflow
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
    """A workflow that may script its nodes."""
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
    """A supervisor that decides by a plan, and the dispatch that carries its decisions out."""
    script: JsonObject = {"mockDispatchPlan": list(plan)} if plan else {}
    pin = {} if agent is None else {"agent": agent}
    nodes = [
        node("supervisor", SUPERVISOR, config=script | (supervisor or {}), **pin),
        node("dispatch", DISPATCH, config=dispatch or {}),
    ]
    return scripted(nodes, **({"edges": LOOP} | fields))


def child(*nodes: JsonObject, **fields: Json) -> JsonObject:
    """A worker; without nodes it does nothing."""
    return scripted(nodes or [node("noop", "core.identity")], **({"id": fresh("worker")} | fields))


def agents_of(log: list[JsonObject]) -> list[JsonObject]:
    """The events in which agents speak."""
    return [event for event in log if event["type"].startswith("agent.")]


def only(log: list[JsonObject], event_type: str) -> JsonObject:
    """The one event of a type."""
    (found,) = [event for event in log if event["type"] == event_type]
    return found


def every(log: list[JsonObject], event_type: str) -> list[JsonObject]:
    return [event for event in log if event["type"] == event_type]


def kinds(log: list[JsonObject]) -> list[str]:
    """What the supervisor decided, in order."""
    return [e["payload"]["decision"]["kind"] for e in every(log, "runOrchestrator.decided")]


def phases(log: list[JsonObject]) -> list[str]:
    """How work was handed to children, in order."""
    return [event["payload"]["phase"] for event in every(log, CHAIN)]


def children(log: list[JsonObject]) -> list[str]:
    """The run ids of the children, in order."""
    return [event["payload"]["childRunId"] for event in every(log, "node.dispatched")]


def waiting(wire: Wire, workflow_id: str, inputs: JsonObject | None = None, **body: Json) -> str:
    """Start a run and wait until it asks for something."""
    run_id = wire.create(workflow_id, inputs, **body)
    wire.events_until(run_id, "interrupt.requested")
    return run_id


def logged(wire: Wire, run_id: str, event_type: str, times: int) -> list[JsonObject]:
    """Wait until the log has that many events of a type, and return all up to now."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    events: list[JsonObject] = []
    while len(every(events, event_type)) < times:
        assert time.monotonic() < deadline, [event["type"] for event in events]
        page = wire.poll(run_id, lastSequence=len(events) - 1, timeout=1)
        events += page["events"]
    return events


def answer(wire: Wire, run_id: str, node_id: str, value: Json) -> None:
    """Answer what a node waits for."""
    response = wire.post(f"/v1/runs/{run_id}/interrupts/{node_id}", {"resumeValue": value})
    assert response.status_code == 200, response.text


def faults(wire: Wire, definition: JsonObject) -> dict[str, str]:
    """Why a definition is refused, by place."""
    response = wire.post("/v1/workflows", definition)
    assert response.status_code == 400, response.text
    assert response.json()["error"] == "validation_error"
    return {fault["path"]: fault["message"] for fault in response.json()["details"]["errors"]}


def ran(
    wire: Wire, workflow_id: str, inputs: JsonObject | None = None, **body: Json
) -> tuple[JsonObject, list[JsonObject]]:
    """The snapshot and the log of a run that has ended."""
    run_id = wire.create(workflow_id, inputs, **body)
    return wire.finished(run_id), wire.log(run_id)
