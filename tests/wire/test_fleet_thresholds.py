"""The confidence threshold in a KAHN line is the one that the host applied."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.support.agent_definitions import DONE, answer, next_worker, supervised
from tests.support.client import Wire
from tests.support.eventually import eventually
from tests.support.host import ACME, ServedHost
from tests.support.kahn import agents_of, stored_lines, transitions
from tests.wire.escalations import UNSURE, escalated
from tests.wire.unsure_agents import deciding
from wopr.protocol.documents import Json, JsonObject

CAUTIOUS = "core.conformance.agents.cautious"


def confidence_audit(wire: Wire, run_id: str) -> tuple[str, JsonObject]:
    lines = [json.loads(each) for each in transitions(wire, run_id)]
    [audit] = [each for each in lines if each.get("checkpoint_id") == "openwop:confidence"]
    return audit["result"], audit["evidence"]


def decided(wire: Wire, confidence: float, agent_id: str | None = None, **options: Json) -> str:
    decision = {"decision": "go", "confidence": confidence}
    run_id = wire.create(wire.register(deciding(decision, agent_id)), configurable=options)
    wire.events_until(run_id, "run.completed", "interrupt.requested")
    return run_id


@pytest.mark.parametrize(
    ("confidence", "agent_id", "options", "result", "threshold"),
    [
        (0.69, None, {}, "fail", 0.7),
        (0.89, CAUTIOUS, {}, "fail", 0.9),
        (0.9, CAUTIOUS, {}, "pass", 0.9),
        (0.3, CAUTIOUS, {"escalationThreshold": 0.3}, "pass", 0.3),
    ],
)
def test_the_applied_threshold_is_the_measure_of_an_agent_s_decision(
    acme: Wire,
    confidence: float,
    agent_id: str | None,
    options: JsonObject,
    result: str,
    threshold: float,
) -> None:
    run_id = decided(acme, confidence, agent_id, **options)

    evidence = {"confidence": confidence, "threshold": threshold}
    assert confidence_audit(acme, run_id) == (result, evidence)
    assert (acme.snapshot(run_id)["status"] == "completed") is (result == "pass")


def test_the_floor_is_the_measure_of_a_supervisor_s_decision(acme: Wire) -> None:
    decision = next_worker("conformance-noop", confidence=0.6)
    run_id = acme.create(acme.register(supervised(decision, DONE)))
    acme.finished(run_id)

    assert confidence_audit(acme, run_id) == ("pass", {"confidence": 0.6, "threshold": 0.5})


def test_a_stricter_floor_of_the_operator_is_the_measure(
    new_host: Callable[..., ServedHost], connect: Callable[..., Wire]
) -> None:
    wire = connect(ACME, new_host("--conformance", WOPR_CONFIDENCE_FLOOR="0.8"))
    run_id = escalated(wire, next_worker("conformance-noop", confidence=0.6), DONE)

    assert confidence_audit(wire, run_id) == ("fail", {"confidence": 0.6, "threshold": 0.8})


KINDS = {
    "approval": "approval",
    "clarification": "clarification",
    "x-host-acme-sign-off": "x-host-acme-sign-off",
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_supervisor_that_waits_at_the_floor_is_blocked(
    new_host: Callable[..., ServedHost], connect: Callable[..., Wire], kind: str
) -> None:
    wire = connect(ACME, new_host("--conformance", WOPR_CONFIDENCE_INTERRUPT_KIND=kind))
    run_id = escalated(wire, UNSURE, DONE)

    eventually(
        lambda: (
            bool(stored_lines(wire, run_id))
            and stored_lines(wire, run_id) == transitions(wire, run_id)
        )
    )
    [agent] = agents_of(wire, run_id)

    assert agent["last_status"] == "blocked-on-clarification"
    assert agent["waiting_since"] is not None
    assert agent["openwop_interrupt_id"] is not None
    moves = [json.loads(each) for each in transitions(wire, run_id)]
    [blocked] = [each for each in moves if each.get("to") == "blocked-on-clarification"]
    assert blocked["reason"] == KINDS[kind]


@pytest.mark.parametrize(("action", "how"), [("accept", "ratified"), ("reject", "rejected")])
def test_an_answer_at_the_floor_is_an_audit_of_the_supervisor(
    acme: Wire, action: str, how: str
) -> None:
    run_id = escalated(acme, UNSURE, DONE)

    answer(acme, run_id, "dispatch", {"action": action})
    acme.finished(run_id)

    lines = [json.loads(each) for each in transitions(acme, run_id)]
    [audit] = [e for e in lines if str(e.get("checkpoint_id", "")).startswith("operator:")]
    [resumed] = [each for each in lines if each.get("from") == "blocked-on-clarification"]
    assert audit["checkpoint_id"] == resumed["reason"] == f"operator:{how}"
    assert audit["agent_id"] == resumed["agent_id"] is not None
