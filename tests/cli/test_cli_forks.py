from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import STARTED, FakeHost, Wopr

ACCEPTED = {
    "runId": "r2",
    "sourceRunId": "r1",
    "fromSeq": 3,
    "mode": "branch",
    "status": "running",
    "eventsUrl": "/v1/runs/r2/events",
}
SAME: dict[str, Any] = {
    "a": "r1",
    "b": "r2",
    "divergedAtSeq": None,
    "eventDiffs": [],
    "stateDiff": {},
}
OTHER: dict[str, Any] = {
    "a": "r1",
    "b": "r2",
    "divergedAtSeq": 2,
    "eventDiffs": [
        {
            "seq": 2,
            "op": "changed",
            "aEvent": {"type": "node.completed", "payload": {"outputs": {"x": 1}}},
            "bEvent": {"type": "node.completed", "payload": {"outputs": {"x": 2}}},
        },
        {"seq": 3, "op": "added", "bEvent": {"type": "log.appended", "payload": {}}},
    ],
    "stateDiff": {"variables": {"x": {"a": 1, "b": 2}}},
}


def shown(host: FakeHost, run_id: str, status: str = "completed") -> None:
    snapshot = {"runId": run_id, "workflowId": "hello", "status": status, "startedAt": STARTED}
    host.answer(f"GET /v1/runs/{run_id}", snapshot)


def test_a_fork_prints_the_new_runs_id(host: FakeHost, wopr: Wopr) -> None:
    host.answer("POST /v1/runs/r1:fork", ACCEPTED, 201)

    done = wopr("runs", "fork", "r1", "--from", "3", "--tag", "x", "--config", "limit=7")

    assert (done.exit_code, done.stdout) == (0, "r2\n")
    assert "branch of r1 from event 3" in done.stderr
    assert host.bodies == [
        {
            "mode": "branch",
            "fromSeq": 3,
            "runOptionsOverlay": {"tags": ["x"], "configurable": {"limit": 7}},
        }
    ]


def test_inputs_of_a_fork_are_read_by_their_declared_types(host: FakeHost, wopr: Wopr) -> None:
    source = {"runId": "r1", "workflowId": "hello", "workflowVersion": "2", "status": "completed"}
    declared = [{"name": "reason", "type": "string"}, {"name": "amount", "type": "number"}]
    host.answer("GET /v1/runs/r1", source | {"startedAt": STARTED})
    host.answer("GET /v1/workflows/hello", {"id": "hello", "variables": declared})
    host.answer("POST /v1/runs/r1:fork", ACCEPTED, 201)

    wopr(
        "runs", "fork", "r1", "--from", "0", "-i", "reason=5", "-i", "amount=5", "-i", "other=true"
    )

    assert host.requests[1].url.query == "version=2"
    assert host.bodies[-1]["runOptionsOverlay"]["inputs"] == {
        "reason": "5",
        "amount": 5,
        "other": True,
    }


def test_a_fork_without_changes_sends_an_empty_overlay(host: FakeHost, wopr: Wopr) -> None:
    host.answer("POST /v1/runs/r1:fork", ACCEPTED, 201)

    done = wopr("runs", "fork", "r1", "--mode", "replay", "--json")

    assert json.loads(done.stdout) == ACCEPTED
    assert host.bodies == [{"mode": "replay", "runOptionsOverlay": {}}]


def test_a_dry_run_shows_what_a_fork_would_do(host: FakeHost, wopr: Wopr) -> None:
    host.answer(
        "POST /v1/runs/r1:fork",
        {
            "sourceRunId": "r1",
            "mode": "branch",
            "fromSeq": 3,
            "copiedEvents": 3,
            "keptNodes": ["a"],
            "rerunNodes": ["b", "c"],
            "possibleNodes": ["d"],
            "effectsAgain": ["c"],
            "possibleEffects": ["d"],
            "answersKept": [],
            "answersAskedAgain": ["gate:0"],
        },
    )

    done = wopr("runs", "fork", "r1", "--from", "3", "--dry-run")

    assert host.requests[0].url.query == "dryRun=true"
    assert done.stdout.splitlines() == [
        "branch of r1 from event 3",
        "  nodes kept               a",
        "  nodes run again          b, c",
        "  nodes that may run       d",
        "  effects performed again  c",
        "  effects that may happen  d",
        "  answers kept             -",
        "  answers asked for again  gate:0",
    ]


def test_a_refused_fork_ends_with_the_exit_code_of_the_refusal(host: FakeHost, wopr: Wopr) -> None:
    host.refuse("POST /v1/runs/r1:fork", 400, "validation_error", "fromSeq is required")

    done = wopr("runs", "fork", "r1")

    assert done.exit_code == 2
    assert "fromSeq is required" in done.stderr


@pytest.mark.parametrize(("answer", "code"), [(SAME, 0), (OTHER, 1)])
def test_two_runs_are_compared_and_the_exit_code_says_whether_they_differ(
    host: FakeHost, wopr: Wopr, answer: dict[str, Any], code: int
) -> None:
    host.answer("GET /v1/runs/r1:diff", answer)

    done = wopr("runs", "diff", "r1", "r2")
    as_json = wopr("runs", "diff", "r1", "r2", "--json")

    assert (done.exit_code, as_json.exit_code) == (code, code)
    assert json.loads(as_json.stdout) == answer
    assert host.requests[0].url.query == "against=r2"


