"""A pushed KAHN run is a run of the host that can be read and annotated, but not controlled."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.support.client import Wire
from tests.support.definitions import node, workflow
from tests.support.eventually import eventually
from tests.support.host import ServedHost
from tests.support.kahn import ASKS, GOES_ON, KahnRun, push, push_run, transitions
from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.observed_ids import observed_run_id

pytestmark = pytest.mark.both_stores

ACME_TENANT = "acme"
MOVES: dict[str, tuple[str, JsonObject]] = {
    "cancel": ("/v1/runs/{}/cancel", {}),
    "pause": ("/v1/runs/{}:pause", {}),
    "resume": ("/v1/runs/{}:resume", {}),
    "replay": ("/v1/runs/{}:fork", {"mode": "replay"}),
    "branch": ("/v1/runs/{}:fork", {"mode": "branch", "fromSeq": 1}),
    "preview": ("/v1/runs/{}:fork?dryRun=true", {"mode": "replay"}),
    "answer": ("/v1/runs/{}/interrupts/coder", {"resumeValue": 1}),
}


def test_the_lines_are_exported_exactly_under_either_name(acme: Wire) -> None:
    story = KahnRun()
    run_id = push_run(acme, *story.whole())

    assert transitions(acme, run_id) == story.whole()
    assert transitions(acme, story.run_id) == story.whole()


def test_an_observed_run_is_listed_and_marked_as_observed(acme: Wire) -> None:
    story = KahnRun()
    run_id = push_run(acme, *story.whole())

    snapshot = acme.snapshot(run_id)
    listed = acme.document("/v1/runs", params={"workflowId": "kahn.observed", "limit": 200})

    [item] = [each for each in listed["items"] if each["runId"] == run_id]
    assert item["metadata"] == {"source": "kahn"}
    assert item["status"] == snapshot["status"] == "completed"
    assert snapshot["metadata"] == {"source": "kahn", "runId": story.run_id}
    assert snapshot["nodeStates"]["coder"]["status"] == "completed"
    assert snapshot["endedAt"] == item["endedAt"]


def test_a_run_of_this_host_is_not_marked(acme: Wire) -> None:
    run_id = acme.run("conformance-noop")["runId"]

    listed = acme.document("/v1/runs", params={"workflowId": "conformance-noop", "limit": 200})

    [item] = [each for each in listed["items"] if each["runId"] == run_id]
    assert "metadata" not in item


def test_the_log_contains_every_line_and_its_derived_events(acme: Wire) -> None:
    story = KahnRun()
    run_id = push_run(acme, story.start(), story.move(0, *ASKS))

    log = acme.log(run_id)

    assert [event["type"] for event in log] == [
        "run.started",
        "kahn.agent_run_start",
        "node.started",
        "kahn.agent_transition",
        "node.suspended",
    ]
    assert [event["sequence"] for event in log] == [0, 1, 2, 3, 4]
    assert log[1]["payload"] == json.loads(story.start())
    assert log[4]["causationId"] == log[3]["eventId"]
    assert acme.snapshot(run_id)["status"] == "waiting-input"
    assert acme.snapshot(run_id)["currentNodeId"] == "coder"


def test_a_reader_receives_lines_as_they_are_pushed(
    acme: Wire, connect: Callable[..., Wire]
) -> None:
    story, producer = KahnRun(), connect()
    run_id = push_run(acme, story.start())
    heard: list[str] = []

    with acme.stream(run_id, streamMode="debug") as frames:
        for frame in frames:
            heard.append(frame.event)
            if frame.event == "node.started":
                push(producer, story.move(0, *ASKS))
            elif frame.event == "node.suspended":
                push(producer, story.move(1, *GOES_ON), story.end())

    assert heard[-1] == "run.completed"
    assert heard.index("node.suspended") < heard.index("node.resumed")


def test_a_poll_waits_for_the_next_push(acme: Wire) -> None:
    story = KahnRun()
    run_id = push_run(acme, story.start())
    push_run(acme, story.end())

    page = acme.poll(run_id, lastSequence=2, timeout=5)

    assert page["isComplete"] is True
    assert page["events"][0]["type"] == "kahn.agent_run_end"


def test_a_run_pushed_line_by_line_equals_the_run_pushed_at_once(acme: Wire) -> None:
    piecewise, at_once = KahnRun(), KahnRun()
    run_id = [push_run(acme, each) for each in piecewise.whole()[:-1]][-1]

    whole = push_run(acme, *at_once.whole()[:-1])

    assert acme.types(run_id) == acme.types(whole)
    assert transitions(acme, run_id) == piecewise.whole()[:-1]


def test_lines_after_the_run_s_end_are_stored_after_it(acme: Wire) -> None:
    story = KahnRun()
    run_id = push_run(acme, story.start(), story.end())

    push_run(acme, story.check(), story.check(agent_id=None))

    types = acme.types(run_id)
    assert types[types.index("run.completed") :] == [
        "run.completed",
        "kahn.audit_checkpoint",
        "kahn.audit_checkpoint",
    ]
    assert acme.snapshot(run_id)["status"] == "completed"
    assert len(transitions(acme, run_id)) == 4
    assert [frame.event for frame in acme.frames(run_id, streamMode="debug")] == types


def test_a_repeated_push_adds_nothing_to_the_log(acme: Wire) -> None:
    story = KahnRun()
    run_id = push_run(acme, *story.whole())
    before = acme.log(run_id)

    again = push(acme, *story.whole())

    assert again.json()["accepted"] == 0
    assert acme.log(run_id) == before


@pytest.mark.parametrize("move", MOVES)
def test_an_observed_run_cannot_be_controlled(acme: Wire, move: str) -> None:
    story = KahnRun()
    run_id = push_run(acme, story.start(), story.move(0, *ASKS))
    path, body = MOVES[move]
    before = acme.log(run_id)

    response = acme.post(path.format(run_id), body)

    assert response.status_code == 409, response.text
    assert response.json()["error"] == "run_state_conflict"
    assert "observed" in response.json()["message"]
    assert acme.log(run_id) == before


def test_a_bulk_cancel_says_why_it_skips_an_observed_run(acme: Wire) -> None:
    run_id = push_run(acme, KahnRun().start())

    response = acme.post("/v1/runs:bulk-cancel", {"runIds": [run_id]})

    [result] = response.json()["results"]
    assert (result["ok"], result["error"]["code"]) == (False, "run_state_conflict")


@pytest.mark.parametrize("target", [{}, {"nodeId": "coder"}])
def test_an_observed_run_can_be_annotated(acme: Wire, target: Json) -> None:
    story = KahnRun()
    run_id = push_run(acme, story.start())

    response = acme.post(
        f"/v1/runs/{run_id}/annotations",
        {"signal": {"kind": "rating", "rating": 2}, "target": target},
    )

    assert response.status_code == 201, response.text
    [kept] = acme.document(f"/v1/runs/{run_id}/annotations")["annotations"]
    assert kept["annotationId"] == response.json()["annotationId"]
    assert transitions(acme, run_id) == [story.start()]


def test_a_check_of_the_whole_run_is_an_annotation(acme: Wire) -> None:
    story = KahnRun()
    run_id = push_run(acme, *story.whole())

    [kept] = acme.document(f"/v1/runs/{run_id}/annotations")["annotations"]

    assert kept["signal"] == {"kind": "label", "label": "policy:licence=warn"}
    assert kept["actor"] == {"principalRef": f"kahn:{story.run_id}"}


def test_its_ancestry_and_bundle_can_be_read(acme: Wire) -> None:
    run_id = push_run(acme, *KahnRun().whole())

    assert acme.document(f"/v1/runs/{run_id}/ancestry")["parent"] is None
    assert acme.document(f"/v1/runs/{run_id}/debug-bundle")["run"]["runId"] == run_id


def test_two_tenants_with_the_same_run_id_have_two_runs(acme: Wire, globex: Wire) -> None:
    story = KahnRun()
    ours, theirs = push_run(acme, *story.whole()), push_run(globex, story.start())

    assert ours != theirs
    assert globex.get(f"/v1/runs/{ours}").status_code == 404
    assert globex.get(f"/v1/runs/{ours}/transitions").status_code == 404
    assert transitions(globex, story.run_id) == [story.start()]
    assert transitions(acme, story.run_id) == story.whole()


def test_a_restarted_host_does_not_change_observed_runs_and_continues_observing(
    new_host: Callable[..., ServedHost], connect: Callable[..., Wire]
) -> None:
    host = new_host()
    story = KahnRun()
    run_id = push_run(connect(at=host), story.start(), story.call())
    before = connect(at=host).log(run_id)
    host.restart()
    wire = connect(at=host)

    unchanged = wire.log(run_id)
    push_run(wire, story.call(step=1), story.end())

    assert unchanged == before
    assert transitions(wire, run_id) == [
        story.start(),
        story.call(),
        story.call(step=1),
        story.end(),
    ]
    calls = {e["payload"]["callId"] for e in wire.log(run_id) if e["type"] == "agent.toolCalled"}
    assert len(calls) == 2
    eventually(lambda: wire.snapshot(run_id)["status"] == "completed")


def test_no_workflow_can_be_registered_under_the_name_of_observed_runs(acme: Wire) -> None:
    response = acme.post("/v1/workflows", workflow([node("a")], id="kahn.observed"))

    assert response.status_code == 400
    assert response.json()["details"]["errors"][0]["path"] == "id"


# Directly after a push


def bulk(wire: Wire, story: KahnRun) -> str:
    """Push a run behind so many others that building them all takes a while."""
    others = [each for _ in range(100) for each in KahnRun().whole()]
    run_id = observed_run_id(ACME_TENANT, story.run_id)
    assert push(wire, *others, *story.whole()).status_code == 200
    return run_id


READS: dict[str, Callable[[Wire, str], object]] = {
    "snapshot": lambda wire, run_id: wire.snapshot(run_id)["status"] == "completed",
    "log": lambda wire, run_id: wire.types(run_id)[-1] == "run.completed",
    "poll": lambda wire, run_id: wire.poll(run_id, timeout=1)["isComplete"],
    "stream": lambda wire, run_id: wire.frames(run_id, streamMode="debug")[-1].event,
    "lines": lambda wire, run_id: transitions(wire, run_id),
    "bundle": lambda wire, run_id: wire.document(f"/v1/runs/{run_id}/debug-bundle")["events"],
    "annotations": lambda wire, run_id: wire.document(f"/v1/runs/{run_id}/annotations")[
        "annotations"
    ],
    "ancestry": lambda wire, run_id: wire.get(f"/v1/runs/{run_id}/ancestry").is_success,
    "annotating": lambda wire, run_id: (
        wire.post(
            f"/v1/runs/{run_id}/annotations",
            {"signal": {"kind": "flag"}, "target": {"nodeId": "coder"}},
        ).is_success
    ),
    "reviewing": lambda wire, run_id: (
        wire.post(
            "/v1/queues", {"name": "q", "rubric": [{"kind": "flag"}], "runIds": [run_id]}
        ).is_success
    ),
}


@pytest.mark.parametrize("reading", READS)
def test_a_read_after_a_push_returns_all_lines(acme: Wire, reading: str) -> None:
    run_id = bulk(acme, KahnRun())

    assert READS[reading](acme, run_id)


def test_pages_are_available_at_once_under_the_producer_s_name(acme: Wire) -> None:
    story = KahnRun()
    bulk(acme, story)

    assert transitions(acme, story.run_id) == story.whole()


def test_the_list_soon_has_every_pushed_run(acme: Wire) -> None:
    run_id = bulk(acme, KahnRun())

    def is_listed() -> bool:
        params = {"workflowId": "kahn.observed", "status": "completed", "limit": 200}
        items = acme.document("/v1/runs", params=params)["items"]
        return run_id in [each["runId"] for each in items]

    eventually(is_listed)


def test_a_reader_receives_lines_queued_behind_a_large_push(
    acme: Wire, connect: Callable[..., Wire]
) -> None:
    story, producer = KahnRun(), connect()
    run_id = push_run(acme, story.start())
    heard: list[str] = []

    with acme.stream(run_id, streamMode="debug") as frames:
        for frame in frames:
            heard.append(frame.event)
            if frame.event == "node.started":
                bulk(producer, KahnRun())
                push(producer, story.end())

    assert heard[-1] == "run.completed"
