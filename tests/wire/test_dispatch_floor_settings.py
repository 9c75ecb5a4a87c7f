from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.agent_definitions import (
    CHAIN,
    DONE,
    ESCALATED,
    answer,
    events_of,
    next_worker,
    only_event,
    supervised,
)
from tests.support.client import Wire
from tests.support.forked import run
from tests.support.host import ACME, ServedHost, environment
from tests.wire.escalations import OTHER, UNSURE, escalated
from wopr.protocol.documents import Json


def test_the_default_is_advertised_as_it_is_enforced(acme: Wire) -> None:
    model = acme.document("/.well-known/openwop")["multiAgent"]["executionModel"]

    del model["crossHostCausation"]
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
    """Start a host with a floor above the default, and clarifications instead of approvals."""
    yield from host_with(
        tmp_path_factory,
        WOPR_CONFIDENCE_FLOOR="0.8",
        WOPR_CONFIDENCE_INTERRUPT_KIND="clarification",
    )


def test_a_raised_floor_is_advertised_and_enforced(strict: Wire) -> None:
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

    assert only_event(log, ESCALATED)["payload"]["escalationKind"] == "clarify"
    assert only_event(log, ESCALATED)["payload"]["floor"] == 0.8
    assert only_event(log, "interrupt.requested")["payload"]["kind"] == "clarification"
    assert strict.snapshot(run_id)["status"] == "waiting-input"
    assert events_of(log, CHAIN) == []


@pytest.mark.parametrize(
    ("said", "workers"),
    [
        ("accept", ["conformance-noop"]),
        ("reject", []),
        (next_worker(OTHER), [OTHER]),
    ],
    ids=["accept", "reject", "instead"],
)
def test_a_clarification_is_answered_with_text_or_a_decision(
    strict: Wire, said: Json, workers: list[str]
) -> None:
    run_id = escalated(strict, UNSURE, DONE)
    answer(strict, run_id, "dispatch", {"answers": {"decision": said}})

    assert strict.finished(run_id)["status"] == "completed"
    dispatched = events_of(strict.log(run_id), "node.dispatched")
    assert [event["payload"]["childWorkflowId"] for event in dispatched] == workers


def test_any_other_answer_is_refused(strict: Wire) -> None:
    run_id = escalated(strict, UNSURE, DONE)

    body = {"resumeValue": {"answers": {"decision": "perhaps"}}}
    response = strict.post(f"/v1/runs/{run_id}/interrupts/dispatch", body)

    assert response.status_code == 400
    assert strict.snapshot(run_id)["status"] == "waiting-input"


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
        ("WOPR_VENDOR_KIND_STATUS", "paused", "vendor_kind_status must be"),
        ("WOPR_VENDOR_KIND_MEANS", "custom", "vendor_kind_means must be clarify or escalate"),
        ("WOPR_VENDOR_KIND_CONSUMERS", "inbox,,audit", "vendor_kind_consumers must be"),
        ("WOPR_LITERAL_VENDOR_KIND", "perhaps", "WOPR_LITERAL_VENDOR_KIND must be 1 or 0"),
        ("WOPR_REASONING_VERBOSITY", "loud", "reasoning_verbosity must be"),
        ("WOPR_TOOL_RATE_LIMIT", "-1", "tool_rate_limit must be 0 or more"),
    ],
)
def test_a_host_does_not_start_with_a_setting_that_cannot_be_enforced(
    tmp_path: Path, name: str, value: str, told: str
) -> None:
    done = run(("serve", "--port", "0"), environment(tmp_path, {name: value}))

    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr
