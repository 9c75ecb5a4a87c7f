"""JSON Schemas of users: refused ones, and how values are checked."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.support.client import Wire
from tests.support.definitions import edge, node, workflow
from tests.support.host import ACME, served
from tests.support.schemas import expanding_schema, tree
from tests.wire.refusals import refusal
from wopr.protocol.documents import JsonObject


def gate(type_id: str, **config: object) -> JsonObject:
    return workflow([node("gate", type_id, config=config)])


ASKED = [{"id": "q", "question": "Which?", "schema": expanding_schema()}]
PLACES: dict[str, JsonObject] = {
    "configurableSchema": workflow([node("a")], configurableSchema=expanding_schema()),
    "channels.notes.schema": workflow(
        [node("a")], channels={"notes": {"reducer": "append", "schema": expanding_schema()}}
    ),
    "nodes.0.config.questions.0.schema": gate("core.clarificationGate", questions=ASKED),
    "nodes.0.config.resumeSchema": gate(
        "core.interrupt", kind="custom", resumeSchema=expanding_schema()
    ),
    "nodes.0.config.turnSchema": gate("core.conversationGate", turnSchema=expanding_schema()),
    "nodes.0.config.schema": gate("wopr.llm.structured", prompt="?", schema=expanding_schema()),
}


@pytest.mark.parametrize("path", PLACES)
@pytest.mark.parametrize("route", ["/v1/workflows", "/v1/workflows:validate"])
def test_a_schema_that_expands_without_bound_is_refused_everywhere(
    acme: Wire, path: str, route: str
) -> None:
    answer = acme.post(route, PLACES[path])

    told = answer.json()
    faults = told["errors"] if route.endswith("validate") else told["details"]["errors"]
    assert [fault["path"] for fault in faults] == [path]
    assert "more than 10^9 subschemas through its references" in faults[0]["message"]
    assert "at most 20000 are allowed" in faults[0]["message"]


@pytest.mark.parametrize("name", ["taskSchema", "returnSchema"])
def test_a_manifest_with_a_schema_that_expands_without_bound_is_refused(
    acme: Wire, name: str
) -> None:
    manifest = {
        "agentId": "vendor.acme.bomb",
        "persona": "Bomb",
        "version": "1.0",
        "modelClass": "general",
        "systemPrompt": "Explode.",
        "handoff": {name: expanding_schema()},
    }

    told = refusal(acme.post("/v1/agents", manifest), 400)

    paths = {fault["path"] for fault in told["details"]["errors"]}
    assert f"handoff.{name}" in paths
    assert "at most 20000 are allowed" in str(told)


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"pattern": "((a{1,100}){1,100}){1,100}"}, "patterns of the schema have"),
        ({"anyOf": [{"pattern": "(a{1,90}){1,90}" * 3}] * 90}, "patterns of the schema have"),
        ({"pattern": "(" * 600 + "a" + "){999999999}" * 600}, "have more than 10^9 states"),
        ({"enum": ["x" * 40] * 8000}, "bytes, and at most 262144 are allowed"),
        (expanding_schema(60), "nested more than 100 deep"),
        ({"$ref": "https://example.com/schema"}, "references to other documents"),
    ],
    ids=["pattern", "patterns", "states", "bytes", "depth", "remote"],
)
def test_a_schema_that_would_take_long_to_compile_is_refused(
    acme: Wire, schema: JsonObject, why: str
) -> None:
    definition = workflow([node("a")], configurableSchema=schema)

    told = refusal(acme.post("/v1/workflows", definition), 400)

    assert told["error"] == "validation_error"
    assert told["details"]["field"] == "configurableSchema"
    assert why in told["message"]


def test_a_recursive_schema_checks_values_of_any_depth(acme: Wire) -> None:
    name = acme.register(workflow([node("a")], configurableSchema=tree()))
    good = {"parts": [{"size": 1, "parts": [{"size": 2}]}]}
    bad = {"parts": [{"size": 1, "parts": [{"size": "large"}]}]}

    accepted = acme.post("/v1/runs", {"workflowId": name, "configurable": good})
    told = refusal(acme.post("/v1/runs", {"workflowId": name, "configurable": bad}), 400)

    assert accepted.status_code == 201
    assert told["details"]["field"] == "configurable.parts.0.parts.0.size"


def test_writes_to_a_channel_with_a_recursive_schema_are_checked(acme: Wire) -> None:
    def writer(value: object) -> JsonObject:
        config = {"channelName": "tree", "value": value}
        return workflow(
            [node("a", "core.channelWrite", config=config), node("b")],
            channels={"tree": {"reducer": "replace", "schema": tree()}},
        )

    good = acme.run(acme.register(writer({"parts": [{"size": 1}]})))
    bad = acme.run(acme.register(writer({"parts": [{"size": "large"}]})))

    assert good["status"] == "completed"
    assert good["channels"]["tree"] == {"parts": [{"size": 1}]}
    assert (bad["status"], bad["error"]["code"]) == ("failed", "validation_error")
    assert '"large" is not of type "integer"' in bad["error"]["message"]


def test_an_answer_is_checked_against_a_recursive_schema(acme: Wire) -> None:
    name = acme.register(
        gate("core.interrupt", kind="custom", data={"customKind": "acme.tree"}, resumeSchema=tree())
    )
    run_id = acme.create(name)
    acme.events_until(run_id, "interrupt.requested")
    path = f"/v1/runs/{run_id}/interrupts/gate"

    told = refusal(acme.post(path, {"resumeValue": {"parts": [{"size": "x"}]}}), 400)
    taken = acme.post(path, {"resumeValue": {"parts": [{"size": 3}]}})

    assert told["details"]["field"] == "resumeValue.parts.0.size"
    assert taken.status_code == 200
    assert acme.finished(run_id)["status"] == "completed"


def test_the_operator_sets_the_maximum_size_of_a_schema(tmp_path: Path) -> None:
    definition = workflow([node("a")], configurableSchema=expanding_schema(3))

    with served(tmp_path, WOPR_MAX_SCHEMA_SUBSCHEMAS="10") as host, Wire(host.url, ACME) as acme:
        told = refusal(acme.post("/v1/workflows", definition), 400)

    assert "expands to 37 subschemas" in told["message"]
    assert "at most 10 are allowed" in told["message"]


def test_a_request_whose_check_cannot_start_gets_a_retry_time(tmp_path: Path) -> None:
    definition = workflow([node("a")], configurableSchema=tree())
    body: JsonObject = {"workflowId": definition["id"], "configurable": {"size": 1}}

    with (
        served(tmp_path, WOPR_CHECK_WAIT_SECONDS="0.001") as host,
        Wire(host.url, ACME) as acme,
        ThreadPoolExecutor(max_workers=10) as senders,
    ):
        acme.register(definition)
        answers = list(senders.map(partial(acme.post, "/v1/runs"), [body] * 10))

    busy = [answer for answer in answers if answer.status_code != 201]
    assert 1 <= len(busy) <= 9
    assert {refusal(answer, 503)["error"] for answer in busy} == {"service_unavailable"}
    assert {answer.headers["Retry-After"] for answer in busy} == {"2"}
    assert "A check could not start within 0.001 s" in busy[0].text


def test_a_node_whose_check_cannot_start_is_called_again(tmp_path: Path) -> None:
    write = {"channelName": "tree", "value": {"size": 1}}
    definition = workflow(
        [
            node("wait", "core.delay", config={"delayMs": 300}),
            node("write", "core.channelWrite", config=write),
        ],
        edges=[edge("wait", "write")],
        channels={"tree": {"reducer": "replace", "schema": tree()}},
    )

    with (
        served(tmp_path, WOPR_CHECK_WAIT_SECONDS="0.001") as host,
        Wire(host.url, ACME) as acme,
    ):
        acme.register(definition)
        runs = [acme.create(definition["id"]) for _ in range(5)]
        ended = [acme.finished(run_id) for run_id in runs]
        log = host.log()

    assert {run["status"] for run in ended} == {"completed"}
    assert "A check could not start within 0.001 s" in log
