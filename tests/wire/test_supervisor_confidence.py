from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.agent_definitions import answer, events_of, next_worker, only_event, supervised
from tests.support.client import Wire
from tests.support.host import ACME, ServedHost
from tests.support.recorder import Recorder
from tests.wire.unsure_agents import UNSURE, deciding, held
from wopr.protocol.documents import JsonObject

SUPPRESSED = "confidence-escalation-suppressed"


# Supervisors


HELD = supervised(
    supervisor={"mockConfidence": 0.5, "mockPendingDecision": next_worker("conformance-noop")},
    agent={"agentId": "core.conformance.unsure"},
    id="conformance-agents-held-supervisor",
)


def test_an_unsure_supervisor_decides_nothing_before_it_is_ratified(acme: Wire) -> None:
    run_id = held(acme, HELD)

    log = acme.log(run_id)

    assert [event["type"] for event in log[2:]] == [
        "agent.decided",
        "node.suspended",
        "interrupt.requested",
    ]
    assert log[3]["payload"]["agentId"] == "core.conformance.unsure"
    assert acme.snapshot(run_id)["status"] == "waiting-approval"


def test_a_ratified_supervisor_decides_once_and_continues(acme: Wire) -> None:
    run_id = held(acme, HELD)
    answer(acme, run_id, "supervisor", {"action": "accept"})

    assert acme.finished(run_id)["status"] == "completed"
    log = acme.log(run_id)
    assert [event["type"] for event in log[5:9]] == [
        "interrupt.resolved",
        "node.resumed",
        "runOrchestrator.decided",
        "node.completed",
    ]
    assert log[7]["payload"]["decision"] == next_worker("conformance-noop")
    assert len(events_of(log, "agent.decided")) == 1


def test_a_person_can_decide_for_the_supervisor(acme: Wire) -> None:
    run_id = held(acme, HELD)
    answer(acme, run_id, "supervisor", {"decision": {"kind": "terminate", "reason": "enough"}})

    assert acme.finished(run_id)["status"] == "completed"
    decided = only_event(acme.log(run_id), "runOrchestrator.decided")["payload"]["decision"]
    assert decided == {"kind": "terminate", "reason": "enough"}


def test_an_invalid_decision_is_refused_and_the_supervisor_still_waits(acme: Wire) -> None:
    run_id = held(acme, HELD)

    response = acme.post(
        f"/v1/runs/{run_id}/interrupts/supervisor",
        {"resumeValue": {"decision": {"kind": "dance"}}},
    )

    assert response.status_code == 400
    assert acme.snapshot(run_id)["status"] == "waiting-approval"


def test_a_rejected_supervisor_fails_and_no_worker_is_started(acme: Wire) -> None:
    run_id = held(acme, HELD)
    answer(acme, run_id, "supervisor", {"action": "reject"})

    found = acme.finished(run_id)

    assert found["error"]["code"] == "decision_rejected"
    assert not {"runOrchestrator.decided", "node.dispatched"} & set(acme.types(run_id))


# Disabled by the operator


class Lenient(Recorder):
    """Accept the one event outside the published enum, which exists only with the setting."""

    def event(self, event: JsonObject) -> None:
        if event["type"] == "cap.breached" and event["payload"]["kind"] == SUPPRESSED:
            event = event | {"payload": event["payload"] | {"kind": "loop-iterations"}}
        super().event(event)


@pytest.fixture
def bold(new_host: Callable[..., ServedHost]) -> Iterator[Wire]:
    host = new_host("--conformance", WOPR_SUPPRESS_ESCALATION="1")
    with Wire(host.url, ACME, Lenient()) as wire:
        yield wire


def test_an_operator_can_allow_unsure_decisions_which_are_logged(bold: Wire, acme: Wire) -> None:
    run_id = bold.create(bold.register(deciding(UNSURE)))

    assert bold.finished(run_id)["status"] == "completed"
    log = bold.log(run_id)
    assert [event["type"] for event in log[2:5]] == [
        "agent.decided",
        "cap.breached",
        "node.completed",
    ]
    assert log[3]["payload"] == {
        "kind": SUPPRESSED,
        "limit": 0.7,
        "observed": 0.5,
        "nodeId": "decider",
    }
    run_id = bold.create(bold.register(HELD))
    assert bold.finished(run_id)["status"] == "completed"
    breach = only_event(bold.log(run_id), "cap.breached")["payload"]
    assert (breach["kind"], breach["observed"]) == (SUPPRESSED, 0.5)
    sure = bold.create(bold.register(deciding({"decision": 1, "confidence": 0.7})))
    bold.finished(sure)
    assert "cap.breached" not in bold.types(sure)
    for wire, expected in ((bold, True), (acme, None)):
        agents = wire.document("/.well-known/openwop")["agents"]
        assert agents.get("confidenceEscalationSuppressed") is expected
