"""Error messages name the fault, the value and a remedy."""

from __future__ import annotations

import pytest

from tests.support.agent_definitions import supervised
from tests.support.client import Wire
from tests.support.definitions import edge, fresh, node, variable, workflow
from tests.support.interrupts import answer, gate, waiting_run
from tests.support.kahn import NDJSON
from tests.wire.refused_runs import refused
from tests.wire.unsure_agents import held
from wopr.protocol.documents import Json, JsonObject

LOOP_EDGES = [
    edge("loop", "body", condition={"type": "equals", "left": "done", "right": False}),
    edge("body", "loop"),
]


def loop(config: JsonObject, inputs: JsonObject | None = None, **settings: int) -> JsonObject:
    head = node("loop", "core.loop", config=config, inputs=inputs or {})
    return workflow([head, node("body")], edges=LOOP_EDGES, settings=settings)


TEN: list[Json] = list(range(10))


@pytest.mark.parametrize(
    "definition",
    [
        loop({"items": TEN}),
        loop({"times": 10}),
        loop({}, {"items": {"type": "static", "value": TEN}}),
    ],
    ids=["items", "times", "input"],
)
def test_a_loop_over_ten_items_processes_all_of_them(acme: Wire, definition: JsonObject) -> None:
    run_id = acme.create(acme.register(definition))

    ended = acme.finished(run_id)

    bodies = [
        e for e in acme.log(run_id) if (e["type"], e.get("nodeId")) == ("node.completed", "body")
    ]
    assert ended["status"] == "completed"
    assert len(bodies) == 10


def test_a_loop_with_too_many_rounds_names_the_setting(acme: Wire) -> None:
    endless = acme.run(acme.register(loop({"while": "true"})))
    limited = acme.run(acme.register(loop({"items": TEN}, maxLoopbackIterations=3)))

    assert endless["error"] == {
        "code": "loop_limit_exceeded",
        "message": "loop 'loop' exceeded 5 iterations: raise "
        "settings.maxLoopbackIterations of the workflow",
    }
    assert "exceeded 3 iterations" in limited["error"]["message"]


@pytest.mark.parametrize(
    ("type_id", "config", "name"),
    [
        ("core.conditional", {"expression": "input.a +"}, "expression"),
        ("core.loop", {"while": "1 ="}, "while"),
    ],
)
def test_an_invalid_expression_is_found_at_registration(
    acme: Wire, type_id: str, config: JsonObject, name: str
) -> None:
    response = acme.post("/v1/workflows", workflow([node("ask", type_id, config=config)]))

    [fault] = response.json()["details"]["errors"]
    assert fault["path"] == f"nodes.0.config.{name}"
    assert fault["message"].startswith("expression ")


def test_a_missing_input_is_reported_as_missing(acme: Wire) -> None:
    definition = workflow([node("a")], variables=[variable("reason", required=True)])

    details = refused(acme, {"workflowId": acme.register(definition)})

    message = "is missing: it is required and must be a string"
    assert details["errors"] == [{"path": "inputs.reason", "message": message}]


def test_an_unknown_workflow_is_reported_with_a_suggestion(acme: Wire, globex: Wire) -> None:
    name = fresh("invoicing")
    acme.register(workflow([node("a")], id=name))

    own = acme.post("/v1/runs", {"workflowId": f"{name}s"})
    foreign = globex.post("/v1/runs", {"workflowId": f"{name}s"})

    assert own.status_code == foreign.status_code == 404
    assert own.json()["message"] == f"there is no workflow '{name}s': did you mean '{name}'?"
    assert name not in foreign.json()["message"].replace(f"{name}s", "")


def test_an_unknown_version_of_a_workflow_is_reported_as_such(acme: Wire) -> None:
    name = acme.register(workflow([node("a")]))

    response = acme.get(f"/v1/workflows/{name}", params={"version": "9"})

    assert response.json()["message"] == f"there is no version '9' of workflow '{name}'"


def test_a_missing_output_of_a_child_run_names_the_outputs_and_a_remedy(acme: Wire) -> None:
    child = acme.register(workflow([node("a")]))
    total = {"type": "connection", "nodeId": "call", "outputKey": "total"}
    parent = workflow(
        [
            node("call", "core.subWorkflow", config={"workflowId": child}),
            node("use", "core.identity", inputs={"total": total}),
        ]
    )

    ended = acme.run(acme.register(parent))

    assert ended["error"]["message"] == (
        "node 'use': input 'total' needs output 'total' of node 'call', which it does not have: expected "
        "one of childRunId, childStatus; values of a child run are not outputs of the node: map them "
        "to variables with outputMapping"
    )


