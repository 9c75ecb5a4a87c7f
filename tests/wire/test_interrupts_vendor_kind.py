"""A custom interrupt kind of the host for decisions below the confidence floor."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.agent_definitions import (
    DONE,
    ESCALATED,
    answer,
    events_of,
    next_worker,
    only_event,
)
from tests.support.client import Wire
from tests.support.forked import run
from tests.support.host import ACME, GLOBEX, VIEWER, ServedHost, environment, served
from tests.support.stored_files import audit_entries
from tests.wire.escalations import OTHER, UNSURE, escalated
from wopr.protocol.documents import Json, JsonObject

KIND = "x-host-wopr-second-look"


@pytest.fixture(scope="module")
def vendor_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHost]:
    """Start hosts with settings for a custom kind."""
    with served(
        tmp_path_factory.mktemp("vendor"),
        "--conformance",
        WOPR_CONFIDENCE_INTERRUPT_KIND=KIND,
        WOPR_VENDOR_KIND_MEANS="clarify",
        WOPR_VENDOR_KIND_STATUS="waiting-external",
        WOPR_VENDOR_KIND_CONSUMERS="inbox, pager",
    ) as running:
        yield running


@pytest.fixture
def vendor(vendor_host: ServedHost) -> Iterator[Wire]:
    with Wire(vendor_host.url, ACME) as wire:
        yield wire


@contextmanager
def calling(data_dir: Path, **settings: str) -> Iterator[Wire]:
    """Connect to a host with its own kind and these settings."""
    variables = {"WOPR_CONFIDENCE_INTERRUPT_KIND": KIND} | settings
    with (
        served(data_dir, "--conformance", **variables) as running,
        Wire(running.url, ACME) as wire,
    ):
        yield wire


def waits(wire: Wire, **query: str) -> list[JsonObject]:
    items: list[JsonObject] = wire.document("/v1/interrupts", params=query)["items"]
    return items


def extension(wire: Wire) -> JsonObject:
    found: JsonObject = wire.document("/.well-known/openwop")["extensions"]["interrupts"]
    return found


# Advertisement


def test_the_kind_is_advertised_with_a_document_generated_from_the_settings(vendor: Wire) -> None:
    model = vendor.document("/.well-known/openwop")["multiAgent"]["executionModel"]
    assert model["confidenceEscalationInterruptKind"] == KIND

    mapping = vendor.document(extension(vendor)["vendorKindUrl"])

    assert mapping["kind"] == KIND
    assert mapping["escalationKind"] == "clarify"
    assert mapping["waitingStatus"] == "waiting-external"
    assert mapping["consumers"] == ["inbox", "pager"]


def test_the_document_matches_the_events_and_names_the_kind_s_places(vendor: Wire) -> None:
    mapping = vendor.document(extension(vendor)["vendorKindUrl"])

    assert mapping["eventKind"] == "custom"
    assert mapping["kindInEvents"] == {
        "node.suspended": "payload.x-host-wopr-interrupt-kind",
        "interrupt.requested": "payload.data.customKind",
        "interrupt.resolved": "payload.x-host-wopr-interrupt-kind",
    }
    assert "literalVendorKind" not in extension(vendor)


def test_the_default_meaning_of_the_kind_is_escalation(tmp_path: Path) -> None:
    with calling(tmp_path) as wire:
        mapping = wire.document(extension(wire)["vendorKindUrl"])
        run_id = escalated(wire, UNSURE, DONE)

        assert mapping["escalationKind"] == "escalate"
        assert mapping["waitingStatus"] == "waiting-approval"
        assert mapping["consumers"] == ["inbox", "webhooks", "audit log"]
        assert wire.snapshot(run_id)["status"] == "waiting-approval"


def test_a_kind_that_means_clarification_waits_for_input_unless_a_status_is_set(
    tmp_path: Path,
) -> None:
    with calling(tmp_path, WOPR_VENDOR_KIND_MEANS="clarify") as wire:
        mapping = wire.document(extension(wire)["vendorKindUrl"])
        run_id = escalated(wire, UNSURE, DONE)

        assert mapping["waitingStatus"] == "waiting-input"
        assert wire.snapshot(run_id)["status"] == "waiting-input"


def test_a_host_without_such_a_kind_has_no_document(acme: Wire) -> None:
    assert acme.get(f"/v1/interrupt-kinds/{KIND}").status_code == 404
    assert "vendorKindUrl" not in extension(acme)


# Where the kind is shown


def test_closed_events_say_custom_with_the_kind_in_an_extra_member(vendor: Wire) -> None:
    run_id = escalated(vendor, UNSURE, DONE)
    answer(vendor, run_id, "dispatch", "accept")
    vendor.finished(run_id)

    log = vendor.log(run_id)

    suspended = only_event(log, "node.suspended")["payload"]
    request = only_event(log, "interrupt.requested")["payload"]
    resolved = only_event(log, "interrupt.resolved")["payload"]
    assert [each["kind"] for each in (suspended, request, resolved)] == ["custom"] * 3
    assert suspended["x-host-wopr-interrupt-kind"] == KIND
    assert request["data"]["customKind"] == KIND
    assert resolved["x-host-wopr-interrupt-kind"] == KIND
    assert only_event(log, ESCALATED)["payload"]["escalationKind"] == "clarify"


def test_the_snapshot_has_the_kind_and_the_status_of_the_document(vendor: Wire) -> None:
    run_id = escalated(vendor, UNSURE, DONE)

    snapshot = vendor.snapshot(run_id)

    assert snapshot["status"] == "waiting-external"
    assert snapshot["interrupt"]["kind"] == KIND
    assert snapshot["interrupt"]["payload"]["kind"] == "custom"


def test_the_holder_of_a_token_sees_the_kind(vendor: Wire) -> None:
    run_id = escalated(vendor, UNSURE, DONE)

    url = vendor.snapshot(run_id)["interrupt"]["callbackUrl"]

    assert vendor.document(url)["kind"] == KIND


def test_the_inbox_lists_and_filters_by_the_kind(vendor: Wire) -> None:
    run_id = escalated(vendor, UNSURE, DONE)

    [item] = waits(vendor, runId=run_id, kind=KIND)

    assert item["kind"] == KIND
    assert item["status"] == "waiting-external"
    assert item["question"] == "The supervisor is 30% confident (needs 50%)."
    assert set(item["answers"]) == {"accept", "reject", "value"}
    assert [each["kind"] for each in waits(vendor, runId=run_id, kind=f"approval,{KIND}")] == [KIND]
    assert waits(vendor, runId=run_id, kind="custom") == []
    assert waits(vendor, runId=run_id, kind="x-host-wopr-third-look") == []


def test_another_tenant_s_filter_does_not_find_the_wait(
    vendor: Wire, vendor_host: ServedHost
) -> None:
    run_id = escalated(vendor, UNSURE, DONE)

    with Wire(vendor_host.url, GLOBEX) as globex:
        assert waits(globex, kind=KIND) == []
        assert waits(globex, kind=KIND, runId=run_id) == []


def test_an_invalid_kind_of_a_host_is_refused_by_the_filter(vendor: Wire) -> None:
    response = vendor.get("/v1/interrupts", params={"kind": "x-host-Wopr"})

    assert response.status_code == 400
    assert response.json()["details"]["field"] == "kind"
    assert "x-host-Wopr" in response.json()["message"]
    assert "x-host-<host>-<kind>" in response.json()["message"]


def test_the_audit_log_names_the_kind_of_the_wait_that_was_answered(
    vendor: Wire, vendor_host: ServedHost
) -> None:
    run_id = escalated(vendor, UNSURE, DONE)
    answer(vendor, run_id, "dispatch", "accept")

    [entry] = [
        each
        for each in audit_entries(vendor_host)
        if each["action"] == "interrupt.resolve" and each["resource"] == run_id
    ]

    assert entry["facts"]["kind"] == KIND


def test_a_wait_keeps_its_kind_after_a_restart(tmp_path: Path) -> None:
    host = ServedHost(tmp_path, ("--conformance",), {"WOPR_CONFIDENCE_INTERRUPT_KIND": KIND})
    host.start()
    with Wire(host.url, ACME) as wire:
        run_id = escalated(wire, UNSURE, DONE)
    host.variables["WOPR_CONFIDENCE_INTERRUPT_KIND"] = "approval"
    host.restart()

    with Wire(host.url, ACME) as wire:
        assert wire.snapshot(run_id)["interrupt"]["kind"] == KIND
        assert [item["kind"] for item in waits(wire, kind=KIND)] == [KIND]
        answer(wire, run_id, "dispatch", "accept")
        assert wire.finished(run_id)["status"] == "completed"
    host.stop()


# Answers


@pytest.mark.parametrize(
    ("value", "workers"),
    [
        ("accept", ["conformance-noop"]),
        ({"action": "accept"}, ["conformance-noop"]),
        ({"action": "reject"}, []),
        ("reject", []),
        (next_worker(OTHER), [OTHER]),
        ({"decision": next_worker(OTHER)}, [OTHER]),
        ({"action": "edit-accept", "editedArtifactData": next_worker(OTHER)}, [OTHER]),
    ],
)
def test_the_kind_accepts_the_answers_of_an_approval_and_a_clarification(
    vendor: Wire, value: Json, workers: list[str]
) -> None:
    run_id = escalated(vendor, UNSURE, DONE)
    answer(vendor, run_id, "dispatch", value)

    assert vendor.finished(run_id)["status"] == "completed"
    dispatched = events_of(vendor.log(run_id), "node.dispatched")
    assert [event["payload"]["childWorkflowId"] for event in dispatched] == workers


def test_a_read_only_key_cannot_answer(vendor: Wire, vendor_host: ServedHost) -> None:
    run_id = escalated(vendor, UNSURE, DONE)

    with Wire(vendor_host.url, VIEWER) as viewer:
        path = f"/v1/runs/{run_id}/interrupts/dispatch"
        assert viewer.post(path, {"resumeValue": "accept"}).status_code == 403

    assert vendor.snapshot(run_id)["status"] == "waiting-external"


# The command line


def wopr(host: ServedHost, *arguments: str) -> subprocess.CompletedProcess[str]:
    variables = {"WOPR_URL": host.url, "WOPR_API_KEY": ACME}
    return run(arguments, environment(host.data_dir, variables))


def test_the_command_line_filters_by_the_kind_shows_it_and_answers(
    vendor: Wire, vendor_host: ServedHost
) -> None:
    run_id = escalated(vendor, UNSURE, DONE)

    listed = wopr(vendor_host, "inbox", "list", "--kind", KIND, "--run", run_id, "--json")
    shown = wopr(vendor_host, "inbox", "show", run_id, "dispatch")
    done = wopr(vendor_host, "inbox", "answer", run_id, "dispatch", "--accept")

    assert [item["kind"] for item in json.loads(listed.stdout)["items"]] == [KIND]
    assert KIND in shown.stdout
    assert done.returncode == 0, done.stderr
    assert vendor.finished(run_id)["status"] == "completed"


# The literal kind


def test_an_operator_can_enable_the_literal_kind_in_events(tmp_path: Path) -> None:
    with calling(tmp_path, WOPR_LITERAL_VENDOR_KIND="1") as wire:
        assert extension(wire)["literalVendorKind"] is True
        mapping = wire.document(extension(wire)["vendorKindUrl"])
        wire.recorder.literal_kind = KIND
        run_id = escalated(wire, UNSURE, DONE)
        assert wire.snapshot(run_id)["interrupt"]["payload"]["kind"] == KIND
        answer(wire, run_id, "dispatch", "accept")

        assert wire.finished(run_id)["status"] == "completed"
        log = wire.log(run_id)
        kinds = [
            only_event(log, name)["payload"]["kind"]
            for name in ("node.suspended", "interrupt.requested", "interrupt.resolved")
        ]
        assert kinds == [KIND] * 3
        assert mapping["eventKind"] == KIND
        assert mapping["kindInEvents"] == {
            "node.suspended": "payload.kind",
            "interrupt.requested": "payload.kind",
            "interrupt.resolved": "payload.kind",
        }
