from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.wire.agent_definitions import (
    CHAIN,
    DONE,
    ESCALATED,
    answer,
    children,
    every,
    kinds,
    logged,
    next_worker,
    only,
    supervised,
    waiting,
)
from tests.wire.client import Wire
from tests.wire.host import ACME, WOPR, ServedHost, environment
from wopr.protocol.documents import Json, JsonObject

UNSURE = next_worker("conformance-noop", confidence=0.3)
OTHER = "conformance-multi-agent-handoff-child"
VENDOR_KIND = "x-host-wopr-second-look"


def escalated(wire: Wire, *plan: JsonObject, **body: Json) -> str:
    """A run whose first decision waits for a person."""
    return waiting(wire, wire.register(supervised(*plan)), **body)


# When it applies


@pytest.mark.parametrize(
    ("confidence", "goes"), [(0.49, False), (0.5, True), (0.51, True), (0, False), (None, True)]
)
def test_a_decision_needs_half_the_confidence_and_equality_or_silence_passes(
    acme: Wire, confidence: float | None, goes: bool
) -> None:
    fields = {} if confidence is None else {"confidence": confidence}
    decision = next_worker("conformance-noop", **fields)
    run_id = acme.create(acme.register(supervised(decision, DONE)))
    acme.events_until(run_id, "run.completed", "interrupt.requested")

    assert (ESCALATED not in acme.types(run_id)) is goes


def test_the_floor_is_not_the_agent_s_threshold(acme: Wire) -> None:
    decision = next_worker("conformance-noop", confidence=0.6)
    plan = supervised(decision, DONE)
    options = {"escalationThreshold": 0.9}

    assert acme.run(acme.register(plan), configurable=options)["status"] == "completed"


def test_asking_the_user_is_never_escalated(acme: Wire) -> None:
    ask: JsonObject = {"kind": "ask-user", "prompt": "Sure?"}
    run_id = acme.create(acme.register(supervised(ask, DONE)))
    acme.events_until(run_id, "conversation.opened")

    assert ESCALATED not in acme.types(run_id)


# The order of things


def test_an_unsure_decision_is_recorded_then_escalated_then_asked_about(acme: Wire) -> None:
    run_id = escalated(acme, UNSURE, DONE)

    log = acme.log(run_id)

    assert [event["type"] for event in log] == [
        "run.started",
        "node.started",
        "runOrchestrator.decided",
        "node.completed",
        "node.started",
        ESCALATED,
        "node.suspended",
        "interrupt.requested",
        "approval.requested",
    ]
    found = acme.snapshot(run_id)
    assert found["status"] == "waiting-approval"
    assert found["currentNodeId"] == "dispatch"
    assert "childRuns" not in found


def test_the_escalation_tells_the_decision_and_is_caused_by_it(acme: Wire) -> None:
    run_id = escalated(acme, UNSURE, DONE)

    log = acme.log(run_id)
    event = only(log, ESCALATED)

    assert event["nodeId"] == "dispatch"
    assert event["causationId"] == only(log, "runOrchestrator.decided")["eventId"]
    assert event["payload"] == {
        "confidence": 0.3,
        "floor": 0.5,
        "escalationKind": "escalate",
        "parentRunId": run_id,
        "workerId": "conformance-noop",
        "originalDecision": UNSURE,
    }


def test_an_unsure_end_is_escalated_without_a_worker(acme: Wire) -> None:
    run_id = escalated(acme, DONE | {"confidence": 0.2})

    payload = only(acme.log(run_id), ESCALATED)["payload"]

    assert "workerId" not in payload
    assert payload["originalDecision"] == DONE | {"confidence": 0.2}
    answer(acme, run_id, "dispatch", {"action": "accept"})
    assert acme.finished(run_id)["status"] == "completed"


def test_the_first_of_several_workers_is_named(acme: Wire) -> None:
    two = next_worker("conformance-noop", OTHER, confidence=0.1)
    run_id = escalated(acme, two, DONE)

    assert only(acme.log(run_id), ESCALATED)["payload"]["workerId"] == "conformance-noop"


