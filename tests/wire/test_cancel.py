from __future__ import annotations

import time

import pytest

from tests.support.client import Wire
from tests.support.definitions import delay, fresh, node, workflow
from tests.support.long_runs import SLOW, under_way
from tests.wire.timing import is_within
from wopr.protocol.documents import JsonObject

pytestmark = pytest.mark.both_stores


def last_payload(wire: Wire, run_id: str, event_type: str) -> JsonObject:
    found = [event for event in wire.log(run_id) if event["type"] == event_type]
    payload: JsonObject = found[-1]["payload"]
    return payload


# Cancel


def test_a_cancelled_run_ends_within_five_seconds(acme: Wire) -> None:
    def seconds() -> float:
        run_id = under_way(acme)
        began = time.monotonic()
        answer = acme.post(f"/v1/runs/{run_id}/cancel", {"reason": "enough"})
        acme.events_until(run_id, "run.cancelled")
        took = time.monotonic() - began

        assert answer.json()["runId"] == run_id
        assert answer.json()["status"] in ("cancelling", "cancelled")
        assert last_payload(acme, run_id, "run.cancelled")["reason"] == "enough"
        return took

    assert is_within(5, seconds)


@pytest.mark.parametrize("body", [None, {}, {"reason": ""}])
def test_a_cancel_needs_no_reason(acme: Wire, body: JsonObject | None) -> None:
    run_id = under_way(acme)

    assert acme.post(f"/v1/runs/{run_id}/cancel", body).status_code == 200
    assert acme.finished(run_id)["status"] == "cancelled"


@pytest.mark.parametrize(
    ("workflow_id", "status"),
    [("conformance-noop", "completed"), ("conformance-failure", "failed")],
)
def test_an_ended_run_keeps_its_status_and_its_log(
    acme: Wire, workflow_id: str, status: str
) -> None:
    run_id = acme.create(workflow_id)
    before = acme.finished(run_id)
    log = acme.log(run_id)

    answer = acme.post(f"/v1/runs/{run_id}/cancel")

    assert answer.status_code == 200
    assert answer.json() == {"runId": run_id, "status": status, "alreadyTerminal": True}
    assert (acme.snapshot(run_id), acme.log(run_id)) == (before, log)


def test_a_second_cancel_has_no_effect(acme: Wire) -> None:
    run_id = under_way(acme)
    acme.post(f"/v1/runs/{run_id}/cancel")
    acme.finished(run_id)

    again = acme.post(f"/v1/runs/{run_id}/cancel")

    assert (again.status_code, again.json()["status"]) == (200, "cancelled")
    assert acme.types(run_id).count("run.cancelled") == 1


def test_a_paused_run_can_be_cancelled(acme: Wire) -> None:
    run_id = under_way(acme)
    acme.post(f"/v1/runs/{run_id}:pause", {"drainPolicy": "immediate"})

    acme.post(f"/v1/runs/{run_id}/cancel")

    assert acme.finished(run_id)["status"] == "cancelled"


def test_an_unknown_run_cannot_be_cancelled(acme: Wire) -> None:
    assert acme.post("/v1/runs/nowhere/cancel").status_code == 404


def _family(wire: Wire) -> tuple[str, str, str]:
    """Start a run with a child and a grandchild, all three waiting."""
    grandchild = wire.register(workflow([delay("wait", 120_000)]))
    call = {"waitForCompletion": True}
    child = wire.register(
        workflow([node("call", "core.subWorkflow", config={"workflowId": grandchild, **call})])
    )
    parent = wire.register(
        workflow([node("call", "core.subWorkflow", config={"workflowId": child, **call})])
    )
    first = wire.create(parent)
    second = wire.events_until(first, "node.dispatched")[-1]["payload"]["childRunId"]
    third = wire.events_until(second, "node.dispatched")[-1]["payload"]["childRunId"]
    return first, second, third


def test_a_cancel_reaches_all_descendants(acme: Wire) -> None:
    def seconds() -> float:
        parent, child, grandchild = _family(acme)
        began = time.monotonic()
        acme.post(f"/v1/runs/{parent}/cancel", {"reason": "enough"})
        statuses = [acme.finished(run_id)["status"] for run_id in (parent, child, grandchild)]
        took = time.monotonic() - began

        assert statuses == ["cancelled"] * 3
        assert last_payload(acme, child, "run.cancelled") == {
            "reason": "parent-cancelled",
            "parentRunId": parent,
        }
        assert last_payload(acme, grandchild, "run.cancelled")["parentRunId"] == child
        return took

    assert is_within(5, seconds)


def test_a_cancelled_child_fails_its_parent(acme: Wire) -> None:
    parent, child, grandchild = _family(acme)

    acme.post(f"/v1/runs/{grandchild}/cancel")

    assert acme.finished(child)["error"]["code"] == "child_cancelled"
    assert acme.finished(parent)["status"] == "failed"


# Bulk cancel


def test_a_bulk_cancel_reports_every_item_in_order(acme: Wire, globex: Wire) -> None:
    running = under_way(acme)
    completed = acme.run("conformance-noop")["runId"]
    failed = acme.run("conformance-failure")["runId"]
    cancelled = under_way(acme)
    acme.post(f"/v1/runs/{cancelled}/cancel")
    acme.finished(cancelled)
    foreign = globex.create("conformance-cancellable", SLOW)
    asked = [failed, running, "nowhere", completed, cancelled, foreign, running]

    answer = acme.post("/v1/runs:bulk-cancel", {"runIds": asked, "reason": "all of you"})

    results = answer.json()["results"]
    assert answer.status_code == 200
    assert [item["runId"] for item in results] == asked
    assert [item["ok"] for item in results] == [False, True, False, False, True, False, True]
    assert [item.get("error", {}).get("code") for item in results] == [
        "run_terminal",
        None,
        "not_found",
        "run_terminal",
        None,
        "not_found",
        None,
    ]
    assert all(item["error"]["message"] for item in results if not item["ok"])
    assert {item["status"] for item in results if item["ok"]} <= {"cancelling", "cancelled"}
    assert acme.finished(running)["status"] == "cancelled"
    assert last_payload(acme, running, "run.cancelled")["reason"] == "all of you"
    assert globex.snapshot(foreign)["status"] == "running"
    globex.post(f"/v1/runs/{foreign}/cancel")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"runIds": []}, "runIds"),
        ({"runIds": ["x"] * 101}, "runIds"),
        ({"runIds": ["x" * 129]}, "runIds[0]"),
        ({"runIds": [""]}, "runIds[0]"),
        ({"runIds": "x"}, "runIds"),
        ({}, "runIds"),
        ({"runIds": ["x"], "reason": "r" * 513}, "reason"),
        ({"runIds": ["x"], "other": 1}, "other"),
    ],
)
def test_an_invalid_bulk_cancel_names_the_place_and_the_maximum(
    acme: Wire, body: JsonObject, field: str
) -> None:
    response = acme.post("/v1/runs:bulk-cancel", body)

    assert response.status_code == 400
    assert response.json()["error"] == "validation_error"
    assert response.json()["details"] == {"field": field, "maxRunIds": 100}


def test_a_hundred_runs_can_be_cancelled_at_once(acme: Wire) -> None:
    tag = fresh("tag")
    runs = [acme.create("conformance-cancellable", SLOW, tags=[tag]) for _ in range(100)]

    results = acme.post("/v1/runs:bulk-cancel", {"runIds": runs}).json()["results"]

    assert all(item["ok"] for item in results)
    assert all(acme.finished(run_id)["status"] == "cancelled" for run_id in runs[::20])
