from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import FakeHost, Wopr

TAKEN = {"runId": "r1", "nodeId": "gate", "status": "completed"}
ANSWER = "POST /v1/runs/r1/interrupts/gate"


def item(run_id: str = "r1", node_id: str = "gate", **more: Any) -> dict[str, Any]:
    return {
        "interruptId": f"int-{node_id}:0",
        "runId": run_id,
        "nodeId": node_id,
        "workflowId": "letters",
        "kind": "approval",
        "key": f"{node_id}:0",
        "status": "waiting-approval",
        "requestedAt": "2026-01-02T03:04:05.000Z",
        "question": "Send it?",
        "askedBy": {"nodeName": "Gate", "workflowId": "letters", "startedBy": "key_1"},
        "data": {"title": "Send it?", "artifactData": {"text": "Dear \x1b[2JAnn"}},
        "answers": {"accept": "The run continues.", "reject": "The gate fails."},
        "answerUrl": f"/v1/runs/{run_id}/interrupts/{node_id}",
        "ageMs": 7_260_000,
        **more,
    }


# List


def test_waiting_nodes_are_listed_with_age_and_question(host: FakeHost, wopr: Wopr) -> None:
    agent = {"agentId": "local.acme.a", "nodeName": "n", "workflowId": "w"}
    host.answer(
        "GET /v1/interrupts",
        {"items": [item(), item("r2", "ask", ageMs=5, askedBy=agent, expiresAt="2026-01-03")]},
    )

    heading, first, second = wopr("inbox", "list").stdout.splitlines()

    assert heading.split() == [
        *("RUN", "NODE", "KIND", "AGE", "EXPIRES", "ASKED", "BY", "QUESTION"),
    ]
    assert first.split() == ["r1", "gate", "approval", "2h", "letters", "Send", "it?"]
    assert second.split()[:6] == ["r2", "ask", "approval", "now", "2026-01-03", "local.acme.a"]


def test_filters_are_sent_to_the_server(host: FakeHost, wopr: Wopr) -> None:
    host.answer("GET /v1/interrupts", {"items": []})

    wopr(
        *("inbox", "list", "--kind", "approval", "--kind", "clarification"),
        *("--workflow", "letters", "--run", "r1", "--limit", "7"),
    )

    assert dict(host.requests[0].query_params) == {
        "kind": "approval,clarification",
        "workflowId": "letters",
        "runId": "r1",
        "limit": "7",
    }


def test_the_inbox_is_read_page_by_page(host: FakeHost, wopr: Wopr) -> None:
    host.answer("GET /v1/interrupts", {"items": [item("r2", extra=1)], "nextCursor": "c1"})
    host.answer("GET /v1/interrupts", {"items": [item("r1")]})

    document = json.loads(wopr("inbox", "list", "--all", "--json").stdout)

    assert [each["runId"] for each in document["items"]] == ["r2", "r1"]
    assert document["items"][0]["extra"] == 1
    assert [r.query_params.get("cursor") for r in host.requests] == [None, "c1"]


def test_a_limit_ends_the_list_and_says_that_there_is_more(host: FakeHost, wopr: Wopr) -> None:
    host.answer("GET /v1/interrupts", {"items": [item()], "nextCursor": "c1"})

    assert "--all" in wopr("inbox", "list", "--limit", "1").stderr


def test_a_kind_of_the_host_is_sent_unchanged(host: FakeHost, wopr: Wopr) -> None:
    host.answer("GET /v1/interrupts", {"items": [item(kind="x-host-acme-look")]})

    listed = wopr("inbox", "list", "--kind", "x-host-acme-look")

    assert "x-host-acme-look" in listed.stdout
    assert host.requests[-1].query_params["kind"] == "x-host-acme-look"


def test_an_unknown_kind_is_wrong_usage(wopr: Wopr) -> None:
    result = wopr("inbox", "list", "--kind", "wish")

    assert result.exit_code == 2
    assert "x-host-" in result.stderr


# Show


def test_a_wait_is_shown_with_the_effect_of_each_answer(host: FakeHost, wopr: Wopr) -> None:
    votes = {"granted": 1, "rejected": 0, "required": 3}
    host.answer("GET /v1/interrupts", {"items": [item(node_id="ask"), item(votes=votes)]})

    result = wopr("inbox", "show", "r1", "gate")

    assert result.exit_code == 0
    assert host.requests[0].query_params["runId"] == "r1"
    assert result.stdout.splitlines()[0] == "Send it?"
    assert "1 of 3" in result.stdout
    assert "int-gate:0" in result.stdout
    assert "accept" in result.stdout
    assert "The run continues." in result.stdout
    assert "\x1b" not in result.stdout


