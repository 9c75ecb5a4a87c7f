from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.wire.agent_definitions import answer, every, next_worker, only, supervised
from tests.wire.client import Wire
from tests.wire.deciding import UNSURE, deciding, held
from tests.wire.host import ACME, ServedHost
from tests.wire.recorder import Recorder
from wopr.protocol.documents import JsonObject

SUPPRESSED = "confidence-escalation-suppressed"


# A supervisor


HELD = supervised(
    supervisor={"mockConfidence": 0.5, "mockPendingDecision": next_worker("conformance-noop")},
    agent={"agentId": "core.conformance.unsure"},
    id="conformance-agents-held-supervisor",
)


def test_a_supervisor_that_is_not_sure_decides_nothing_before_it_is_ratified(acme: Wire) -> None:
    run_id = held(acme, HELD)

    log = acme.log(run_id)

    assert [event["type"] for event in log[2:]] == [
        "agent.decided",
        "node.suspended",
        "interrupt.requested",
    ]
    assert log[3]["payload"]["agentId"] == "core.conformance.unsure"
    assert acme.snapshot(run_id)["status"] == "waiting-approval"


def test_a_ratified_supervisor_decides_once_and_goes_on(acme: Wire) -> None:
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
    assert len(every(log, "agent.decided")) == 1


def test_a_person_may_decide_in_the_supervisor_s_place(acme: Wire) -> None:
    run_id = held(acme, HELD)
    answer(acme, run_id, "supervisor", {"decision": {"kind": "terminate", "reason": "enough"}})

    assert acme.finished(run_id)["status"] == "completed"
    decided = only(acme.log(run_id), "runOrchestrator.decided")["payload"]["decision"]
    assert decided == {"kind": "terminate", "reason": "enough"}


def test_what_is_no_decision_is_refused_and_the_supervisor_waits_on(acme: Wire) -> None:
    run_id = held(acme, HELD)

    response = acme.post(
        f"/v1/runs/{run_id}/interrupts/supervisor",
        {"resumeValue": {"decision": {"kind": "dance"}}},
    )

    assert response.status_code == 400
    assert acme.snapshot(run_id)["status"] == "waiting-approval"


def test_a_rejected_supervisor_fails_and_no_worker_was_started(acme: Wire) -> None:
    run_id = held(acme, HELD)
    answer(acme, run_id, "supervisor", {"action": "reject"})

    found = acme.finished(run_id)

    assert found["error"]["code"] == "decision_rejected"
    assert not {"runOrchestrator.decided", "node.dispatched"} & set(acme.types(run_id))


# Switched off by the operator


class Lenient(Recorder):
    """Knows the one event that leaves the published enum: it exists only with the switch."""

    def event(self, event: JsonObject) -> None:
        if event["type"] == "cap.breached" and event["payload"]["kind"] == SUPPRESSED:
            event = event | {"payload": event["payload"] | {"kind": "loop-iterations"}}
        super().event(event)


@pytest.fixture
def bold(new_host: Callable[..., ServedHost]) -> Iterator[Wire]:
    host = new_host("--conformance", WOPR_SUPPRESS_ESCALATION="1")
    with Wire(host.url, ACME, Lenient()) as wire:
        yield wire


def test_an_operator_can_let_unsure_decisions_pass_on_the_record(bold: Wire, acme: Wire) -> None:
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
    breach = only(bold.log(run_id), "cap.breached")["payload"]
    assert (breach["kind"], breach["observed"]) == (SUPPRESSED, 0.5)
    sure = bold.create(bold.register(deciding({"decision": 1, "confidence": 0.7})))
    bold.finished(sure)
    assert "cap.breached" not in bold.types(sure)
    for wire, expected in ((bold, True), (acme, None)):
        agents = wire.document("/.well-known/openwop")["agents"]
        assert agents.get("confidenceEscalationSuppressed") is expected