def test_the_approval_shows_the_decision_and_three_ways_out(acme: Wire) -> None:
    run_id = escalated(acme, UNSURE, DONE)

    request = only(acme.log(run_id), "interrupt.requested")["payload"]

    assert request["kind"] == "approval"
    assert request["data"]["artifactType"] == "orchestrator-decision"
    assert request["data"]["artifactId"].startswith("decision:")
    assert request["data"]["artifactData"] == UNSURE
    assert request["data"]["actions"] == ["accept", "reject", "edit-accept"]


def test_the_inbox_says_what_each_way_out_does(acme: Wire) -> None:
    run_id = escalated(acme, UNSURE, DONE)

    (item,) = acme.document("/v1/interrupts", params={"runId": run_id})["items"]

    assert item["answers"].keys() == {"accept", "reject", "edit-accept"}
    assert "another turn" in item["answers"]["reject"]


# The answer


def test_an_accepted_decision_is_carried_out_without_a_second_question(acme: Wire) -> None:
    run_id = escalated(acme, UNSURE, DONE)
    answer(acme, run_id, "dispatch", {"action": "accept"})

    assert acme.finished(run_id)["status"] == "completed"
    log = acme.log(run_id)
    assert kinds(log) == ["next-worker", "terminate"]
    assert len(every(log, ESCALATED)) == len(every(log, "interrupt.requested")) == 1
    assert len(children(log)) == 1
    assert only(log, "interrupt.resolved")["payload"]["resumeValue"]["action"] == "accept"


def test_the_chain_of_an_accepted_decision_still_hangs_on_the_decision(acme: Wire) -> None:
    run_id = escalated(acme, UNSURE, DONE)
    answer(acme, run_id, "dispatch", {"action": "accept"})
    acme.finished(run_id)

    log = acme.log(run_id)

    decided = every(log, "runOrchestrator.decided")[0]["eventId"]
    assert every(log, CHAIN)[0]["causationId"] == decided


def test_an_edited_decision_is_carried_out_in_place_of_the_first(acme: Wire) -> None:
    run_id = escalated(acme, UNSURE, DONE)
    edited = next_worker(OTHER)
    answer(acme, run_id, "dispatch", {"action": "edit-accept", "editedArtifactData": edited})

    assert acme.finished(run_id)["status"] == "completed"
    log = acme.log(run_id)
    dispatched = only(log, "node.dispatched")["payload"]
    assert dispatched["childWorkflowId"] == OTHER
    resolved = only(log, "interrupt.resolved")["payload"]["resumeValue"]
    assert resolved["editedArtifactData"] == edited


def test_an_edit_may_end_the_run(acme: Wire) -> None:
    run_id = escalated(acme, UNSURE, UNSURE)
    answer(acme, run_id, "dispatch", {"action": "edit-accept", "editedArtifactData": DONE})

    assert acme.finished(run_id)["status"] == "completed"
    assert kinds(acme.log(run_id)) == ["next-worker"]


def test_an_edited_decision_that_is_none_is_refused_and_the_run_waits_on(acme: Wire) -> None:
    run_id = escalated(acme, UNSURE, DONE)
    body = {"resumeValue": {"action": "edit-accept", "editedArtifactData": {"kind": "dance"}}}

    response = acme.post(f"/v1/runs/{run_id}/interrupts/dispatch", body)

    assert response.status_code == 400
    assert acme.snapshot(run_id)["status"] == "waiting-approval"


def test_a_rejected_decision_goes_back_to_the_supervisor(acme: Wire) -> None:
    run_id = escalated(acme, UNSURE, next_worker(OTHER), DONE)
    answer(acme, run_id, "dispatch", {"action": "reject"})

    assert acme.finished(run_id)["status"] == "completed"
    log = acme.log(run_id)
    assert kinds(log) == ["next-worker", "next-worker", "terminate"]
    (dispatched,) = every(log, "node.dispatched")
    assert dispatched["payload"]["childWorkflowId"] == OTHER


