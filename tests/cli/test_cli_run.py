from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from starlette.responses import Response

if TYPE_CHECKING:
    from tests.cli.conftest import FakeHost, Wopr


def completed(host: FakeHost) -> None:
    host.run(outputs={"message": "hi"}, completedAt="2026-01-02T03:04:06.500Z")
    host.stream(
        "r1",
        [
            host.event(0, "run.started", workflowId="hello"),
            host.event(1, "node.started", "greet", nodeId="greet", typeId="core.noop"),
            host.event(2, "node.completed", "greet", nodeId="greet", outputs={"message": "hi"}),
            host.event(3, "run.completed", outputs={"message": "hi"}),
        ],
    )


def test_a_run_is_awaited_and_its_outputs_are_shown(host: FakeHost, wopr: Wopr) -> None:
    completed(host)

    result = wopr("run", "hello", "-i", "name=Ada", "--input", "times=3", "--tag", "a")

    assert result.exit_code == 0
    assert result.stdout == 'run r1 completed in 1.50s\noutputs\n  message = "hi"\n'
    assert next(body for body in host.bodies if body) == {
        "workflowId": "hello",
        "inputs": {"name": "Ada", "times": 3},
        "tags": ["a"],
    }
    assert host.requests[0].headers["authorization"] == "Bearer secret-key"


def test_inputs_are_parsed_by_the_types_that_the_workflow_declares(
    host: FakeHost, wopr: Wopr
) -> None:
    completed(host)
    declared = [{"name": "reason", "type": "string"}, {"name": "amount", "type": "number"}]
    host.answer("GET /v1/workflows/hello", {"id": "hello", "variables": declared})

    wopr("run", "hello", "-i", "reason=5", "-i", "amount=5", "-i", "other=true")

    sent = [body for body in host.bodies if body]
    assert sent[0]["inputs"] == {"reason": "5", "amount": 5, "other": True}


def test_a_key_that_may_not_read_the_workflow_can_start_it(host: FakeHost, wopr: Wopr) -> None:
    completed(host)
    host.refuse("GET /v1/workflows/hello", 403, "forbidden")

    wopr("run", "hello", "-i", "amount=5")

    [sent] = [body for body in host.bodies if body]
    assert sent["inputs"] == {"amount": 5}


def test_a_server_that_is_not_an_openwop_host_is_reported_as_such(
    host: FakeHost, wopr: Wopr
) -> None:
    host.answers["POST /v1/runs"] = [Response(b"<h1>It works!</h1>", 404)]
    refused = wopr("run", "hello")
    host.answers["POST /v1/runs"] = [Response(b"<h1>It works!</h1>", 200)]
    welcomed = wopr("run", "hello")

    assert "responded 404 Not Found, which is not an OpenWOP error" in refused.stderr
    assert "http" in refused.stderr
    assert "is not an OpenWOP response" in welcomed.stderr
    assert "WOPR server" in refused.stderr


def test_a_followed_run_shows_its_events_as_lines(host: FakeHost, wopr: Wopr) -> None:
    completed(host)

    result = wopr("run", "hello", "--follow")

    lines = result.stdout.splitlines()
    assert lines[0] == '  +0.000s    0  run.started  workflowId="hello"'
    assert lines[2] == '  +0.002s    2  node.completed  greet  outputs message="hi"'
    assert host.requests[1].query_params["streamMode"] == "debug"


def test_a_followed_run_prints_json_lines(host: FakeHost, wopr: Wopr) -> None:
    completed(host)

    result = wopr("run", "hello", "--follow", "--json")

    events = [json.loads(line) for line in result.stdout.splitlines()]
    assert [event["sequence"] for event in events] == [0, 1, 2, 3]


def test_an_awaited_run_prints_one_json_document(host: FakeHost, wopr: Wopr) -> None:
    completed(host)

    result = wopr("run", "hello", "--json")

    assert json.loads(result.stdout)["outputs"] == {"message": "hi"}
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("status", "exit_code"), [("completed", 0), ("failed", 1), ("cancelled", 7)]
)
def test_the_exit_code_shows_how_the_run_ended(
    host: FakeHost, wopr: Wopr, status: str, exit_code: int
) -> None:
    host.run(status=status)
    host.stream("r1", [host.event(0, "run.started"), host.event(1, f"run.{status}")])

    assert wopr("run", "hello").exit_code == exit_code


