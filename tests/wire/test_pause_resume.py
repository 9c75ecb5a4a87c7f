from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from tests.support.client import Wire
from tests.support.definitions import delay, edge, fresh, node, workflow
from tests.support.host import ACME, ServedHost
from tests.support.long_runs import under_way
from tests.wire.timing import in_time
from wopr.protocol.documents import Json, JsonObject

pytestmark = pytest.mark.both_stores


def paused(
    wire: Wire, definition: Callable[[int], JsonObject], **body: Json
) -> tuple[str, httpx.Response]:
    """Pause a run with delays of so many milliseconds, and return the response."""

    def attempt(milliseconds: int) -> tuple[str, httpx.Response] | None:
        run_id = wire.create(wire.register(definition(milliseconds)))
        answer = wire.post(f"/v1/runs/{run_id}:pause", body)
        return None if "node.completed" in wire.types(run_id) else (run_id, answer)

    return in_time(attempt)


def two_steps(milliseconds: int) -> JsonObject:
    return workflow([delay("first", milliseconds), node("second")])


def one_step(milliseconds: int) -> JsonObject:
    return workflow([delay("wait", milliseconds)])


def test_a_pause_waits_for_the_node_in_flight_by_default(acme: Wire) -> None:
    run_id, answer = paused(acme, two_steps, reason="lunch")

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


def test_the_reason_of_a_resume_is_logged(acme: Wire) -> None:
    run_id, _ = paused(acme, two_steps)
    acme.events_until(run_id, "run.paused")

    answer = acme.post(f"/v1/runs/{run_id}:resume", {"reason": "lunch is over"})

    assert answer.status_code == 202
    assert answer.json()["status"] == "running"
    log = acme.events_until(run_id, "run.completed")
    [resumed] = [event for event in log if event["type"] == "run.resumed"]
    assert resumed["payload"] == {"reason": "lunch is over"}


@pytest.mark.parametrize(
    ("body", "field"),
    [({"reason": "x" * 513}, "reason"), ({"reason": 5}, "reason"), ({"why": "x"}, "why")],
)
def test_a_resume_with_another_value_is_refused_and_the_run_stays_paused(
    acme: Wire, body: JsonObject, field: str
) -> None:
    run_id, _ = paused(acme, two_steps)
    acme.events_until(run_id, "run.paused")

    answer = acme.post(f"/v1/runs/{run_id}:resume", body)

    assert answer.status_code == 400
    assert answer.json()["details"]["field"] == field
    assert acme.snapshot(run_id)["status"] == "paused"


def test_a_paused_run_continues_where_it_stopped(acme: Wire) -> None:
    run_id, _ = paused(acme, two_steps)
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


def test_an_immediate_pause_interrupts_the_node_and_a_resume_starts_it_again(acme: Wire) -> None:
    run_id, _ = paused(acme, one_step, drainPolicy="immediate")

    before = acme.log(run_id)
    acme.post(f"/v1/runs/{run_id}:resume")
    acme.finished(run_id)

    types = acme.types(run_id)
    started = [event for event in acme.log(run_id) if event["type"] == "node.started"]
    assert [event["type"] for event in before][-2:] == ["node.cancelled", "run.paused"]
    assert before[-1]["payload"]["drainPolicy"] == "immediate"
    assert types[-4:] == ["run.resumed", "node.started", "node.completed", "run.completed"]
    assert len({event["eventId"] for event in started}) == 2


def test_nothing_starts_while_a_run_drains_or_is_paused(acme: Wire) -> None:
    def side_by_side(milliseconds: int) -> JsonObject:
        slow, quick = delay("slow", milliseconds + 500), delay("quick", milliseconds)
        return workflow(
            [slow, quick, node("after-quick"), node("after-slow")],
            edges=[edge("quick", "after-quick"), edge("slow", "after-slow")],
        )

    run_id, _ = paused(acme, side_by_side)
    log = acme.events_until(run_id, "run.paused")

    started = [event["nodeId"] for event in log if event["type"] == "node.started"]
    assert started == ["slow", "quick"]
    acme.post(f"/v1/runs/{run_id}:resume")
    assert acme.finished(run_id)["status"] == "completed"


def test_a_second_pause_is_refused_with_the_state_of_the_run(acme: Wire) -> None:
    run_id = under_way(acme)
    acme.post(f"/v1/runs/{run_id}:pause", {"drainPolicy": "immediate"})

    again = acme.post(f"/v1/runs/{run_id}:pause")

    assert again.status_code == 409
    assert again.json()["error"] == "run_state_conflict"
    assert again.json()["details"]["runStatus"] == "paused"
    assert again.json()["details"]["pausedAt"] == acme.snapshot(run_id)["pausedAt"]
    acme.post(f"/v1/runs/{run_id}/cancel")


def test_a_pause_while_the_run_drains_is_refused_too(acme: Wire) -> None:
    run_id = under_way(acme)
    acme.post(f"/v1/runs/{run_id}:pause")

    again = acme.post(f"/v1/runs/{run_id}:pause")

    assert again.status_code == 409
    assert again.json()["details"]["runStatus"] == "running"
    acme.post(f"/v1/runs/{run_id}/cancel")


def test_a_repeated_pause_with_its_key_gets_the_first_answer(acme: Wire) -> None:
    run_id = under_way(acme)
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
    run_id = under_way(acme)

    response = acme.post(f"/v1/runs/{run_id}:resume")

    assert response.status_code == 409
    assert response.json()["details"]["runStatus"] == "running"
    acme.post(f"/v1/runs/{run_id}/cancel")


@pytest.mark.parametrize("policy", ["whenever", "", "IMMEDIATE"])
def test_a_drain_policy_that_is_not_advertised_is_refused(acme: Wire, policy: str) -> None:
    run_id = under_way(acme)

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


def test_a_pause_survives_a_restart(
    new_host: Callable[..., ServedHost], connect: Callable[..., Wire]
) -> None:
    host = new_host("--conformance")
    wire = connect(ACME, host)
    stopped, _ = paused(wire, one_step, drainPolicy="immediate")
    draining, _ = paused(wire, one_step)

    host.restart()
    wire = connect(ACME, host)

    assert wire.snapshot(stopped)["status"] == "paused"
    assert wire.events_until(draining, "run.paused")[-1]["type"] == "run.paused"
    for run_id in (stopped, draining):
        wire.post(f"/v1/runs/{run_id}:resume")
        assert wire.finished(run_id)["status"] == "completed"


def test_a_parent_pauses_while_its_child_continues(acme: Wire) -> None:
    child = acme.register(workflow([delay("wait", 1500)]))
    config = {"workflowId": child, "outputMapping": {}}
    parent = acme.register(workflow([node("call", "core.subWorkflow", config=config), node("end")]))
    run_id = acme.create(parent)
    acme.events_until(run_id, "node.dispatched")

    acme.post(f"/v1/runs/{run_id}:pause", {"drainPolicy": "immediate"})
    acme.post(f"/v1/runs/{run_id}:resume")

    assert acme.finished(run_id)["status"] == "completed"
    assert acme.types(run_id).count("node.dispatched") == 1
