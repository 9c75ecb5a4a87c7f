from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.wire.client import Wire
from tests.wire.definitions import delay, edge, fresh, node, workflow
from tests.wire.host import ACME, ServedHost
from wopr.protocol.documents import JsonObject

SLOW = {"delayMs": 20_000}


def _running(wire: Wire) -> str:
    run_id = wire.create("conformance-cancellable", SLOW)
    wire.events_until(run_id, "node.started")
    return run_id


def _last(wire: Wire, run_id: str, event_type: str) -> JsonObject:
    found = [event for event in wire.log(run_id) if event["type"] == event_type]
    payload: JsonObject = found[-1]["payload"]
    return payload


# Cancel


def test_a_cancelled_run_ends_within_five_seconds(acme: Wire) -> None:
    run_id = _running(acme)
    began = time.monotonic()

    answer = acme.post(f"/v1/runs/{run_id}/cancel", {"reason": "enough"})
    acme.events_until(run_id, "run.cancelled")

    assert time.monotonic() - began < 5
    assert answer.json()["runId"] == run_id
    assert answer.json()["status"] in ("cancelling", "cancelled")
    assert _last(acme, run_id, "run.cancelled")["reason"] == "enough"


@pytest.mark.parametrize("body", [None, {}, {"reason": ""}])
def test_a_cancel_needs_no_reason(acme: Wire, body: JsonObject | None) -> None:
    run_id = _running(acme)

    assert acme.post(f"/v1/runs/{run_id}/cancel", body).status_code == 200
    assert acme.finished(run_id)["status"] == "cancelled"


@pytest.mark.parametrize(
    ("workflow_id", "status"),
    [("conformance-noop", "completed"), ("conformance-failure", "failed")],
)
def test_a_run_that_has_ended_keeps_its_status_and_its_log(
    acme: Wire, workflow_id: str, status: str
) -> None:
    run_id = acme.create(workflow_id)
    before = acme.finished(run_id)
    log = acme.log(run_id)

    answer = acme.post(f"/v1/runs/{run_id}/cancel")

    assert answer.status_code == 200
    assert answer.json() == {"runId": run_id, "status": status, "alreadyTerminal": True}
    assert (acme.snapshot(run_id), acme.log(run_id)) == (before, log)


def test_cancelling_twice_is_cancelling_once(acme: Wire) -> None:
    run_id = _running(acme)
    acme.post(f"/v1/runs/{run_id}/cancel")
    acme.finished(run_id)

    again = acme.post(f"/v1/runs/{run_id}/cancel")

    assert (again.status_code, again.json()["status"]) == (200, "cancelled")
    assert acme.types(run_id).count("run.cancelled") == 1


def test_a_paused_run_can_be_cancelled(acme: Wire) -> None:
    run_id = _running(acme)
    acme.post(f"/v1/runs/{run_id}:pause", {"drainPolicy": "immediate"})

    acme.post(f"/v1/runs/{run_id}/cancel")

    assert acme.finished(run_id)["status"] == "cancelled"


def test_an_unknown_run_cannot_be_cancelled(acme: Wire) -> None:
    assert acme.post("/v1/runs/nowhere/cancel").status_code == 404


def _family(wire: Wire) -> tuple[str, str, str]:
    """A run, its child and its grandchild, all three waiting."""
    grandchild = wire.register(workflow([delay("wait", 20_000)]))
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


def test_a_cancel_reaches_children_and_their_children(acme: Wire) -> None:
    parent, child, grandchild = _family(acme)
    began = time.monotonic()

    acme.post(f"/v1/runs/{parent}/cancel", {"reason": "enough"})
    statuses = [acme.finished(run_id)["status"] for run_id in (parent, child, grandchild)]

    assert time.monotonic() - began < 5
    assert statuses == ["cancelled"] * 3
    assert _last(acme, child, "run.cancelled") == {
        "reason": "parent-cancelled",
        "parentRunId": parent,
    }
    assert _last(acme, grandchild, "run.cancelled")["parentRunId"] == child


def test_a_cancelled_child_fails_its_parent(acme: Wire) -> None:
    parent, child, grandchild = _family(acme)

    acme.post(f"/v1/runs/{grandchild}/cancel")

    assert acme.finished(child)["error"]["code"] == "child_cancelled"
    assert acme.finished(parent)["status"] == "failed"


# Bulk cancel


def test_a_bulk_cancel_answers_for_every_item_in_order(acme: Wire, globex: Wire) -> None:
    running = _running(acme)
    completed = acme.run("conformance-noop")["runId"]
    failed = acme.run("conformance-failure")["runId"]
    cancelled = _running(acme)
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
    assert _last(acme, running, "run.cancelled")["reason"] == "all of you"
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
def test_a_bulk_cancel_that_is_wrong_says_where_and_how_many_there_may_be(
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


# Pause and resume


def test_a_pause_waits_for_the_node_in_flight_by_default(acme: Wire) -> None:
    run_id = acme.create(acme.register(workflow([delay("first", 300), node("second")])))
    acme.events_until(run_id, "node.started")

    answer = acme.post(f"/v1/runs/{run_id}:pause", {"reason": "lunch"})
    log = acme.events_until(run_id, "run.paused")

    assert answer.status_code == 202
    assert answer.json()["status"] == "paused"
    assert answer.json()["pausedAt"].endswith("Z")
    assert [event["type"] for event in log] == [
        "run.started",
        "node.started",
        "node.completed",
        "run.paused",
    ]
    assert log[-1]["payload"] == {"reason": "lunch", "drainPolicy": "drain-current-node"}
    assert acme.snapshot(run_id)["status"] == "paused"


def test_a_paused_run_goes_on_where_it_stopped(acme: Wire) -> None:
    run_id = acme.create(acme.register(workflow([delay("first", 100), node("second")])))
    acme.post(f"/v1/runs/{run_id}:pause")
    acme.events_until(run_id, "run.paused")

    answer = acme.post(f"/v1/runs/{run_id}:resume")

    assert answer.status_code == 202
    assert answer.json()["status"] == "running"
    assert answer.json()["resumedAt"].endswith("Z")
    assert acme.finished(run_id)["status"] == "completed"
    assert acme.types(run_id)[3:] == [
        "run.paused",
        "run.resumed",
        "node.started",
        "node.completed",
        "run.completed",
    ]


def test_an_immediate_pause_interrupts_the_node_and_a_resume_tries_it_afresh(acme: Wire) -> None:
    run_id = acme.create("conformance-delay", {"delayMs": 400})
    acme.events_until(run_id, "node.started")

    acme.post(f"/v1/runs/{run_id}:pause", {"drainPolicy": "immediate"})
    paused = acme.log(run_id)
    acme.post(f"/v1/runs/{run_id}:resume")
    acme.finished(run_id)

    types = acme.types(run_id)
    started = [event for event in acme.log(run_id) if event["type"] == "node.started"]
    assert [event["type"] for event in paused][-2:] == ["node.cancelled", "run.paused"]
    assert paused[-1]["payload"]["drainPolicy"] == "immediate"
    assert types[-4:] == ["run.resumed", "node.started", "node.completed", "run.completed"]
    assert len({event["eventId"] for event in started}) == 2


def test_nothing_starts_while_a_run_drains_or_is_paused(acme: Wire) -> None:
    definition = workflow(
        [delay("slow", 400), delay("quick", 100), node("after-quick"), node("after-slow")],
        edges=[edge("quick", "after-quick"), edge("slow", "after-slow")],
    )
    run_id = acme.create(acme.register(definition))
    acme.post(f"/v1/runs/{run_id}:pause")

    log = acme.events_until(run_id, "run.paused")

    started = [event["nodeId"] for event in log if event["type"] == "node.started"]
    assert started == ["slow", "quick"]
    acme.post(f"/v1/runs/{run_id}:resume")
    assert acme.finished(run_id)["status"] == "completed"


def test_a_second_pause_is_refused_with_the_state_of_the_run(acme: Wire) -> None:
    run_id = _running(acme)
    acme.post(f"/v1/runs/{run_id}:pause", {"drainPolicy": "immediate"})

    again = acme.post(f"/v1/runs/{run_id}:pause")

    assert again.status_code == 409
    assert again.json()["error"] == "run_state_conflict"
    assert again.json()["details"]["runStatus"] == "paused"
    assert again.json()["details"]["pausedAt"] == acme.snapshot(run_id)["pausedAt"]
    acme.post(f"/v1/runs/{run_id}/cancel")


def test_a_pause_while_the_run_drains_is_refused_too(acme: Wire) -> None:
    run_id = _running(acme)
    acme.post(f"/v1/runs/{run_id}:pause")

    again = acme.post(f"/v1/runs/{run_id}:pause")

    assert again.status_code == 409
    assert again.json()["details"]["runStatus"] == "running"
    acme.post(f"/v1/runs/{run_id}/cancel")


def test_a_repeated_pause_with_its_key_gets_the_first_answer(acme: Wire) -> None:
    run_id = _running(acme)
    key = {"Idempotency-Key": fresh("key")}
    body = {"drainPolicy": "immediate"}

    first = acme.post(f"/v1/runs/{run_id}:pause", body, headers=key)
    second = acme.post(f"/v1/runs/{run_id}:pause", body, headers=key)

    assert (first.status_code, second.status_code) == (202, 202)
    assert first.content == second.content
    acme.post(f"/v1/runs/{run_id}/cancel")


@pytest.mark.parametrize("action", ["pause", "resume"])
@pytest.mark.parametrize(
    ("workflow_id", "status"),
    [("conformance-noop", "completed"), ("conformance-failure", "failed")],
)
def test_an_ended_run_can_be_neither_paused_nor_resumed(
    acme: Wire, action: str, workflow_id: str, status: str
) -> None:
    run_id = acme.run(workflow_id)["runId"]

    response = acme.post(f"/v1/runs/{run_id}:{action}")

    assert response.status_code == 409
    assert response.json()["details"]["runStatus"] == status


def test_a_running_run_cannot_be_resumed(acme: Wire) -> None:
    run_id = _running(acme)

    response = acme.post(f"/v1/runs/{run_id}:resume")

    assert response.status_code == 409
    assert response.json()["details"]["runStatus"] == "running"
    acme.post(f"/v1/runs/{run_id}/cancel")


@pytest.mark.parametrize("policy", ["whenever", "", "IMMEDIATE"])
def test_a_drain_policy_that_is_not_advertised_is_refused(acme: Wire, policy: str) -> None:
    run_id = _running(acme)

    response = acme.post(f"/v1/runs/{run_id}:pause", {"drainPolicy": policy})

    advertised = acme.document("/.well-known/openwop")["runs"]["pauseResume"]["drainPolicies"]
    assert response.status_code == 422
    assert response.json()["error"] == "validation_error"
    assert response.json()["details"]["supported"] == advertised
    assert acme.snapshot(run_id)["status"] == "running"
    acme.post(f"/v1/runs/{run_id}/cancel")


@pytest.mark.parametrize("action", [":pause", ":resume"])
def test_an_unknown_run_is_neither_paused_nor_resumed(acme: Wire, action: str) -> None:
    assert acme.post(f"/v1/runs/nowhere{action}").status_code == 404


def test_a_pause_outlives_a_restart(
    new_host: Callable[..., ServedHost], connect: Callable[..., Wire]
) -> None:
    host = new_host("--conformance")
    wire = connect(ACME, host)
    paused = wire.create("conformance-delay", {"delayMs": 200})
    draining = wire.create("conformance-delay", {"delayMs": 2500})
    wire.post(f"/v1/runs/{paused}:pause", {"drainPolicy": "immediate"})
    wire.post(f"/v1/runs/{draining}:pause")

    host.restart()
    wire = connect(ACME, host)

    assert wire.snapshot(paused)["status"] == "paused"
    assert wire.events_until(draining, "run.paused")[-1]["type"] == "run.paused"
    for run_id in (paused, draining):
        wire.post(f"/v1/runs/{run_id}:resume")
        assert wire.finished(run_id)["status"] == "completed"


def test_a_parent_pauses_while_its_child_goes_on(acme: Wire) -> None:
    child = acme.register(workflow([delay("wait", 300)]))
    config = {"workflowId": child, "outputMapping": {}}
    parent = acme.register(workflow([node("call", "core.subWorkflow", config=config), node("end")]))
    run_id = acme.create(parent)
    acme.events_until(run_id, "node.dispatched")

    acme.post(f"/v1/runs/{run_id}:pause", {"drainPolicy": "immediate"})
    acme.post(f"/v1/runs/{run_id}:resume")

    assert acme.finished(run_id)["status"] == "completed"
    assert acme.types(run_id).count("node.dispatched") == 1
