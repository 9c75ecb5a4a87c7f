from __future__ import annotations

import pytest

from tests.models.asking import OUTCOMES, asks, error_of, only, payloads, ran, started, types
from tests.models.conftest import NewHost
from tests.models.openai_server import OpenAiServer
from tests.models.turns import CallTools, Say
from tests.wire.client import Wire
from tests.wire.definitions import fresh, workflow
from wopr.protocol.documents import JsonObject

AGAIN = CallTools((("ping", {}),), tokens=(40, 10))


@pytest.fixture
def ping(server: OpenAiServer) -> JsonObject:
    path = f"/{fresh('ping')}"
    server.service.answers[path] = (200, "pong")
    return {"name": "net:ping", "description": "Ping.", "url": f"{server.url}{path}"}


def breach(log: list[JsonObject]) -> tuple[str, float, float]:
    found = only(log, "cap.breached")
    return found["kind"], found["limit"], found["observed"]


def test_a_node_that_used_too_many_tokens_ends_its_run(
    acme: Wire, server: OpenAiServer, ping: JsonObject
) -> None:
    config = {"httpTools": [ping], "budget": {"maxTokens": 60}}

    model, log = ran(acme, server, [AGAIN] * 5, "agent", config)

    assert breach(log) == ("budget-tokens", 60, 100)
    assert error_of(log) == "token_budget_exceeded"
    assert server.asked(model) == 2
    assert len(payloads(log, "provider.usage")) == 2


def test_a_node_whose_tokens_are_spent_asks_no_more(
    acme: Wire, server: OpenAiServer, ping: JsonObject
) -> None:
    config = {"httpTools": [ping], "budget": {"maxTokens": 50}}

    model, log = ran(acme, server, [AGAIN] * 5, "agent", config)

    assert breach(log) == ("budget-tokens", 50, 51)
    assert server.asked(model) == 1


def test_a_node_asks_no_more_often_than_it_may(
    acme: Wire, server: OpenAiServer, ping: JsonObject
) -> None:
    config = {"httpTools": [ping], "budget": {"maxCalls": 3}}

    model, log = ran(acme, server, [AGAIN] * 9, "agent", config)

    assert breach(log) == ("envelopes", 3, 4)
    assert error_of(log) == "budget_exhausted"
    said = only(log, "run.failed")["error"]["message"]
    assert said == "the node may use 3 model requests, and comes to 4"
    assert server.asked(model) == 3


def test_a_node_calls_tools_no_more_often_than_it_may(
    acme: Wire, server: OpenAiServer, ping: JsonObject
) -> None:
    config = {"httpTools": [ping], "budget": {"maxToolCalls": 2}}

    _, log = ran(acme, server, [AGAIN] * 9, "agent", config)

    assert breach(log) == ("budget-tool-calls", 2, 3)
    assert len(payloads(log, "agent.toolCalled")) == 2


def test_a_breach_ends_the_invocation_before_the_run(
    acme: Wire, server: OpenAiServer, ping: JsonObject
) -> None:
    config = {"httpTools": [ping], "budget": {"maxCalls": 1}}

    _, log = ran(acme, server, [AGAIN] * 2, "agent", config)

    assert types(log)[-4:] == [
        "agent.invocation.completed",
        "node.cancelled",
        "cap.breached",
        "run.failed",
    ]
    assert only(log, "agent.invocation.completed")["outcome"] == "failed"


def test_a_run_s_own_budget_counts_all_of_its_nodes(acme: Wire, server: OpenAiServer) -> None:
    first = server.script([Say("One.", tokens=(30, 10))])
    second = server.script([Say("Two.", tokens=(30, 10))])
    nodes = [asks("chat", first, id="one"), asks("chat", second, id="two")]

    run_id = started(acme, nodes, configurable={"budget": {"maxTokens": 70}})
    log = acme.events_until(run_id, "run.completed", "run.failed")

    assert breach(log) == ("budget-tokens", 70, 80)
    assert only(log, "cap.breached")["scope"] == "run"


def test_a_budget_that_cannot_be_is_refused(acme: Wire, server: OpenAiServer) -> None:
    definition = workflow([asks("chat", "m")])
    acme.register(definition)
    options = {"budget": {"maxTokens": 0}}

    answer = acme.post("/v1/runs", {"workflowId": definition["id"], "configurable": options})

    assert answer.status_code == 400
    assert answer.json()["details"]["field"] == "configurable.budget.maxTokens"


def test_the_host_s_caps_hold_whatever_a_run_wants(new_host: NewHost, server: OpenAiServer) -> None:
    host = new_host(WOPR_MAX_BUDGET_TOKENS="20", WOPR_MAX_MODEL_CALLS="5")
    model = server.script([Say("Long.", tokens=(30, 10))])

    budget = {"budget": {"maxTokens": 1_000_000}}
    run_id = started(host.wire, [asks("chat", model)], configurable=budget)
    log = host.wire.events_until(run_id, *OUTCOMES)

    assert breach(log) == ("budget-tokens", 20, 40)
    assert host.wire.document("/.well-known/openwop")["limits"]["maxBudgetTokens"] == 20


def test_a_tenant_without_model_tokens_for_the_day_asks_no_more(
    new_host: NewHost, server: OpenAiServer
) -> None:
    host = new_host(WOPR_QUOTA_MODEL_TOKENS_PER_DAY="60")
    turns = [Say("Hello.", tokens=(40, 10))] * 3

    logs = [ran(host.wire, server, turns)[1] for _ in range(3)]

    assert [types(log)[-1] for log in logs[:2]] == ["run.completed"] * 2
    assert error_of(logs[2]) == "quota_exceeded"
    failed = only(logs[2], "node.failed")["error"]
    assert 'Quota "modelTokensPerDay" of this tenant is used up: 100 of 60.' in failed["message"]
    [tokens] = [
        use
        for use in host.wire.document("/v1/usage")["quotas"]
        if use["quota"] == "modelTokensPerDay"
    ]
    assert (tokens["current"], tokens["limit"]) == (100, 60)
