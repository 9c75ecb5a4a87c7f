from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import FakeHost, Wopr


def item(run_id: str, **more: Any) -> dict[str, Any]:
    return {
        "runId": run_id,
        "workflowId": "hello",
        "workflowVersion": "1.0.0",
        "status": "completed",
        "createdAt": "2026-01-02T03:04:05.000Z",
        "updatedAt": "2026-01-02T03:04:06.000Z",
        **more,
    }


def test_runs_are_listed_as_a_table(host: FakeHost, wopr: Wopr) -> None:
    host.answer("GET /v1/runs", {"items": [item("r2", tags=["a", "b"]), item("r1")]})

    lines = wopr("runs", "list").stdout.splitlines()

    columns = ["RUN", "STATUS", "WORKFLOW", "VERSION", "CREATED", "TAGS", "FEEDBACK"]
    assert lines[0].split() == columns
    assert lines[1].split()[:3] == ["r2", "completed", "hello"]
    assert "a, b" in lines[1]


def test_quarantined_runs_are_listed_and_shown_as_quarantined(host: FakeHost, wopr: Wopr) -> None:
    quarantine = {"since": "2026-01-02T03:04:05.000Z", "crashes": 3}
    rows = [item("r2", status="running", quarantine=quarantine), item("r1", status="running")]
    host.answer("GET /v1/runs", {"items": rows})
    host.run(status="running", quarantine=quarantine)

    listed = wopr("runs", "list", "--quarantined").stdout.splitlines()
    shown = wopr("runs", "show", "r1").stdout

    assert "running (quarantine)" in listed[1]
    assert "quarantine" not in listed[2]
    assert "  quarantine  since 2026-01-02T03:04:05.000Z" in shown


def test_runs_are_listed_by_their_feedback(host: FakeHost, wopr: Wopr) -> None:
    said = {"annotations": 5, "ratings": 2, "corrections": 1, "labels": 0, "flags": 2}
    host.answer("GET /v1/runs", {"items": [item("r1", feedback={**said, "meanRating": 4.5})]})

    options = ["--flagged", "--not-rated", "--corrected", "--label", "tone of voice"]
    result = wopr("runs", "list", *options)

    [request] = host.requests
    assert {**request.query_params, "limit": ""} == {
        **{"flagged": "true", "rated": "false", "corrected": "true"},
        **{"label": "tone of voice", "limit": ""},
    }
    assert result.stdout.splitlines()[1].endswith("4.5 stars, 1 correction, 2 flags")


def test_filters_are_sent_to_the_server(host: FakeHost, wopr: Wopr) -> None:
    host.answer("GET /v1/runs", {"items": []})

    wopr(
        *("runs", "list", "--status", "running", "--status", "paused", "--workflow", "w"),
        *("--tag", "t", "--since", "2026-01-01", "--until", "1h", "--limit", "7"),
    )

    query = dict(host.requests[0].query_params)
    assert query.pop("until") > "2026-01-01T00:00:00.000Z"
    assert query == {
        "status": "running,paused",
        "workflowId": "w",
        "tag": "t",
        "since": "2026-01-01T00:00:00.000Z",
        "limit": "7",
    }


def test_all_runs_are_read_page_by_page(host: FakeHost, wopr: Wopr) -> None:
    host.answer("GET /v1/runs", {"items": [item("r3", extra=1)], "nextCursor": "c1"})
    host.answer("GET /v1/runs", {"items": [item("r2")], "nextCursor": "c2"})
    host.answer("GET /v1/runs", {"items": [item("r1")]})

    document = json.loads(wopr("runs", "list", "--all", "--json").stdout)

    assert [run["runId"] for run in document["items"]] == ["r3", "r2", "r1"]
    assert document["items"][0]["extra"] == 1
    assert [r.query_params.get("cursor") for r in host.requests] == [None, "c1", "c2"]


def test_a_limit_ends_the_list_and_says_that_there_is_more(host: FakeHost, wopr: Wopr) -> None:
    host.answer("GET /v1/runs", {"items": [item("r2"), item("r1")], "nextCursor": "c1"})

    result = wopr("runs", "list", "--limit", "2")

    assert len(host.requests) == 1
    assert "--all" in result.stderr


@pytest.mark.parametrize(
    "args",
    [("--status", "lost"), ("--since", "yesterday"), ("--limit", "0"), ("--since", "99999999w")],
)
def test_an_invalid_filter_is_wrong_usage(wopr: Wopr, args: tuple[str, ...]) -> None:
    assert wopr("runs", "list", *args).exit_code == 2


def test_a_run_is_shown_with_its_nodes(host: FakeHost, wopr: Wopr) -> None:
    error = {"code": "node_error", "message": "broke"}
    host.run(
        status="failed",
        error=error,
        tags=["a"],
        nodeStates={
            "one": {"status": "completed", "attempts": 1},
            "two": {"status": "failed", "attempts": 3, "error": error},
        },
        childRuns=[{"runId": "c1", "status": "cancelled"}],
        variables={"x": [1]},
    )

    result = wopr("runs", "show", "r1")

    assert result.exit_code == 0
    assert "run r1 failed" in result.stdout
    assert "node_error: broke" in result.stdout
    assert [line.split()[:3] for line in result.stdout.splitlines() if line.startswith("two")] == [
        ["two", "failed", "3"]
    ]
    assert "c1" in result.stdout
    assert "  x = [1]" in result.stdout


