"""Fork requests: their members, their responses, and who may make one."""

from __future__ import annotations

import pytest

from tests.support.client import Wire
from tests.support.definitions import node, variable, workflow
from tests.support.forks import fork, forked, log_content
from tests.support.host import DEVELOPER, LIVE, REVIEWER, VIEWER
from tests.wire.conftest import Connect
from wopr.protocol.documents import Json, JsonObject

pytestmark = pytest.mark.both_stores

UNKNOWN = "00000000-0000-7000-8000-000000000000"


@pytest.fixture
def source(acme: Wire) -> str:
    return str(acme.run("conformance-multi-node")["runId"])


def test_a_fork_response_names_the_new_run_and_its_source(acme: Wire, source: str) -> None:
    response = acme.post(f"/v1/runs/{source}:fork", {"mode": "replay"})

    answer = response.json()
    assert response.status_code == 201
    assert answer["runId"] != source
    assert answer == {
        "runId": answer["runId"],
        "sourceRunId": source,
        "fromSeq": 0,
        "mode": "replay",
        "status": "running",
        "eventsUrl": f"/v1/runs/{answer['runId']}/events",
    }


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "mode"),
        ({"mode": "rewind"}, "mode"),
        ({"mode": "branch"}, "fromSeq"),
        ({"mode": "branch", "fromSeq": -1}, "fromSeq"),
        ({"mode": "replay", "fromSeq": -1}, "fromSeq"),
        ({"mode": "replay", "fromSeq": 1.5}, "fromSeq"),
        ({"mode": "replay", "fromSeq": "1"}, "fromSeq"),
        ({"mode": "replay", "fromSeq": None}, "fromSeq"),
        ({"mode": "replay", "tenantId": "globex"}, "tenantId"),
        ({"mode": "replay", "runOptionsOverlay": {"tags": ["x"]}}, "runOptionsOverlay"),
        ({"mode": "replay", "runOptionsOverlay": {"configurable": {"a": 1}}}, "runOptionsOverlay"),
        ({"mode": "replay", "runOptionsOverlay": {"inputs": {"a": 1}}}, "runOptionsOverlay"),
        (
            {"mode": "branch", "fromSeq": 1, "runOptionsOverlay": {"inputs": {"a": 1}}},
            "runOptionsOverlay.inputs",
        ),
        (
            {
                "mode": "branch",
                "fromSeq": 0,
                "runOptionsOverlay": {"configurable": {"escalationThreshold": 2}},
            },
            "configurable.escalationThreshold",
        ),
        ({"mode": "branch", "fromSeq": 0, "runOptionsOverlay": []}, "runOptionsOverlay"),
    ],
)
def test_an_invalid_fork_request_is_refused_by_its_field(
    acme: Wire, source: str, body: JsonObject, field: str
) -> None:
    response = acme.post(f"/v1/runs/{source}:fork", body)

    assert (response.status_code, response.json()["error"]) == (400, "validation_error")
    assert response.json()["details"]["field"] == field


def test_an_empty_overlay_is_no_overlay(acme: Wire, source: str) -> None:
    body = {"mode": "replay", "runOptionsOverlay": {"tags": [], "configurable": {}}}

    assert acme.post(f"/v1/runs/{source}:fork", body).status_code == 201


@pytest.mark.parametrize("mode", ["replay", "branch"])
def test_a_fork_from_beyond_the_log_is_refused(acme: Wire, source: str, mode: str) -> None:
    count = len(log_content(acme, source))

    beyond = acme.post(f"/v1/runs/{source}:fork", {"mode": mode, "fromSeq": count + 1})
    at_the_end = acme.post(f"/v1/runs/{source}:fork", {"mode": mode, "fromSeq": count})

    assert (beyond.status_code, beyond.json()["error"]) == (422, "invalid_from_seq")
    assert beyond.json()["details"]["lastSequence"] == count - 1
    assert at_the_end.status_code == 201


@pytest.mark.parametrize("path", [f"/v1/runs/{UNKNOWN}:fork", f"/v1/runs/{'x' * 200}:fork"])
def test_an_unknown_source_is_not_found(acme: Wire, path: str) -> None:
    response = acme.post(path, {"mode": "replay"})

    assert (response.status_code, response.json()["error"]) == (404, "not_found")


def test_another_tenant_s_run_looks_like_a_missing_one(
    acme: Wire, globex: Wire, source: str
) -> None:
    own = str(globex.run("conformance-noop")["runId"])

    for method, path, body in (
        ("POST", f"/v1/runs/{source}:fork", {"mode": "replay"}),
        ("POST", f"/v1/runs/{source}:fork?dryRun=true", {"mode": "replay"}),
        ("GET", f"/v1/runs/{source}:diff?against={own}", None),
        ("GET", f"/v1/runs/{own}:diff?against={source}", None),
        ("GET", f"/v1/runs/{source}/ancestry", None),
    ):
        foreign = globex.request(method, path, **({} if body is None else {"json": body}))
        missing = globex.request(
            method, path.replace(source, UNKNOWN), **({} if body is None else {"json": body})
        )
        assert foreign.status_code == missing.status_code == 404
        assert foreign.text.replace(source, "") == missing.text.replace(UNKNOWN, "")


