from __future__ import annotations

import json

import pytest

from tests.models.conftest import Servers
from tests.models.model_runs import (
    CITY,
    OUTCOMES,
    error_of,
    model_node,
    only_payload,
    outputs_of,
    payloads,
    run_node,
    started,
    types,
)
from tests.models.model_server import ModelServer
from tests.models.openai_server import OpenAiServer
from tests.models.turns import CallTools, Refuse, Say
from tests.support.client import Wire
from tests.support.definitions import fresh, workflow
from wopr.protocol.documents import Json, JsonObject

LOOK_UP = "shop:orders"


@pytest.fixture
def orders(server: OpenAiServer) -> JsonObject:
    """Return a tool declared by a workflow: an HTTP service that knows two orders."""
    path = f"/{fresh('orders')}"
    server.service.answers[path] = (200, {"orders": [1, 2]})
    return {
        "name": LOOK_UP,
        "description": "Find the orders of a customer.",
        "url": f"{server.url}{path}",
        "parameters": {
            "type": "object",
            "properties": {"customer": {"type": "string"}},
            "required": ["customer"],
        },
    }


def looked_up(customer: Json = "acme") -> CallTools:
    return CallTools((("orders", {"customer": customer}),), text="Let me look.")


def test_an_agent_event_order_matches_a_live_invocation(
    acme: Wire, any_server: ModelServer, orders: JsonObject
) -> None:
    answer = {"answer": "two", "confidence": 0.9, "reasoning": "I counted."}
    turns = [looked_up(), any_server.conclusion(answer)]
    config = {"httpTools": [orders], "asksConfidence": True}

    model, log = run_node(acme, any_server, turns, "agent", config)

    assert [t for t in types(log) if t.startswith("agent.")] == [
        "agent.invocation.started",
        "agent.reasoned",
        "agent.toolCalled",
        "agent.toolReturned",
        "agent.reasoned",
        "agent.decided",
        "agent.invocation.completed",
    ]
    thoughts = [thought["reasoning"] for thought in payloads(log, "agent.reasoned")]
    assert thoughts == ["Let me look.", "I counted."]
    assert types(log)[-2:] == ["node.completed", "run.completed"]
    assert "UNTRUSTED" in any_server.prompt(model, 1)
    assert outputs_of(log) | {"model": ""} == {
        "result": "two",
        "text": "two",
        "confidence": 0.9,
        "reasoning": "I counted.",
        "model": "",
    }


def test_a_tool_s_return_is_caused_by_its_call_and_shares_its_id(
    acme: Wire, server: OpenAiServer, orders: JsonObject
) -> None:
    _, log = run_node(acme, server, [looked_up(), Say("Two.")], "agent", {"httpTools": [orders]})

    [called] = [event for event in log if event["type"] == "agent.toolCalled"]
    [returned] = [event for event in log if event["type"] == "agent.toolReturned"]
    assert returned["causationId"] == called["eventId"]
    assert returned["payload"]["callId"] == called["payload"]["callId"]
    assert called["payload"]["inputs"] == {"customer": "acme"}
    assert len(called["payload"]["argsHash"]) == 64
    assert returned["payload"]["outcome"]["body"] == {"orders": [1, 2]}


def test_the_model_reads_a_tool_s_result_as_untrusted_data(
    acme: Wire, server: OpenAiServer, orders: JsonObject
) -> None:
    model, _ = run_node(acme, server, [looked_up(), Say("Two.")], "agent", {"httpTools": [orders]})

    told = server.requests[model][1]["messages"][-1]
    assert told["role"] == "tool"
    assert told["content"].startswith(f'<UNTRUSTED tool="{LOOK_UP}">')


def test_wrong_arguments_are_reported_to_the_model_and_the_tool_is_not_called(
    acme: Wire, server: OpenAiServer, any_server: ModelServer, orders: JsonObject
) -> None:
    before = len(server.service.requests)
    turns = [looked_up(7), looked_up(), Say("Two.")]

    model, log = run_node(acme, any_server, turns, "agent", {"httpTools": [orders]})

    assert outputs_of(log)["text"] == "Two."
    assert "Error: customer" in any_server.prompt(model, 1)
    assert len(payloads(log, "agent.toolCalled")) == 1
    assert len(server.service.requests) == before + 1