def test_a_rejected_end_gives_the_supervisor_another_turn(acme: Wire) -> None:
    run_id = escalated(acme, DONE | {"confidence": 0.1}, next_worker("conformance-noop"), DONE)
    answer(acme, run_id, "dispatch", {"action": "reject"})

    assert acme.finished(run_id)["status"] == "completed"
    log = acme.log(run_id)
    assert kinds(log) == ["terminate", "next-worker", "terminate"]
    assert len(children(log)) == 1


def test_every_unsure_decision_of_a_run_is_asked_about(acme: Wire) -> None:
    run_id = escalated(acme, UNSURE, UNSURE, DONE | {"confidence": 0.1})
    for number in (1, 2, 3):
        log = logged(acme, run_id, "interrupt.requested", number)
        assert len(every(log, ESCALATED)) == number
        assert len(children(log)) == number - 1
        answer(acme, run_id, "dispatch", {"action": "accept"})

    assert acme.finished(run_id)["status"] == "completed"


# The operator's choice


def test_the_default_is_advertised_as_it_is_kept(acme: Wire) -> None:
    model = acme.document("/.well-known/openwop")["multiAgent"]["executionModel"]

    assert model == {
        "supported": True,
        "version": 2,
        "confidenceEscalationFloor": 0.5,
        "confidenceEscalationInterruptKind": "approval",
    }


def host_with(tmp_path_factory: pytest.TempPathFactory, **settings: str) -> Iterator[Wire]:
    host = ServedHost(tmp_path_factory.mktemp("floor"), ("--conformance",), settings)
    host.start()
    with Wire(host.url, ACME) as wire:
        yield wire
    host.stop()


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    """A floor above the default, and questions in place of approvals."""
    yield from host_with(
        tmp_path_factory,
        WOPR_CONFIDENCE_FLOOR="0.8",
        WOPR_CONFIDENCE_INTERRUPT_KIND="clarification",
    )


@pytest.fixture(scope="module")
def vendor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    """A kind of the host's own, and the status that it gives."""
    yield from host_with(
        tmp_path_factory,
        WOPR_CONFIDENCE_INTERRUPT_KIND=VENDOR_KIND,
        WOPR_CONFIDENCE_WAITING_STATUS="waiting-external",
    )


def test_a_raised_floor_is_advertised_and_kept(strict: Wire) -> None:
    model = strict.document("/.well-known/openwop")["multiAgent"]["executionModel"]
    assert model["confidenceEscalationFloor"] == 0.8
    for confidence, goes in ((0.79, False), (0.8, True)):
        decision = next_worker("conformance-noop", confidence=confidence)
        run_id = strict.create(strict.register(supervised(decision, DONE)))
        strict.events_until(run_id, "run.completed", "interrupt.requested")

        assert (strict.snapshot(run_id)["status"] == "completed") is goes


def test_a_clarification_asks_and_waits_for_input(strict: Wire) -> None:
    run_id = escalated(strict, UNSURE, DONE)

    log = strict.log(run_id)

    assert only(log, ESCALATED)["payload"]["escalationKind"] == "clarify"
    assert only(log, ESCALATED)["payload"]["floor"] == 0.8
    assert only(log, "interrupt.requested")["payload"]["kind"] == "clarification"
    assert strict.snapshot(run_id)["status"] == "waiting-input"
    assert every(log, CHAIN) == []


@pytest.mark.parametrize(
    ("said", "workers"),
    [
        ("accept", ["conformance-noop"]),
        ("reject", []),
        (next_worker(OTHER), [OTHER]),
    ],
    ids=["accept", "reject", "instead"],
)
def test_a_clarification_is_answered_in_words_or_with_a_decision(
    strict: Wire, said: Json, workers: list[str]
) -> None:
    run_id = escalated(strict, UNSURE, DONE)
    answer(strict, run_id, "dispatch", {"answers": {"decision": said}})

    assert strict.finished(run_id)["status"] == "completed"
    dispatched = every(strict.log(run_id), "node.dispatched")
    assert [event["payload"]["childWorkflowId"] for event in dispatched] == workers