def test_a_wait_as_json_is_the_server_s_response(host: FakeHost, wopr: Wopr) -> None:
    host.answer("GET /v1/interrupts", {"items": [item(unknownToUs=[1])]})

    shown = json.loads(wopr("inbox", "show", "r1", "gate", "--json").stdout)

    assert shown["unknownToUs"] == [1]


def test_a_node_that_does_not_wait_is_not_found(host: FakeHost, wopr: Wopr) -> None:
    host.answer("GET /v1/interrupts", {"items": [item()]})

    result = wopr("inbox", "show", "r1", "other")

    assert result.exit_code == 3
    assert "wopr inbox list --run r1" in result.stderr


# Answer


@pytest.mark.parametrize(
    ("options", "value"),
    [
        (["--accept"], {"action": "accept"}),
        (["--accept", "--feedback", "good"], {"action": "accept", "feedback": "good"}),
        (["--reject"], {"action": "reject"}),
        (["--reject", "--feedback", "bad"], {"action": "reject", "feedback": "bad"}),
        (
            ["--feedback", "shorter"],
            {"action": "refine", "refineFeedback": {"scope": "whole", "text": "shorter"}},
        ),
        (["--answer", "q1=blue"], {"answers": {"q1": "blue"}}),
        (["--answer", "q1=3", "--answer", "q2=[1]"], {"answers": {"q1": 3, "q2": [1]}}),
        (["--decision", '{"kind":"terminate"}'], {"decision": {"kind": "terminate"}}),
        (["--decision", "granted"], {"decision": "granted"}),
        (["--decision", "@value.json"], {"decision": {"from": "file"}}),
        (["--value", '{"any": [1]}'], {"any": [1]}),
        (["--value", "null"], None),
        (["--value", "@value.json"], {"from": "file"}),
        (["--value", "-"], {"from": "stdin"}),
    ],
)
def test_each_answer_is_sent_in_its_form(
    host: FakeHost, wopr: Wopr, tmp_path: Path, options: list[str], value: Any
) -> None:
    (tmp_path / "value.json").write_text('{"from": "file"}')
    host.answer(ANSWER, TAKEN)

    result = wopr("inbox", "answer", "r1", "gate", *options, stdin='{"from": "stdin"}')

    assert (result.exit_code, result.stdout) == (0, "run r1 completed\n")
    assert host.bodies == [{"resumeValue": value}]
    assert "interruptId" not in host.requests[0].query_params


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--accept", "--reject"],
        ["--accept", "--value", "1"],
        ["--answer", "q1=a", "--feedback", "x"],
        ["--value", "not json"],
        ["--value", "@missing.json"],
        ["--answer", "q1"],
        ["--answer", "q1=a", "--answer", "q1=b"],
    ],
)
def test_no_answer_or_several_answers_are_wrong_usage(
    host: FakeHost, wopr: Wopr, options: list[str]
) -> None:
    result = wopr("inbox", "answer", "r1", "gate", *options)

    assert result.exit_code == 2
    assert host.requests == []


def test_an_answer_can_name_its_wait(host: FakeHost, wopr: Wopr) -> None:
    host.answer(ANSWER, TAKEN)

    wopr("inbox", "answer", "r1", "gate", "--accept", "--interrupt", "int-gate:0")

    assert host.requests[0].query_params["interruptId"] == "int-gate:0"


def test_a_node_id_of_any_text_reaches_the_server(host: FakeHost, wopr: Wopr) -> None:
    host.answer("POST /v1/runs/r1/interrupts/a/b c", TAKEN)

    assert wopr("inbox", "answer", "r1", "a/b c", "--accept").exit_code == 0
    assert host.requests[0].scope["raw_path"] == b"/v1/runs/r1/interrupts/a%2Fb%20c"


def test_the_answer_as_json_is_the_server_s_response(host: FakeHost, wopr: Wopr) -> None:
    host.answer(ANSWER, TAKEN | {"extra": 1})

    result = wopr("inbox", "answer", "r1", "gate", "--accept", "--json")

    assert json.loads(result.stdout) == TAKEN | {"extra": 1}


@pytest.mark.parametrize(
    ("status", "code", "exit_code"),
    [
        (400, "validation_error", 2),
        (403, "forbidden", 4),
        (404, "interrupt_not_found", 3),
        (409, "interrupt_already_resolved", 5),
        (410, "interrupt_gone", 3),
        (422, "interrupt_cancelled", 2),
    ],
)
def test_a_refused_answer_ends_with_its_exit_code(
    host: FakeHost, wopr: Wopr, status: int, code: str, exit_code: int
) -> None:
    host.refuse(ANSWER, status, code, "this was settled already by key_2", resolvedBy="key_2")

    result = wopr("inbox", "answer", "r1", "gate", "--accept")

    assert result.exit_code == exit_code
    assert "settled already by key_2" in result.stderr