# Google's arguments are not text that could be invalid.
@pytest.mark.parametrize("provider", ["local", "anthropic"])
def test_arguments_that_are_not_json_are_reported_to_the_model(
    acme: Wire, servers: Servers, orders: JsonObject, provider: str
) -> None:
    turns = [CallTools((("orders", '{"customer": '),)), Say("Never mind.")]

    model, log = run_node(acme, servers[provider], turns, "agent", {"httpTools": [orders]})

    assert "not a JSON object" in servers[provider].prompt(model, 1)
    assert outputs_of(log)["text"] == "Never mind."


def test_a_model_that_repeats_wrong_calls_fails_the_node(
    acme: Wire, server: OpenAiServer, orders: JsonObject
) -> None:
    config = {"httpTools": [orders], "maxWrongCalls": 2}

    model, log = run_node(acme, server, [looked_up(7)] * 9, "agent", config)

    assert error_of(log) == "tool_call_invalid"
    assert server.request_count(model) == 3


def test_a_failed_tool_is_reported_to_the_model_and_the_agent_continues(
    acme: Wire, server: OpenAiServer, orders: JsonObject
) -> None:
    config = {"httpTools": [orders | {"url": f"{server.url}/nowhere"}]}

    model, log = run_node(acme, server, [looked_up(), Say("I do not know.")], "agent", config)

    returned = only_payload(log, "agent.toolReturned")
    assert (returned["status"], returned["error"]["code"]) == ("error", "http_error")
    assert "answered 404" in server.prompt(model, 1)
    assert outputs_of(log)["text"] == "I do not know."


def test_a_call_without_the_key_s_scope_is_refused_and_logged(
    acme: Wire, server: OpenAiServer, orders: JsonObject
) -> None:
    before = len(server.service.requests)
    config = {"httpTools": [orders | {"scopes": ["orders:read"]}]}

    _, log = run_node(acme, server, [looked_up(), Say("I may not.")], "agent", config)

    returned = only_payload(log, "agent.toolReturned")
    assert returned["status"] == "forbidden"
    assert "durationMs" not in returned
    assert len(server.service.requests) == before


def test_an_agent_hands_off_to_one_of_its_handoff_targets(acme: Wire, server: OpenAiServer) -> None:
    wish = {"toAgentId": "acme.support.billing", "reason": "It is about money."}
    first = server.script([CallTools((("hand_over", wish),))])
    second = server.script([Say("Paid.")])
    nodes = [
        model_node(
            "agent",
            first,
            {"handoffs": {"acme.support.billing": "when it is about money"}},
            id="triage",
            agent={"agentId": "acme.support.triage"},
        ),
        model_node("agent", second, id="billing", agent={"agentId": "acme.support.billing"}),
    ]

    run_id = started(acme, nodes)
    log = acme.events_until(run_id, *OUTCOMES)

    handoff = only_payload(log, "agent.handoff")
    assert (handoff["fromAgentId"], handoff["toAgentId"]) == (
        "acme.support.triage",
        "acme.support.billing",
    )
    outcomes = [p["outcome"] for p in payloads(log, "agent.invocation.completed")]
    assert outcomes == ["handed-off", "completed"]
    assert payloads(log, "node.completed")[0]["outputs"]["handoff"] == wish


def test_an_agent_cannot_hand_off_to_another_agent(acme: Wire, server: OpenAiServer) -> None:
    wish = {"toAgentId": "globex.evil.agent", "reason": "Trust me."}
    turns = [CallTools((("hand_over", wish),)), Say("Then I stay.")]

    _, log = run_node(acme, server, turns, "agent", {"handoffs": {"acme.support.billing": "money"}})

    assert outputs_of(log)["text"] == "Then I stay."


def test_a_refusal_of_the_model_ends_the_invocation_as_refused(
    acme: Wire, server: OpenAiServer
) -> None:
    _, log = run_node(acme, server, [Refuse()], "agent")

    assert only_payload(log, "agent.invocation.completed")["outcome"] == "refused"
    assert error_of(log) == "envelope_refused_by_provider"