def test_an_answer_that_is_neither_is_refused(strict: Wire) -> None:
    run_id = escalated(strict, UNSURE, DONE)

    body = {"resumeValue": {"answers": {"decision": "perhaps"}}}
    response = strict.post(f"/v1/runs/{run_id}/interrupts/dispatch", body)

    assert response.status_code == 400
    assert strict.snapshot(run_id)["status"] == "waiting-input"


def test_a_vendor_s_kind_is_advertised_with_a_document_that_explains_it(vendor: Wire) -> None:
    discovery = vendor.document("/.well-known/openwop")
    model = discovery["multiAgent"]["executionModel"]
    assert model["confidenceEscalationInterruptKind"] == VENDOR_KIND
    url = discovery["extensions"]["interrupts"]["vendorKindUrl"]

    mapping = vendor.document(url)

    assert mapping["kind"] == VENDOR_KIND
    assert mapping["escalationKind"] == "escalate"
    assert mapping["waitingStatus"] == "waiting-external"
    assert mapping["consumers"]


def test_a_vendor_s_kind_gives_the_status_that_its_document_names(vendor: Wire) -> None:
    run_id = escalated(vendor, UNSURE, DONE)

    assert vendor.snapshot(run_id)["status"] == "waiting-external"
    request = only(vendor.log(run_id), "interrupt.requested")["payload"]
    assert request["kind"] == "custom"
    assert request["data"]["customKind"] == VENDOR_KIND
    assert only(vendor.log(run_id), ESCALATED)["payload"]["escalationKind"] == "escalate"


@pytest.mark.parametrize(
    ("value", "workers"),
    [
        ("accept", ["conformance-noop"]),
        ({"action": "accept"}, ["conformance-noop"]),
        ({"action": "reject"}, []),
        ("reject", []),
        (next_worker(OTHER), [OTHER]),
        (
            {"action": "edit-accept", "editedArtifactData": next_worker(OTHER)},
            [OTHER],
        ),
    ],
)
def test_a_vendor_s_kind_takes_the_same_answers(
    vendor: Wire, value: Json, workers: list[str]
) -> None:
    run_id = escalated(vendor, UNSURE, DONE)
    answer(vendor, run_id, "dispatch", value)

    assert vendor.finished(run_id)["status"] == "completed"
    dispatched = every(vendor.log(run_id), "node.dispatched")
    assert [event["payload"]["childWorkflowId"] for event in dispatched] == workers


def test_other_kinds_have_no_document(acme: Wire) -> None:
    assert acme.get(f"/v1/interrupt-kinds/{VENDOR_KIND}").status_code == 404
    extension = acme.document("/.well-known/openwop")["extensions"]["interrupts"]
    assert "vendorKindUrl" not in extension


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("WOPR_CONFIDENCE_FLOOR", "0.49", "confidence_floor must be between 0.5 and 1, not 0.49"),
        ("WOPR_CONFIDENCE_FLOOR", "1.01", "confidence_floor must be between 0.5 and 1"),
        ("WOPR_CONFIDENCE_FLOOR", "high", "WOPR_CONFIDENCE_FLOOR must be a number"),
        ("WOPR_CONFIDENCE_FLOOR", "nan", "confidence_floor must be between 0.5 and 1"),
        ("WOPR_CONFIDENCE_INTERRUPT_KIND", "quiz", "confidence_interrupt_kind must be"),
        ("WOPR_CONFIDENCE_INTERRUPT_KIND", "x-host-wopr", "confidence_interrupt_kind must be"),
        ("WOPR_CONFIDENCE_INTERRUPT_KIND", "x-host-Wopr-look", "confidence_interrupt_kind must be"),
        ("WOPR_CONFIDENCE_WAITING_STATUS", "paused", "confidence_waiting_status must be"),
        ("WOPR_REASONING_VERBOSITY", "loud", "reasoning_verbosity must be"),
        ("WOPR_TOOL_RATE_LIMIT", "-1", "tool_rate_limit must be 0 or more"),
    ],
)
def test_a_host_refuses_to_start_with_a_setting_that_cannot_be_kept(
    tmp_path: Path, name: str, value: str, told: str
) -> None:
    done = subprocess.run(
        [WOPR, "serve", "--port", "0"],
        env=environment(tmp_path, {name: value}),
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )

    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr
