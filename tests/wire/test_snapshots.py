from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.client import Wire
from tests.support.definitions import delay, edge, node, workflow
from tests.support.host import ACME, ServedHost
from tests.support.interrupts import ACCEPT, accepted, gate, waiting_run

pytestmark = pytest.mark.both_stores


def test_a_snapshot_contains_everything_that_a_run_was_started_with(acme: Wire) -> None:
    run_id = acme.create(
        "conformance-identity",
        {"payload": {"a": 1}},
        tags=["red", "blue"],
        metadata={"ticket": {"id": 7}},
        configurable={"temperature": 0.5, "acme.colour": "red"},
        scopeId="scope-1",
    )

    found = acme.finished(run_id)

    assert found["inputs"] == {"payload": {"a": 1}}
    assert found["tags"] == ["red", "blue"]
    assert found["metadata"] == {"ticket": {"id": 7}}
    assert found["configurable"] == {"temperature": 0.5, "acme.colour": "red"}
    assert found["owner"]["tenant"] == "acme"
    assert ACME not in str(found)


def test_a_snapshot_shows_every_node_with_its_state(acme: Wire) -> None:
    definition = workflow(
        [
            node("first"),
            node("taken", "core.identity", inputs={"x": {"type": "static", "value": [1]}}),
            node("passed-over"),
            node("off", disabled=True),
        ],
        edges=[
            edge("first", "taken"),
            edge("first", "passed-over", condition={"type": "expression", "expression": "false"}),
            edge("taken", "off"),
        ],
    )

    found = acme.run(acme.register(definition))

    states = found["nodeStates"]
    assert {name: state["status"] for name, state in states.items()} == {
        "first": "completed",
        "taken": "completed",
        "passed-over": "skipped",
        "off": "skipped",
    }
    assert states["taken"]["outputs"] == {"x": [1]}
    assert states["off"]["reason"] == "disabled"


def test_times_are_utc_and_ordered(acme: Wire) -> None:
    found = acme.run("conformance-delay", {"delayMs": 20})

    assert found["startedAt"].endswith("Z")
    assert found["startedAt"] < found["completedAt"] == found["endedAt"]


def test_an_unchanged_run_answers_304_without_a_body(acme: Wire) -> None:
    run_id = acme.create("conformance-noop")
    acme.finished(run_id)
    first = acme.get(f"/v1/runs/{run_id}")

    again = acme.get(f"/v1/runs/{run_id}", headers={"If-None-Match": first.headers["etag"]})

    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]


def test_a_changed_run_is_sent_completely_with_a_new_tag(acme: Wire) -> None:
    run_id = waiting_run(acme, gate())
    first = acme.get(f"/v1/runs/{run_id}")
    accepted(acme, run_id, "gate", ACCEPT)

    again = acme.get(f"/v1/runs/{run_id}", headers={"If-None-Match": first.headers["etag"]})

    assert again.status_code == 200
    assert again.headers["etag"] != first.headers["etag"]


def test_a_list_of_tags_and_the_asterisk_match_too(acme: Wire) -> None:
    run_id = acme.create("conformance-noop")
    acme.finished(run_id)
    tag = acme.get(f"/v1/runs/{run_id}").headers["etag"]

    for sent in (f'"other", {tag}', "*", f"W/{tag}"):
        answer = acme.get(f"/v1/runs/{run_id}", headers={"If-None-Match": sent})
        assert answer.status_code == 304, sent


def test_discovery_answers_304_to_its_own_tag(anonymous: Wire) -> None:
    first = anonymous.get("/.well-known/openwop")

    again = anonymous.get(
        "/.well-known/openwop", headers={"If-None-Match": f'"x", {first.headers["etag"]}'}
    )

    assert (again.status_code, again.content) == (304, b"")
    assert "max-age" in first.headers["cache-control"]
    assert first.headers["capabilities-etag"]


def test_the_tag_of_a_parent_changes_when_its_child_changes(acme: Wire) -> None:
    child = acme.register(workflow([delay("wait", 120_000)]))
    parent = workflow(
        [node("call", "core.subWorkflow", config={"workflowId": child, "waitForCompletion": False})]
    )
    run_id = acme.create(acme.register(parent))
    before = acme.finished(run_id)
    tag = acme.get(f"/v1/runs/{run_id}").headers["etag"]
    child_id = before["childRuns"][0]["runId"]

    acme.post(f"/v1/runs/{child_id}/cancel")
    acme.finished(child_id)
    after = acme.get(f"/v1/runs/{run_id}", headers={"If-None-Match": tag})

    assert before["childRuns"][0]["status"] == "running"
    assert after.status_code == 200
    assert after.json()["childRuns"][0]["status"] == "cancelled"


def test_an_ended_run_has_the_same_bytes_every_time_and_after_a_restart(
    new_host: Callable[..., ServedHost], connect: Callable[..., Wire]
) -> None:
    host = new_host("--conformance")
    wire = connect(ACME, host)
    runs = [
        wire.create("conformance-noop"),
        wire.create("conformance-failure"),
        wire.create("conformance-subworkflow-parent"),
    ]
    for run_id in runs:
        wire.finished(run_id)
    before = [wire.get(f"/v1/runs/{run_id}").content for run_id in runs]
    again = [wire.get(f"/v1/runs/{run_id}").content for run_id in runs]

    host.restart()
    wire = connect(ACME, host)
    after = [wire.get(f"/v1/runs/{run_id}").content for run_id in runs]

    assert before == again == after


def test_the_response_to_a_create_has_the_urls_to_read(acme: Wire) -> None:
    response = acme.post("/v1/runs", {"workflowId": "conformance-noop"})

    found = response.json()
    run_id = found["runId"]
    assert response.status_code == 201
    assert found["status"] in ("pending", "running")
    assert found["workflowId"] == "conformance-noop"
    assert found["statusUrl"] == f"/v1/runs/{run_id}"
    assert found["eventsUrl"] == f"/v1/runs/{run_id}/events"
    assert acme.snapshot(run_id)["startedAt"] == found["startedAt"]
