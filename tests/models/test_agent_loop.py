from __future__ import annotations

import json

import pytest

from tests.models.asking import (
    CITY,
    OUTCOMES,
    asks,
    error_of,
    only,
    outputs_of,
    payloads,
    ran,
    started,
    types,
)
from tests.models.conftest import Servers
from tests.models.model_server import ModelServer
from tests.models.openai_server import OpenAiServer
from tests.models.turns import CallTools, Refuse, Say
from tests.wire.client import Wire
from tests.wire.definitions import fresh, workflow
from wopr.protocol.documents import Json, JsonObject

LOOK_UP = "shop:orders"


@pytest.fixture
def orders(server: OpenAiServer) -> JsonObject:
    """A tool that a workflow declares: an HTTP service that knows two orders."""
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


def test_an_agent_works_in_the_order_of_a_live_invocation(
    acme: Wire, any_server: ModelServer, orders: JsonObject
) -> None:
    answer = {"answer": "two", "confidence": 0.9, "reasoning": "I counted."}
    turns = [looked_up(), any_server.conclusion(answer)]
    config = {"httpTools": [orders], "asksConfidence": True}

    model, log = ran(acme, any_server, turns, "agent", config)

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


def test_a_tool_s_return_follows_from_its_call_and_shares_its_id(
    acme: Wire, server: OpenAiServer, orders: JsonObject
) -> None:
    _, log = ran(acme, server, [looked_up(), Say("Two.")], "agent", {"httpTools": [orders]})

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
    model, _ = ran(acme, server, [looked_up(), Say("Two.")], "agent", {"httpTools": [orders]})

    told = server.requests[model][1]["messages"][-1]
    assert told["role"] == "tool"
    assert told["content"].startswith(f'<UNTRUSTED tool="{LOOK_UP}">')


def test_wrong_arguments_are_told_to_the_model_and_the_tool_is_not_called(
    acme: Wire, server: OpenAiServer, any_server: ModelServer, orders: JsonObject
) -> None:
    before = len(server.service.requests)
    turns = [looked_up(7), looked_up(), Say("Two.")]

    model, log = ran(acme, any_server, turns, "agent", {"httpTools": [orders]})

    assert outputs_of(log)["text"] == "Two."
    assert "Error: customer" in any_server.prompt(model, 1)
    assert len(payloads(log, "agent.toolCalled")) == 1
    assert len(server.service.requests) == before + 1


# Google's arguments are no text that could be wrong.
@pytest.mark.parametrize("provider", ["local", "anthropic"])
def test_arguments_that_are_no_json_are_told_to_the_model(
    acme: Wire, servers: Servers, orders: JsonObject, provider: str
) -> None:
    turns = [CallTools((("orders", '{"customer": '),)), Say("Never mind.")]

    model, log = ran(acme, servers[provider], turns, "agent", {"httpTools": [orders]})

    assert "not a JSON object" in servers[provider].prompt(model, 1)
    assert outputs_of(log)["text"] == "Never mind."


def test_a_model_that_keeps_calling_wrongly_fails_the_node(
    acme: Wire, server: OpenAiServer, orders: JsonObject
) -> None:
    config = {"httpTools": [orders], "maxWrongCalls": 2}

    model, log = ran(acme, server, [looked_up(7)] * 9, "agent", config)

    assert error_of(log) == "tool_call_invalid"
    assert server.asked(model) == 3


def test_a_tool_that_fails_is_told_to_the_model_and_the_agent_goes_on(
    acme: Wire, server: OpenAiServer, orders: JsonObject
) -> None:
    config = {"httpTools": [orders | {"url": f"{server.url}/nowhere"}]}

    model, log = ran(acme, server, [looked_up(), Say("I do not know.")], "agent", config)

    returned = only(log, "agent.toolReturned")
    assert (returned["status"], returned["error"]["code"]) == ("error", "http_error")
    assert "answered 404" in server.prompt(model, 1)
    assert outputs_of(log)["text"] == "I do not know."


def test_a_tool_that_the_key_may_not_have_called_is_refused_on_the_record(
    acme: Wire, server: OpenAiServer, orders: JsonObject
) -> None:
    before = len(server.service.requests)
    config = {"httpTools": [orders | {"scopes": ["orders:read"]}]}

    _, log = ran(acme, server, [looked_up(), Say("I may not.")], "agent", config)

    returned = only(log, "agent.toolReturned")
    assert returned["status"] == "forbidden"
    assert "durationMs" not in returned
    assert len(server.service.requests) == before


def test_an_agent_hands_over_to_one_of_its_colleagues(acme: Wire, server: OpenAiServer) -> None:
    wish = {"toAgentId": "acme.support.billing", "reason": "It is about money."}
    first = server.script([CallTools((("hand_over", wish),))])
    second = server.script([Say("Paid.")])
    nodes = [
        asks(
            "agent",
            first,
            {"handoffs": {"acme.support.billing": "when it is about money"}},
            id="triage",
            agent={"agentId": "acme.support.triage"},
        ),
        asks("agent", second, id="billing", agent={"agentId": "acme.support.billing"}),
    ]

    run_id = started(acme, nodes)
    log = acme.events_until(run_id, *OUTCOMES)

    handoff = only(log, "agent.handoff")
    assert (handoff["fromAgentId"], handoff["toAgentId"]) == (
        "acme.support.triage",
        "acme.support.billing",
    )
    outcomes = [p["outcome"] for p in payloads(log, "agent.invocation.completed")]
    assert outcomes == ["handed-off", "completed"]
    assert payloads(log, "node.completed")[0]["outputs"]["handoff"] == wish