def test_a_failed_run_shows_its_error(host: FakeHost, wopr: Wopr) -> None:
    host.run(status="failed", error={"code": "node_error", "message": "it broke"})
    host.stream("r1", [host.event(0, "run.failed", error={"code": "node_error", "message": "m"})])

    assert "node_error: it broke" in wopr("run", "hello").stdout


def test_without_waiting_the_run_id_is_printed_at_once(host: FakeHost, wopr: Wopr) -> None:
    host.run()

    result = wopr("run", "hello", "--no-wait", "--idempotency-key", "k1")

    assert result.stdout == "r1\n"
    assert host.calls() == ["POST /v1/runs"]
    assert host.requests[0].headers["idempotency-key"] == "k1"


def test_a_timeout_ends_with_124_and_says_that_the_run_continues(
    host: FakeHost, wopr: Wopr
) -> None:
    host.run(status="running")
    host.stream("r1", [host.event(0, "run.started")])

    result = wopr("run", "hello", "--timeout", "0.2")

    assert result.exit_code == 124
    assert "wopr runs tail r1" in result.stderr


def test_a_run_that_waits_for_a_person_is_reported_as_waiting(host: FakeHost, wopr: Wopr) -> None:
    host.run()
    suspended = host.event(1, "node.suspended", "gate", nodeId="gate", kind="approval")
    host.stream("r1", [host.event(0, "run.started"), suspended, host.event(2, "run.completed")])

    assert "run r1 waits: node.suspended gate" in wopr("run", "hello").stderr


def test_a_run_that_waits_with_a_kind_of_the_host_shows_that_kind(
    host: FakeHost, wopr: Wopr
) -> None:
    host.run()
    own = {"x-host-wopr-interrupt-kind": "x-host-acme-look", "x-host-wopr-waiting-status": "w"}
    asked = host.event(1, "node.suspended", "gate", nodeId="gate", kind="custom", **own)
    host.stream("r1", [host.event(0, "run.started"), asked, host.event(2, "run.completed")])

    told = wopr("run", "hello").stderr

    assert 'kind="x-host-acme-look"' in told
    assert "x-host-wopr-" not in told


@pytest.mark.parametrize("options", [(), ("--follow",)], ids=["quiet", "followed"])
def test_a_run_with_a_question_shows_where_to_answer_it(
    host: FakeHost, wopr: Wopr, options: tuple[str, ...]
) -> None:
    host.run()
    asked = host.event(1, "node.suspended", "gate", nodeId="gate", interruptId="i-1")
    host.stream("r1", [host.event(0, "run.started"), asked, host.event(2, "run.completed")])

    told = wopr("run", "hello", *options).stderr

    assert "`wopr inbox show r1 gate`, then `wopr inbox answer r1 gate`" in told


@pytest.mark.parametrize("form", ["argument", "file", "stdin"])
def test_inputs_are_read_as_json_from_every_source(
    host: FakeHost, wopr: Wopr, tmp_path: Path, form: str
) -> None:
    host.run()
    text = '{"a": [1, null]}'
    (tmp_path / "in.json").write_text(text)
    argument = {"argument": text, "file": "@in.json", "stdin": "-"}[form]

    result = wopr("run", "hello", "--no-wait", "--inputs", argument, stdin=text)

    assert result.exit_code == 0
    assert host.bodies[0]["inputs"] == {"a": [1, None]}


def test_inputs_that_are_not_json_are_text(host: FakeHost, wopr: Wopr) -> None:
    host.run()

    wopr("run", "hello", "--no-wait", "-i", "a=NaN", "-i", "b=x=y", "-i", 'c="1"', "-i", "d=")

    assert host.bodies[0]["inputs"] == {"a": "NaN", "b": "x=y", "c": "1", "d": ""}


def test_config_is_sent_as_configurable(host: FakeHost, wopr: Wopr) -> None:
    host.run()

    wopr("run", "hello", "--no-wait", "--config", "recursionLimit=5")

    assert host.bodies[0]["configurable"] == {"recursionLimit": 5}


@pytest.mark.parametrize(
    "args",
    [
        ("-i", "novalue"),
        ("-i", "=x"),
        ("-i", "a=1", "-i", "a=2"),
        ("-i", "a=1", "--inputs", "{}"),
        ("--inputs", "[1]"),
        ("--inputs", "{"),
        ("--inputs", "@missing.json"),
        ("--follow", "--no-wait"),
        ("--timeout", "-1"),
    ],
)
def test_wrong_usage_ends_with_2_without_a_request(
    host: FakeHost, wopr: Wopr, args: tuple[str, ...]
) -> None:
    assert wopr("run", "hello", *args).exit_code == 2
    assert host.calls() == []
