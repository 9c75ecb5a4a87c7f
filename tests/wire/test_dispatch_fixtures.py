"""The orchestrator, dispatch and multi-agent workflows, as in the contract's tables.

Every test runs twice: with the project's own definitions and with the published ones.
"""

from __future__ import annotations

import pytest

from tests.support.agent_definitions import (
    CHAIN,
    ESCALATED,
    answer,
    children,
    decision_kinds,
    events_of,
    only_event,
    phases,
    run_and_log,
    waiting_run,
)
from tests.support.client import Wire
from wopr.protocol.documents import JsonObject

pytestmark = pytest.mark.both_stores

# Orchestrator


@pytest.mark.parametrize(
    "workflow_id", ["conformance-dispatch-loop", "conformance-orchestrator-dispatch"]
)
def test_one_worker_and_then_the_end(fixtures: Wire, workflow_id: str) -> None:
    found, log = run_and_log(fixtures, workflow_id)

    assert found["status"] == "completed"
    assert decision_kinds(log) == ["next-worker", "terminate"]
    assert only_event(log, "node.dispatched")["payload"]["childWorkflowId"] == "conformance-noop"
    names = {event["payload"]["agentId"] for event in events_of(log, "runOrchestrator.decided")}
    assert names == {found["runOrchestrator"]["agentId"]}


def test_the_orchestrator_terminate_fixture(fixtures: Wire) -> None:
    found, log = run_and_log(fixtures, "conformance-orchestrator-terminate")

    assert found["status"] == "completed"
    assert decision_kinds(log) == ["terminate"]


def test_the_orchestrator_low_confidence_fixture(fixtures: Wire) -> None:
    run_id = waiting_run(fixtures, "conformance-orchestrator-low-confidence")

    log = fixtures.log(run_id)

    assert fixtures.snapshot(run_id)["status"] == "waiting-approval"
    assert decision_kinds(log) == []
    suspended = only_event(log, "node.suspended")["payload"]
    assert suspended["reason"] == "low-confidence"
    assert suspended["agentId"] == "core.conformance.low-conf-supervisor"
    answer(fixtures, run_id, "supervisor", {"ratified": True})
    assert fixtures.finished(run_id)["status"] == "completed"
    assert decision_kinds(fixtures.log(run_id)) == ["next-worker", "terminate"]


# Dispatch mappings


def born(wire: Wire, log: list[JsonObject]) -> list[JsonObject]:
    return [wire.snapshot(child_id) for child_id in children(log)]


def test_the_dispatch_input_mapping_fixture(fixtures: Wire) -> None:
    found, log = run_and_log(fixtures, "conformance-dispatch-input-mapping")
    (child,) = born(fixtures, log)

    assert found["status"] == child["status"] == "completed"
    assert child["workflowId"] == "conformance-dispatch-input-mapping-child"
    assert child["inputs"]["childGreeting"] == "Alice"


def test_the_dispatch_input_mapping_no_default_fixture(fixtures: Wire) -> None:
    _, log = run_and_log(fixtures, "conformance-dispatch-input-mapping-no-default")
    (child,) = born(fixtures, log)

    assert "childGreeting" not in child["inputs"]


def test_the_dispatch_output_mapping_fixture(fixtures: Wire) -> None:
    found, _ = run_and_log(fixtures, "conformance-dispatch-output-mapping")

    assert found["variables"]["parentResult"] == "done"


def test_the_dispatch_cross_worker_handoff_fixture(fixtures: Wire) -> None:
    found, log = run_and_log(fixtures, "conformance-dispatch-cross-worker-handoff")
    one, two = born(fixtures, log)

    assert found["variables"]["sharedVar"] == "hello"
    assert one["workflowId"].endswith("-child-a")
    assert two["workflowId"].endswith("-child-b")
    assert two["inputs"]["input"] == "hello"
    completed = [e for e in events_of(log, "node.completed") if e["nodeId"] == "dispatch"]
    assert completed[0]["payload"]["outputs"]["childRunId"] == two["runId"]


def test_the_dispatch_per_worker_override_fixture(fixtures: Wire) -> None:
    _, log = run_and_log(fixtures, "conformance-dispatch-per-worker-override")

    assert [child["inputs"]["input"] for child in born(fixtures, log)] == [
        "default-x-value",
        "shared-value",
    ]


def test_the_children_that_fail_and_that_keep_running(fixtures: Wire) -> None:
    found, _ = run_and_log(fixtures, "conformance-dispatch-deterministic-fail-child")
    assert found["error"]["code"] == "hvmap_1b_failed_fixture"
    run_id = fixtures.create("conformance-dispatch-cancellable-child")
    fixtures.events_until(run_id, "node.started")

    fixtures.post(f"/v1/runs/{run_id}/cancel")

    assert fixtures.finished(run_id)["status"] == "cancelled"


# Multi-agent


def test_the_multi_agent_handoff_fixture_writes_the_log_of_the_worked_trace(fixtures: Wire) -> None:
    found, log = run_and_log(fixtures, "conformance-multi-agent-handoff")

    assert found["variables"]["parentResult"] == "handoff-complete"
    log = [event for event in log if event["type"] != "variable.changed"]
    assert [(event["type"], event.get("nodeId")) for event in log] == [
        ("run.started", None),
        ("node.started", "supervisor"),
        ("runOrchestrator.decided", "supervisor"),
        ("node.completed", "supervisor"),
        ("node.started", "dispatch"),
        (CHAIN, "dispatch"),
        ("node.dispatched", "dispatch"),
        (CHAIN, "dispatch"),
        (CHAIN, "dispatch"),
        (CHAIN, "dispatch"),
        ("node.completed", "dispatch"),
        ("node.started", "supervisor"),
        ("runOrchestrator.decided", "supervisor"),
        ("node.completed", "supervisor"),
        ("node.started", "dispatch"),
        ("node.completed", "dispatch"),
        ("run.completed", None),
    ]
    caused = {5: 2, 6: 2, 7: 5, 8: 7, 9: 8, 10: 2, 15: 12}
    assert {n: log[n]["causationId"] for n in caused} == {
        n: log[cause]["eventId"] for n, cause in caused.items()
    }
    assert phases(log) == [
        "dispatch.began",
        "dispatch.succeeded",
        "child.completed",
        "output.harvested",
    ]
    assert log[9]["payload"]["harvestedKeys"] == ["parentResult"]
    assert log[10]["payload"]["outputs"] == {
        "childRunId": children(log)[0],
        "childStatus": "completed",
    }


def test_the_multi_agent_confidence_escalation_fixture(fixtures: Wire) -> None:
    run_id = waiting_run(fixtures, "conformance-multi-agent-confidence-escalation")

    log = fixtures.log(run_id)

    assert fixtures.snapshot(run_id)["status"] == "waiting-approval"
    event = only_event(log, ESCALATED)
    assert event["payload"]["confidence"] == 0.3
    assert event["payload"]["floor"] == 0.5
    assert event["causationId"] == only_event(log, "runOrchestrator.decided")["eventId"]
    assert event["sequence"] < only_event(log, "interrupt.requested")["sequence"]
    assert events_of(log, CHAIN) == []
    assert children(log) == []