def test_differences_are_shown_side_by_side(host: FakeHost, wopr: Wopr) -> None:
    host.answer("GET /v1/runs/r1:diff", OTHER | {"truncated": True})

    done = wopr("runs", "diff", "r1", "r2")

    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert lines[0] == "r1 and r2 differ from event 2"
    assert (
        '2 changed node.completed {"outputs":{"x":1}} node.completed {"outputs":{"x":2}}' in lines
    )
    assert "3 added log.appended {}" in lines
    assert 'variables = {"x":{"a":1,"b":2}}' in lines
    assert "The comparison is not complete" in done.stderr


def test_a_replay_is_waited_for_and_compared(host: FakeHost, wopr: Wopr) -> None:
    shown(host, "r1")
    shown(host, "r2")
    host.answer("POST /v1/runs/r1:fork", ACCEPTED | {"mode": "replay"}, 201)
    host.stream("r2", [FakeHost.event(0, "run.completed")])
    host.answer("GET /v1/runs/r1:diff", SAME)

    done = wopr("runs", "replay", "r1")

    assert (done.exit_code, done.stdout) == (0, "r1 and r2 are the same\n")
    assert [body for body in host.bodies if body] == [{"mode": "replay"}]


def test_a_replay_of_an_answered_run_needs_no_answer(host: FakeHost, wopr: Wopr) -> None:
    shown(host, "r1")
    shown(host, "r2")
    host.answer("POST /v1/runs/r1:fork", ACCEPTED | {"mode": "replay"}, 201)
    waits = FakeHost.event(0, "node.suspended", "gate", interruptId="i1", kind="approval")
    host.stream("r2", [waits, FakeHost.event(1, "run.completed")])
    host.answer("GET /v1/runs/r1:diff", SAME)

    done = wopr("runs", "replay", "r1")

    assert done.exit_code == 0
    assert "inbox" not in done.stderr
    assert "waits" not in done.stderr


def test_a_different_replay_fails(host: FakeHost, wopr: Wopr) -> None:
    shown(host, "r1")
    shown(host, "r2")
    host.answer("POST /v1/runs/r1:fork", ACCEPTED | {"mode": "replay"}, 201)
    host.stream("r2", [FakeHost.event(0, "run.completed")])
    host.answer("GET /v1/runs/r1:diff", OTHER)

    assert wopr("runs", "replay", "r1", "--from", "2").exit_code == 1


def test_a_run_that_has_not_ended_cannot_be_replayed(host: FakeHost, wopr: Wopr) -> None:
    shown(host, "r1", "waiting-approval")

    done = wopr("runs", "replay", "r1")

    assert done.exit_code == 5
    assert "wopr runs fork --mode replay" in done.stderr
    assert host.calls() == ["GET /v1/runs/r1"]


def test_a_bundle_is_printed_or_written_to_a_private_file(
    host: FakeHost, wopr: Wopr, tmp_path: Path
) -> None:
    found = {"bundleVersion": "1.0", "events": [], "truncated": False}
    host.answer("GET /v1/runs/r1/debug-bundle", found)
    file = tmp_path / "bundle.json"

    printed = wopr("runs", "bundle", "r1", "--max-events", "5")
    written = wopr("runs", "bundle", "r1", "--out", str(file))

    assert json.loads(printed.stdout) == found
    assert host.requests[0].url.query == "maxEvents=5"
    assert json.loads(file.read_text()) == found
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert written.stdout == ""


def test_an_incomplete_bundle_is_reported(host: FakeHost, wopr: Wopr) -> None:
    reason = "events_truncated_to_max_events"
    host.answer("GET /v1/runs/r1/debug-bundle", {"truncated": True, "truncatedReason": reason})

    done = wopr("runs", "bundle", "r1")

    assert done.exit_code == 0
    assert reason in done.stderr


def test_a_bundle_that_cannot_be_written_is_a_failure(
    host: FakeHost, wopr: Wopr, tmp_path: Path
) -> None:
    host.answer("GET /v1/runs/r1/debug-bundle", {"truncated": False})

    done = wopr("runs", "bundle", "r1", "--out", str(tmp_path / "no" / "such" / "folder.json"))

    assert done.exit_code == 2
    assert "cannot write" in done.stderr


def test_a_missing_run_and_a_different_one_have_different_exit_codes(
    host: FakeHost, wopr: Wopr
) -> None:
    host.refuse("GET /v1/runs/r9:diff", 404, "not_found", "there is no run 'r9'")

    assert wopr("runs", "diff", "r9", "r1").exit_code == 3


def test_a_branch_can_name_the_feedback_that_led_to_it(host: FakeHost, wopr: Wopr) -> None:
    annotation = {
        "annotationId": "a1",
        "target": {"runId": "r1"},
        "signal": {"kind": "flag"},
        "actor": {"principalRef": "key_1"},
        "createdAt": "2026-11-15T10:00:00.000Z",
    }
    host.answer("GET /v1/runs/r1/annotations", {"annotations": [annotation]})
    host.answer("POST /v1/runs/r1:fork", ACCEPTED, 201)

    known = wopr("runs", "fork", "r1", "--from", "0", "-i", "name=Grace", "--because", "a1")
    unknown = wopr("runs", "fork", "r1", "--from", "0", "--because", "a2")

    [sent] = [body for body in host.bodies if body]
    assert known.exit_code == 0
    assert sent["runOptionsOverlay"] == {
        "inputs": {"name": "Grace"},
        "metadata": {"annotationId": "a1"},
    }
    assert unknown.exit_code == 3
    assert "no annotation a2" in unknown.stderr
