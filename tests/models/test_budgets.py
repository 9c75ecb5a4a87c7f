from __future__ import annotations

import pytest

from tests.models.conftest import NewHost
from tests.models.model_runs import (
    OUTCOMES,
    error_of,
    model_node,
    only_payload,
    payloads,
    run_node,
    started,
    types,
)
from tests.models.openai_server import OpenAiServer
from tests.models.turns import CallTools, Say
from tests.support.client import Wire
from tests.support.definitions import fresh, workflow
from wopr.protocol.documents import JsonObject

AGAIN = CallTools((("ping", {}),), tokens=(40, 10))


@pytest.fixture
def ping(server: OpenAiServer) -> JsonObject:
    path = f"/{fresh('ping')}"
    server.service.answers[path] = (200, "pong")
    return {"name": "net:ping", "description": "Ping.", "url": f"{server.url}{path}"}


def breach(log: list[JsonObject]) -> tuple[str, float, float]:
    found = only_payload(log, "cap.breached")
    return found["kind"], found["limit"], found["observed"]


def test_a_node_that_used_too_many_tokens_ends_its_run(
    acme: Wire, server: OpenAiServer, ping: JsonObject
) -> None:
    config = {"httpTools": [ping], "budget": {"maxTokens": 60}}

    model, log = run_node(acme, server, [AGAIN] * 5, "agent", config)

    assert breach(log) == ("budget-tokens", 60, 100)
    assert error_of(log) == "token_budget_exceeded"
    assert server.request_count(model) == 2
    assert len(payloads(log, "provider.usage")) == 2


def test_a_node_without_tokens_left_makes_no_more_requests(
    acme: Wire, server: OpenAiServer, ping: JsonObject
) -> None:
    config = {"httpTools": [ping], "budget": {"maxTokens": 50}}

    model, log = run_node(acme, server, [AGAIN] * 5, "agent", config)

    assert breach(log) == ("budget-tokens", 50, 51)
    assert server.request_count(model) == 1


def test_a_node_does_not_exceed_its_number_of_requests(
    acme: Wire, server: OpenAiServer, ping: JsonObject
) -> None:
    config = {"httpTools": [ping], "budget": {"maxCalls": 3}}

    model, log = run_node(acme, server, [AGAIN] * 9, "agent", config)

    assert breach(log) == ("envelopes", 3, 4)
    assert error_of(log) == "budget_exhausted"
    said = only_payload(log, "run.failed")["error"]["message"]
    assert said == "The node may use 3 model requests, but needs 4."
    assert server.request_count(model) == 3


def test_a_node_does_not_exceed_its_number_of_tool_calls(
    acme: Wire, server: OpenAiServer, ping: JsonObject
) -> None:
    config = {"httpTools": [ping], "budget": {"maxToolCalls": 2}}

    _, log = run_node(acme, server, [AGAIN] * 9, "agent", config)

    assert breach(log) == ("budget-tool-calls", 2, 3)
    assert len(payloads(log, "agent.toolCalled")) == 2


def test_an_exceeded_budget_ends_the_invocation_before_the_run(
    acme: Wire, server: OpenAiServer, ping: JsonObject
) -> None:
    config = {"httpTools": [ping], "budget": {"maxCalls": 1}}

    _, log = run_node(acme, server, [AGAIN] * 2, "agent", config)

    assert types(log)[-4:] == [
        "agent.invocation.completed",
        "node.cancelled",
        "cap.breached",
        "run.failed",
    ]
    assert only_payload(log, "agent.invocation.completed")["outcome"] == "failed"


def test_a_run_s_own_budget_counts_all_of_its_nodes(acme: Wire, server: OpenAiServer) -> None:
    first = server.script([Say("One.", tokens=(30, 10))])
    second = server.script([Say("Two.", tokens=(30, 10))])
    nodes = [model_node("chat", first, id="one"), model_node("chat", second, id="two")]

    run_id = started(acme, nodes, configurable={"budget": {"maxTokens": 70}})
    log = acme.events_until(run_id, "run.completed", "run.failed")

    assert breach(log) == ("budget-tokens", 70, 80)
    assert only_payload(log, "cap.breached")["scope"] == "run"


def test_an_invalid_budget_is_refused(acme: Wire, server: OpenAiServer) -> None:
    definition = workflow([model_node("chat", "m")])
    acme.register(definition)
    options = {"budget": {"maxTokens": 0}}

    answer = acme.post("/v1/runs", {"workflowId": definition["id"], "configurable": options})

    assert answer.status_code == 400
    assert answer.json()["details"]["field"] == "configurable.budget.maxTokens"


def test_the_host_s_caps_apply_to_every_run(new_host: NewHost, server: OpenAiServer) -> None:
    host = new_host(WOPR_MAX_BUDGET_TOKENS="20", WOPR_MAX_MODEL_CALLS="5")
    model = server.script([Say("Long.", tokens=(30, 10))])

    budget = {"budget": {"maxTokens": 1_000_000}}
    run_id = started(host.wire, [model_node("chat", model)], configurable=budget)
    log = host.wire.events_until(run_id, *OUTCOMES)

    assert breach(log) == ("budget-tokens", 20, 40)
    assert host.wire.document("/.well-known/openwop")["limits"]["maxBudgetTokens"] == 20


def test_a_tenant_without_daily_tokens_left_makes_no_more_requests(
    new_host: NewHost, server: OpenAiServer
) -> None:
    host = new_host(WOPR_QUOTA_MODEL_TOKENS_PER_DAY="60")
    turns = [Say("Hello.", tokens=(40, 10))] * 3

    logs = [run_node(host.wire, server, turns)[1] for _ in range(3)]

    assert [types(log)[-1] for log in logs[:2]] == ["run.completed"] * 2
    assert error_of(logs[2]) == "quota_exceeded"
    failed = only_payload(logs[2], "node.failed")["error"]
    assert 'Quota "modelTokensPerDay" of this tenant is used up: 100 of 60.' in failed["message"]
    [tokens] = [
        use
        for use in host.wire.document("/v1/usage")["quotas"]
        if use["quota"] == "modelTokensPerDay"
    ]
    assert (tokens["current"], tokens["limit"]) == (100, 60)