def test_an_agent_cannot_hand_over_to_anybody_else(acme: Wire, server: OpenAiServer) -> None:
    wish = {"toAgentId": "globex.evil.agent", "reason": "Trust me."}
    turns = [CallTools((("hand_over", wish),)), Say("Then I stay.")]

    _, log = ran(acme, server, turns, "agent", {"handoffs": {"acme.support.billing": "money"}})

    assert outputs_of(log)["text"] == "Then I stay."


def test_a_refusal_ends_the_invocation_as_refused(acme: Wire, server: OpenAiServer) -> None:
    _, log = ran(acme, server, [Refuse()], "agent")

    assert only(log, "agent.invocation.completed")["outcome"] == "refused"
    assert error_of(log) == "envelope_refused_by_provider"


def test_an_unsure_agent_waits_in_the_inbox(acme: Wire, server: OpenAiServer) -> None:
    said = json.dumps({"answer": "refund", "confidence": 0.3, "reasoning": "A guess."})

    model, log = ran(acme, server, [Say(said)], "agent", {"asksConfidence": True})

    run_id = log[0]["runId"]
    assert only(log, "agent.invocation.completed")["outcome"] == "escalated"
    waiting = acme.document("/v1/interrupts", params={"runId": run_id})["items"]
    assert [item["kind"] for item in waiting] == ["low-confidence"]
    acme.post(f"/v1/runs/{run_id}/interrupts/ask", {"resumeValue": {"decision": "voucher"}})
    assert acme.finished(run_id)["outputs"]["ask"]["result"] == "voucher"
    assert server.asked(model) == 1


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


def test_an_agent_speaks_with_the_prompt_of_its_manifest(acme: Wire, server: OpenAiServer) -> None:
    agent_id = _installed(acme)

    model, log = ran(acme, server, [Say("Done.")], "agent", agent={"agentId": agent_id})

    system = server.requests[model][0]["messages"][0]
    assert system["role"] == "system"
    assert system["content"].startswith("You sort what comes in.")
    assert only(log, "agent.decided")["agentId"] == agent_id


def test_a_tool_outside_the_allowlist_is_neither_offered_nor_called(
    acme: Wire, server: OpenAiServer, orders: JsonObject
) -> None:
    before = len(server.service.requests)
    agent_id = _installed(acme, toolAllowlist=["shop:refunds"])
    config = {"httpTools": [orders]}

    model, log = ran(
        acme, server, [looked_up(), Say("Pity.")], "agent", config, agent={"agentId": agent_id}
    )

    assert "tools" not in server.requests[model][0]
    assert payloads(log, "agent.toolCalled") == []
    assert len(server.service.requests) == before
    assert outputs_of(log)["text"] == "Pity."


def test_a_threshold_in_the_manifest_has_the_model_say_how_sure_it_is(
    acme: Wire, server: OpenAiServer
) -> None:
    agent_id = _installed(acme, confidence={"defaultThreshold": 0.95})
    said = json.dumps({"answer": "refund", "confidence": 0.9, "reasoning": "Likely."})

    _, log = ran(acme, server, [Say(said)], "agent", agent={"agentId": agent_id})

    assert only(log, "node.suspended")["threshold"] == 0.95


def test_an_agent_returns_what_its_manifest_promises_and_nothing_else(
    acme: Wire, server: OpenAiServer
) -> None:
    agent_id = _installed(acme, handoff={"returnSchema": CITY})

    _, log = ran(acme, server, [Say('{"city": "Oslo"}')], "agent", agent={"agentId": agent_id})

    assert outputs_of(log) == {"city": "Oslo"}


def test_the_other_name_of_the_type_does_the_same(acme: Wire, server: OpenAiServer) -> None:
    model = server.script([Say("Done.")])
    node = asks("agent", model) | {"typeId": "core.llm.agent"}

    run_id = started(acme, [node])

    assert acme.finished(run_id)["outputs"]["ask"]["text"] == "Done."


def test_an_option_that_would_change_the_request_itself_is_refused(acme: Wire) -> None:
    options = {"extra_body": {"model": "dear"}, "openai_reasoning_effort": "low", "top_k": 3}

    answer = acme.post(
        "/v1/workflows", workflow([asks("agent", "m", {"providerOptions": options})])
    )

    assert answer.status_code == 400
    paths = {fault["path"] for fault in answer.json()["details"]["errors"]}
    assert paths == {"nodes.0.config.providerOptions.extra_body"}


def test_a_faulty_config_is_refused_when_it_is_registered(acme: Wire) -> None:
    config = {
        "schema": {"type": "nonsense"},
        "httpTools": [{"name": "a:b", "description": "x", "url": "https://{host}/x"}],
    }

    answer = acme.post("/v1/workflows", workflow([asks("agent", "m", config)]))

    assert answer.status_code == 400
    paths = {fault["path"] for fault in answer.json()["details"]["errors"]}
    assert paths == {"nodes.0.config.schema", "nodes.0.config.httpTools.0.url"}