def test_a_run_as_json_is_the_server_s_response(host: FakeHost, wopr: Wopr) -> None:
    host.run(unknownToUs={"deep": 1.50})

    assert json.loads(wopr("runs", "show", "r1", "--json").stdout)["unknownToUs"] == {"deep": 1.5}


def test_messages_are_shown_as_they_arrive(host: FakeHost, wopr: Wopr) -> None:
    host.run()
    chunks = [
        f"id: {n}\nevent: ai.message.chunk\ndata: {json.dumps(chunk)}\n\n"
        for n, chunk in enumerate(
            [{"chunk": "Hel", "isLast": False}, {"chunk": "lo\n\x1b[2Jx", "isLast": True}]
        )
    ]
    host.stream("r1", chunks, [])

    result = wopr("runs", "tail", "r1", "--mode", "messages")

    assert result.stdout == "Hello\n[2Jx\n"


def test_values_are_shown_as_states(host: FakeHost, wopr: Wopr) -> None:
    host.run()
    states = [
        f"id: {n}\nevent: state.snapshot\ndata: {json.dumps(state)}\n\n"
        for n, state in enumerate(
            [{"runId": "r1", "status": "running"}, {"payload": {"status": "completed"}}]
        )
    ]
    host.stream("r1", states, [])

    lines = wopr("runs", "tail", "r1", "--mode", "values").stdout.splitlines()

    assert [line.split()[-1] for line in lines] == ['status="running"', 'status="completed"']


def test_tail_exits_with_the_code_of_the_run_on_request(host: FakeHost, wopr: Wopr) -> None:
    host.run(status="failed")
    host.stream("r1", [host.event(0, "run.failed")])

    assert wopr("runs", "tail", "r1").exit_code == 0
    assert wopr("runs", "tail", "r1", "--exit-status").exit_code == 1


def test_a_mode_that_does_not_exist_is_wrong_usage(wopr: Wopr) -> None:
    assert wopr("runs", "tail", "r1", "--mode", "everything").exit_code == 2
    assert wopr("runs", "tail", "r1", "--mode", "values,debug").exit_code == 2


def test_one_run_is_cancelled_with_its_reason(host: FakeHost, wopr: Wopr) -> None:
    host.answer("POST /v1/runs/r1/cancel", {"runId": "r1", "status": "cancelling"})

    result = wopr("runs", "cancel", "r1", "--reason", "enough")

    assert result.stdout == "run r1 cancelling\n"
    assert host.bodies == [{"reason": "enough"}]


def test_cancelling_an_ended_run_is_not_a_failure(host: FakeHost, wopr: Wopr) -> None:
    answer = {"runId": "r1", "status": "completed", "alreadyTerminal": True}
    host.answer("POST /v1/runs/r1/cancel", answer)

    result = wopr("runs", "cancel", "r1")

    assert (result.exit_code, result.stdout) == (0, "run r1 already completed\n")


@pytest.mark.parametrize(("code", "exit_code"), [("not_found", 3), ("run_terminal", 5)])
def test_many_runs_are_cancelled_in_one_request(
    host: FakeHost, wopr: Wopr, code: str, exit_code: int
) -> None:
    bad = {"runId": "r2", "ok": False, "error": {"code": code, "message": "no"}}
    good = {"runId": "r1", "ok": True, "status": "cancelling"}
    host.answer("POST /v1/runs:bulk-cancel", {"results": [good, bad]})

    result = wopr("runs", "cancel", "r1", "r2")

    assert result.exit_code == exit_code
    assert host.bodies == [{"runIds": ["r1", "r2"]}]
    assert f"{code}: no" in result.stdout


def test_a_run_is_paused_with_the_chosen_drain_policy(host: FakeHost, wopr: Wopr) -> None:
    host.answer("POST /v1/runs/r1:pause", {"runId": "r1", "status": "paused", "pausedAt": "x"}, 202)

    result = wopr("runs", "pause", "r1", "--drain", "immediate", "--json")

    assert json.loads(result.stdout)["pausedAt"] == "x"
    assert host.bodies == [{"drainPolicy": "immediate"}]


def test_a_run_is_resumed(host: FakeHost, wopr: Wopr) -> None:
    host.answer(
        "POST /v1/runs/r1:resume", {"runId": "r1", "status": "running", "resumedAt": "x"}, 202
    )

    assert wopr("runs", "resume", "r1", "--reason", "lunch is over").stdout == "run r1 running\n"
    assert host.bodies == [{"reason": "lunch is over"}]


def test_resuming_a_run_that_is_not_paused_is_a_conflict(host: FakeHost, wopr: Wopr) -> None:
    host.refuse("POST /v1/runs/r1:resume", 409, "run_state_conflict", runStatus="running")

    assert wopr("runs", "resume", "r1").exit_code == 5