def test_an_unknown_key_of_a_request_is_reported_with_a_suggestion(acme: Wire) -> None:
    body = {"url": "https://example.com/hook", "event": ["run.completed"]}

    response = acme.post("/v1/webhooks", body)

    assert response.status_code == 400
    assert response.json()["message"].startswith("body: unknown key 'event': did you mean 'event")
    assert response.json()["details"]["field"] == "event"


def test_a_destination_without_https_names_the_expected_form(acme: Wire) -> None:
    response = acme.post(
        "/v1/webhooks", {"url": "http://example.com/hook", "events": ["run.completed"]}
    )

    assert response.status_code == 400
    assert "the URL must start with https://" in response.json()["message"]


def test_an_action_that_is_not_offered_is_refused_before_its_members_are_checked(
    acme: Wire,
) -> None:
    run_id = waiting_run(acme, gate(actions=["accept", "reject"]))

    response = answer(acme, run_id, "gate", {"action": "refine"})

    assert response.status_code == 400
    assert response.json()["message"] == (
        "resumeValue.action must be one of accept, reject, not refine"
    )


HELD = supervised(
    supervisor={
        "mockConfidence": 0.5,
        "mockPendingDecision": {"kind": "next-worker", "nextWorkerIds": ["conformance-noop"]},
        "workers": {"conformance-noop": "does nothing"},
    },
    agent={"agentId": "core.conformance.unsure"},
    id="conformance-agents-held-with-workers",
)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            {"decision": {"kind": "bogus"}},
            'resumeValue.decision.kind: "bogus" is not one of '
            '"next-worker", "ask-user" or "terminate"',
        ),
        (
            {"kind": "bogus"},
            'resumeValue.kind: "bogus" is not one of "next-worker", "ask-user" or "terminate"',
        ),
        ({"kind": "ask-user", "prompt": ""}, 'resumeValue.prompt: "" is shorter than 1 character'),
        (
            {"kind": "next-worker", "nextWorkerIds": ["nope"]},
            'resumeValue.nextWorkerIds.0: "nope" is not one of "conformance-noop"',
        ),
    ],
)
def test_an_impossible_decision_is_refused(acme: Wire, value: JsonObject, message: str) -> None:
    run_id = held(acme, HELD)

    response = answer(acme, run_id, "supervisor", value)

    assert (response.status_code, response.json()["message"]) == (400, message)
    assert acme.snapshot(run_id)["status"] == "waiting-approval"


def test_a_worker_named_in_the_config_can_be_decided_for(acme: Wire) -> None:
    run_id = held(acme, HELD)
    decision = {"kind": "next-worker", "nextWorkerIds": ["conformance-noop"]}

    assert answer(acme, run_id, "supervisor", decision).status_code == 200


def test_an_empty_body_is_reported_as_empty(acme: Wire) -> None:
    response = acme.request("POST", "/v1/runs", content=b"")

    assert response.status_code == 400
    assert response.json()["message"] == "the body is empty: expected a JSON document"


def test_runs_are_listed_with_and_without_the_filter_for_missing_code(acme: Wire) -> None:
    run_id = acme.create(acme.register(workflow([node("a")])))

    everything = acme.document("/v1/runs", params={"waitingForCode": "false"})
    neither = acme.get("/v1/runs", params={"waitingForCode": "no"})

    assert run_id in [each["runId"] for each in everything["items"]]
    assert neither.json()["message"] == "waitingForCode must be true or false, not 'no'"


def test_a_pushed_line_with_an_invalid_time_names_the_expected_form(acme: Wire) -> None:
    line = b'{"event":"run_start","ts":"today","run_id":"r","total_nodes":1}'

    response = acme.request("POST", "/v1/ingest/transitions", content=line, headers=NDJSON)

    [error] = response.json()["details"]["errors"]
    assert error["message"] == (
        "ts must be a time in UTC with milliseconds, such as 2026-01-31T08:00:00.000Z"
    )


def test_a_misspelt_sharing_names_the_expected_values(acme: Wire) -> None:
    config = {"prompt": "Go.", "model": "openai:m", "agentSharing": "Shared"}

    response = acme.post("/v1/workflows", workflow([node("a", "openwop.llm.agent", config=config)]))

    assert response.json()["message"] == (
        'nodes.0.config.agentSharing: "Shared" is not isolated, shared or shared:<group>'
    )


def test_a_switch_of_a_capability_without_a_name_says_so(acme: Wire) -> None:
    response = acme.post("/v1/host/sample/test/capability-toggle", {})

    assert response.status_code == 400
    assert response.json()["message"].startswith("name is missing: it must be one of ")