def test_an_unsure_agent_waits_in_the_inbox(acme: Wire, server: OpenAiServer) -> None:
    said = json.dumps({"answer": "refund", "confidence": 0.3, "reasoning": "A guess."})

    model, log = run_node(acme, server, [Say(said)], "agent", {"asksConfidence": True})

    run_id = log[0]["runId"]
    assert only_payload(log, "agent.invocation.completed")["outcome"] == "escalated"
    waiting = acme.document("/v1/interrupts", params={"runId": run_id})["items"]
    assert [item["kind"] for item in waiting] == ["low-confidence"]
    acme.post(f"/v1/runs/{run_id}/interrupts/ask", {"resumeValue": {"decision": "voucher"}})
    assert acme.finished(run_id)["outputs"]["ask"]["result"] == "voucher"
    assert server.request_count(model) == 1


def _installed(wire: Wire, **fields: Json) -> str:
    agent_id = f"private.acme.{fresh('agent')}"
    manifest = {
        "agentId": agent_id,
        "persona": "Triage",
        "modelClass": "general",
        "systemPrompt": "You sort what comes in.",
    }
    assert wire.post("/v1/agents", manifest | fields).status_code == 201
    return agent_id


def test_an_agent_uses_the_prompt_of_its_manifest(acme: Wire, server: OpenAiServer) -> None:
    agent_id = _installed(acme)

    model, log = run_node(acme, server, [Say("Done.")], "agent", agent={"agentId": agent_id})

    system = server.requests[model][0]["messages"][0]
    assert system["role"] == "system"
    assert system["content"].startswith("You sort what comes in.")
    assert only_payload(log, "agent.decided")["agentId"] == agent_id


def test_a_tool_outside_the_allowlist_is_neither_offered_nor_called(
    acme: Wire, server: OpenAiServer, orders: JsonObject
) -> None:
    before = len(server.service.requests)
    agent_id = _installed(acme, toolAllowlist=["shop:refunds"])
    config = {"httpTools": [orders]}

    model, log = run_node(
        acme, server, [looked_up(), Say("Pity.")], "agent", config, agent={"agentId": agent_id}
    )

    assert "tools" not in server.requests[model][0]
    assert payloads(log, "agent.toolCalled") == []
    assert len(server.service.requests) == before
    assert outputs_of(log)["text"] == "Pity."


def test_with_a_threshold_in_the_manifest_the_model_returns_a_confidence(
    acme: Wire, server: OpenAiServer
) -> None:
    agent_id = _installed(acme, confidence={"defaultThreshold": 0.95})
    said = json.dumps({"answer": "refund", "confidence": 0.9, "reasoning": "Likely."})

    _, log = run_node(acme, server, [Say(said)], "agent", agent={"agentId": agent_id})

    assert only_payload(log, "node.suspended")["threshold"] == 0.95


def test_an_agent_returns_only_the_outputs_of_its_manifest(
    acme: Wire, server: OpenAiServer
) -> None:
    agent_id = _installed(acme, handoff={"returnSchema": CITY})

    _, log = run_node(acme, server, [Say('{"city": "Oslo"}')], "agent", agent={"agentId": agent_id})

    assert outputs_of(log) == {"city": "Oslo"}


def test_the_alias_of_the_type_works_alike(acme: Wire, server: OpenAiServer) -> None:
    model = server.script([Say("Done.")])
    node = model_node("agent", model) | {"typeId": "core.llm.agent"}

    run_id = started(acme, [node])

    assert acme.finished(run_id)["outputs"]["ask"]["text"] == "Done."


def test_an_option_that_would_change_the_request_structure_is_refused(acme: Wire) -> None:
    options = {"extra_body": {"model": "dear"}, "openai_reasoning_effort": "low", "top_k": 3}

    answer = acme.post(
        "/v1/workflows", workflow([model_node("agent", "m", {"providerOptions": options})])
    )

    assert answer.status_code == 400
    paths = {fault["path"] for fault in answer.json()["details"]["errors"]}
    assert paths == {"nodes.0.config.providerOptions.extra_body"}


def test_an_invalid_config_is_refused_at_registration(acme: Wire) -> None:
    config = {
        "schema": {"type": "nonsense"},
        "httpTools": [{"name": "a:b", "description": "x", "url": "https://{host}/x"}],
    }

    answer = acme.post("/v1/workflows", workflow([model_node("agent", "m", config)]))

    assert answer.status_code == 400
    paths = {fault["path"] for fault in answer.json()["details"]["errors"]}
    assert paths == {"nodes.0.config.schema", "nodes.0.config.httpTools.0.url"}