def test_a_fork_belongs_to_the_tenant_and_principal_of_its_source(
    acme: Wire, globex: Wire, connect: Connect, source: str
) -> None:
    by_another_key = connect(DEVELOPER)

    found = forked(by_another_key, source)

    assert acme.snapshot(found)["owner"] == acme.snapshot(source)["owner"]
    assert globex.get(f"/v1/runs/{found}").status_code == 404


@pytest.mark.parametrize("key", [VIEWER, REVIEWER])
def test_a_key_that_may_not_create_runs_cannot_fork_them(
    connect: Connect, source: str, key: str
) -> None:
    response = connect(key).post(f"/v1/runs/{source}:fork", {"mode": "replay"})

    assert response.status_code == 403
    assert response.json()["details"]["scopeRequired"] == "runs:create"


def test_a_key_that_may_not_read_runs_cannot_compare_them(connect: Connect, source: str) -> None:
    ingest = connect("test_acme_ingest")

    assert ingest.get(f"/v1/runs/{source}:diff?against={source}").status_code == 403
    assert ingest.get(f"/v1/runs/{source}/ancestry").status_code == 403


def test_a_fork_requested_twice_with_one_key_is_created_once(acme: Wire, source: str) -> None:
    headers = {"Idempotency-Key": f"fork-{source}"}

    first = acme.post(f"/v1/runs/{source}:fork", {"mode": "replay"}, headers=headers)
    second = acme.post(f"/v1/runs/{source}:fork", {"mode": "replay"}, headers=headers)
    other = acme.post(f"/v1/runs/{source}:fork", {"mode": "branch", "fromSeq": 0}, headers=headers)

    assert first.json() == second.json()
    assert other.status_code == 409


def test_a_dry_run_previews_a_branch_and_creates_none(acme: Wire, source: str) -> None:
    body = {"mode": "branch", "fromSeq": 3}

    seen = acme.post(f"/v1/runs/{source}:fork?dryRun=true", body)

    assert seen.status_code == 200
    assert seen.json()["keptNodes"] == ["a"]
    assert seen.json()["rerunNodes"] == ["b", "c"]
    listed = acme.document("/v1/runs", params={"limit": 200})["items"]
    assert all(acme.snapshot(item["runId"]).get("sourceRunId") != source for item in listed[:5])


@pytest.mark.parametrize("value", ["True", "TRUE", "1", "yes", "x", ""])
def test_an_invalid_dry_run_value_is_refused_and_forks_nothing(
    acme: Wire, source: str, value: str
) -> None:
    body = {"mode": "branch", "fromSeq": 0}
    response = acme.post(f"/v1/runs/{source}:fork", body, params={"dryRun": value})

    assert response.status_code == 400, response.text
    assert response.json()["error"] == "validation_error"
    assert response.json()["message"] == f"dryRun must be true or false, not {value!r}"
    assert response.json()["details"]["field"] == "dryRun"


def test_a_fork_starts_without_the_sources_annotations(acme: Wire, source: str) -> None:
    made = acme.post(f"/v1/runs/{source}/annotations", {"signal": {"kind": "rating", "rating": 5}})
    assert made.status_code == 201, made.text

    found = forked(acme, source, "branch", fromSeq=0)

    assert acme.document(f"/v1/runs/{found}/annotations")["annotations"] == []
    assert len(acme.document(f"/v1/runs/{source}/annotations")["annotations"]) == 1


def test_a_snapshot_names_the_source_of_a_fork(acme: Wire, source: str) -> None:
    found = forked(acme, source, "branch", fromSeq=3)

    shown = acme.snapshot(found)
    assert shown["sourceRunId"] == source
    assert shown["fork"] == {"mode": "branch", "fromSeq": 3}


def test_a_fork_is_not_a_descendant_of_its_source(acme: Wire, source: str) -> None:
    found = forked(acme, source)

    ancestry = acme.document(f"/v1/runs/{found}/ancestry")

    assert ancestry["runId"] == found
    assert ancestry["parent"] is None


@pytest.mark.parametrize(
    ("workflow_id", "cause"),
    [
        ("conformance-subworkflow-parent", "core.subWorkflow"),
        ("conformance-dispatch-loop", "core.dispatch"),
    ],
)
def test_a_child_run_names_its_parent_and_the_relation(
    acme: Wire, workflow_id: str, cause: str
) -> None:
    parent = acme.run(workflow_id)
    dispatched = [e for e in acme.log(parent["runId"]) if e["type"] == "node.dispatched"]
    child = dispatched[0]["payload"]["childRunId"]

    ancestry = acme.document(f"/v1/runs/{child}/ancestry")

    assert ancestry.keys() == {"runId", "hostId", "parent"}
    assert ancestry["parent"]["runId"] == parent["runId"]
    assert ancestry["parent"]["cause"] == cause
    assert ancestry["parent"]["hostId"] == ancestry["hostId"]


def test_a_replay_streams_its_events_like_any_run(acme: Wire, source: str) -> None:
    found = fork(acme, source)

    frames = acme.frames(found, streamMode="debug")

    assert [frame.event for frame in frames] == [kind for kind, _, _ in log_content(acme, source)]


@pytest.mark.parametrize("start", range(9))
def test_a_branch_from_any_event_without_changes_has_the_same_result(
    acme: Wire, source: str, start: int
) -> None:
    found = forked(acme, source, "branch", fromSeq=start)

    log, original = acme.log(found), acme.log(source)
    assert acme.snapshot(found)["status"] == "completed"
    for copy, event in zip(log[:start], original[:start], strict=True):
        same = ("type", "sequence", "payload", "timestamp")
        assert [copy[name] for name in same] == [event[name] for name in same]
        assert copy["runId"] == found
    assert [event["sequence"] for event in log] == list(range(len(log)))


def test_waits_in_a_fork_are_events_of_the_fork(acme: Wire, source: str) -> None:
    for mode, start in (("replay", 0), ("replay", 4), ("branch", 4)):
        log = acme.log(forked(acme, source, mode, fromSeq=start))

        ids = {event["eventId"] for event in log}
        assert {event.get("causationId", log[0]["eventId"]) for event in log} <= ids
        assert ids.isdisjoint(event["eventId"] for event in acme.log(source))


def test_a_fork_runs_the_version_of_the_workflow_that_its_source_ran(acme: Wire) -> None:
    old = workflow([node("a")])
    acme.register(old)
    source = str(acme.run(old["id"])["runId"])
    acme.register({**old, "version": "2.0", "nodes": [node("z")], "edges": []})

    for mode in ("replay", "branch"):
        found = forked(acme, source, mode, fromSeq=0)
        shown: Json = acme.snapshot(found)
        assert (shown["workflowVersion"], [*shown["nodeStates"]]) == ("1.0", ["a"])


def test_a_branch_from_the_start_can_have_other_inputs(acme: Wire) -> None:
    source = str(acme.run("hello", {"name": "Ada"})["runId"])

    branch = forked(
        acme, source, "branch", fromSeq=0, runOptionsOverlay={"inputs": {"name": "Grace"}}
    )

    assert acme.snapshot(branch)["outputs"] == {"message": "Hello, Grace!"}
    assert acme.snapshot(source)["outputs"] == {"message": "Hello, Ada!"}


def test_other_inputs_are_checked_against_the_workflow_too(acme: Wire) -> None:
    source = str(acme.run("hello", {"name": "Ada"})["runId"])
    body = {"mode": "branch", "fromSeq": 0, "runOptionsOverlay": {"inputs": {"name": 7}}}

    response = acme.post(f"/v1/runs/{source}:fork", body)

    assert response.status_code == 400
    assert response.json()["details"]["field"] == "inputs.name"


def test_a_branch_with_a_mock_provider_needs_a_test_key(connect: Connect, source: str) -> None:
    overlay = {"configurable": {"mockProvider": {"id": "any"}}}
    body = {"mode": "branch", "fromSeq": 0, "runOptionsOverlay": overlay}

    response = connect(LIVE).post(f"/v1/runs/{source}:fork", body)

    assert (response.status_code, response.json()["error"]) == (403, "mock_provider_forbidden")


def test_masked_values_must_be_given_again(acme: Wire) -> None:
    definition = workflow(
        [node("a", "core.setVariable", config={"name": "n", "expression": "size(variables.pin)"})],
        variables=[variable("pin", sensitive=True), variable("n", "number")],
    )
    source = str(acme.run(acme.register(definition), {"pin": "orchid"})["runId"])
    path = f"/v1/runs/{source}:fork"

    silent = acme.post(path, {"mode": "branch", "fromSeq": 0})
    later = acme.post(path, {"mode": "branch", "fromSeq": 2})
    given = forked(
        acme, source, "branch", fromSeq=0, runOptionsOverlay={"inputs": {"pin": "garden-rose"}}
    )

    assert (silent.status_code, later.status_code) == (422, 422)
    assert silent.json()["details"]["field"] == "runOptionsOverlay.inputs.pin"
    assert acme.snapshot(given)["variables"]["n"] == 11
    assert "garden-rose" not in acme.http.get(f"/v1/runs/{given}/debug-bundle").text


def test_the_forks_of_a_run_can_be_listed(acme: Wire, source: str) -> None:
    forks = [fork(acme, source), fork(acme, source, "branch", fromSeq=1)]

    found = acme.document("/v1/runs", params={"sourceRunId": source})["items"]

    assert {item["runId"] for item in found} == set(forks)
