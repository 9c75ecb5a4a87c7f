from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest
import rfc8785

from tests.support.agent_definitions import (
    agent_events,
    agent_name,
    events_of,
    mock,
    only_event,
    scripted,
)
from tests.support.client import Wire
from tests.support.definitions import edge, node
from tests.support.host import ACME, ServedHost, served
from wopr.protocol.documents import Json, JsonObject

ECHO: JsonObject = {"toolId": "openwop.echo:echo", "arguments": {"x": 1}, "result": {"x": 1}}
EVERYTHING: JsonObject = {
    "mockReasoning": {"summary": "Thought about it.", "tokenCount": 24},
    "mockToolCalls": [ECHO | {"durationMs": 1}],
    "mockHandoff": {"toAgentId": "host:next", "reason": "demo", "context": {"a": 1}},
    "mockDecision": {"decision": {"next": "done"}, "confidence": 1, "reasoning": "clear"},
}


def acted(
    wire: Wire, config: JsonObject, agent: JsonObject | None = None, **body: Json
) -> list[JsonObject]:
    """Run a mock agent and return its events."""
    workflow_id = wire.register(scripted([mock("actor", agent, **config)]))
    run_id = wire.create(workflow_id, **body)
    wire.finished(run_id)
    return agent_events(wire.log(run_id))


def payload(log: list[JsonObject], event_type: str) -> JsonObject:
    found: JsonObject = only_event(log, event_type)["payload"]
    return found


def reasoned(wire: Wire, reasoning: Json, **configurable: Json) -> JsonObject:
    log = acted(wire, {"mockReasoning": reasoning}, configurable=configurable)
    return payload(log, "agent.reasoned")


# Order and names


def test_an_agent_reasons_calls_hands_off_and_decides_in_this_order(acme: Wire) -> None:
    log = acted(acme, EVERYTHING)

    assert [event["type"] for event in log] == [
        "agent.reasoned",
        "agent.toolCalled",
        "agent.toolReturned",
        "agent.handoff",
        "agent.decided",
    ]


def test_every_agent_event_names_its_node_on_the_envelope(acme: Wire) -> None:
    assert {event["nodeId"] for event in acted(acme, EVERYTHING)} == {"actor"}


def test_payloads_have_the_names_of_the_schema_and_no_others(acme: Wire) -> None:
    agent = {"agentId": agent_name()}
    log = acted(acme, EVERYTHING, agent)
    who = agent["agentId"]

    assert payload(log, "agent.reasoned") == {
        "agentId": who,
        "reasoning": "Thought about it.",
        "verbosity": "summary",
        "tokenCount": 24,
    }
    called = payload(log, "agent.toolCalled")
    assert called == {
        "agentId": who,
        "toolName": "openwop.echo:echo",
        "callId": "call-actor-0-0",
        "inputs": {"x": 1},
        "argsHash": hashlib.sha256(rfc8785.dumps({"x": 1})).hexdigest(),
        "principal": called["principal"],
        "transport": "native",
    }
    assert payload(log, "agent.toolReturned") == {
        "agentId": who,
        "toolName": "openwop.echo:echo",
        "callId": "call-actor-0-0",
        "outcome": {"x": 1},
        "status": "ok",
        "durationMs": 1,
    }
    assert payload(log, "agent.handoff") == {
        "fromAgentId": who,
        "toAgentId": "host:next",
        "reason": "demo",
        "context": {"a": 1},
    }
    assert payload(log, "agent.decided") == {
        "agentId": who,
        "decision": {"next": "done"},
        "confidence": 1,
        "reasoning": "clear",
    }


def test_an_empty_script_emits_nothing_and_completes(acme: Wire) -> None:
    run_id = acme.create(acme.register(scripted([mock()])))
    acme.finished(run_id)

    log = acme.log(run_id)

    assert agent_events(log) == []
    assert only_event(log, "node.completed")["payload"]["outputs"] == {}


# Agents


def test_the_config_names_the_agent_before_the_pin(acme: Wire) -> None:
    script = {"agentId": "host:by-config", "mockReasoning": True}
    log = acted(acme, script, {"agentId": "host:by-pin"})

    assert payload(log, "agent.reasoned")["agentId"] == "host:by-config"


def test_a_mock_agent_without_a_name_gets_one_from_its_node(acme: Wire) -> None:
    log = acted(acme, {"mockReasoning": True, "mockHandoff": {"toAgentId": "host:next"}})

    assert payload(log, "agent.reasoned")["agentId"] == "host:mock-agent:actor"
    assert payload(log, "agent.handoff")["fromAgentId"] == "host:mock-agent:actor"


def test_a_hand_off_comes_from_the_pinned_agent(acme: Wire) -> None:
    script = {"agentId": "host:by-config", "mockHandoff": {"toAgentId": "host:next"}}
    log = acted(acme, script, {"agentId": "host:by-pin"})

    assert payload(log, "agent.handoff") == {
        "fromAgentId": "host:by-pin",
        "toAgentId": "host:next",
    }


# Tools


def test_a_return_shares_the_call_s_id_and_is_caused_by_it(acme: Wire) -> None:
    calls = [ECHO | {"arguments": {"n": number}} for number in range(3)]
    log = acted(acme, {"mockToolCalls": calls})

    called, returned = events_of(log, "agent.toolCalled"), events_of(log, "agent.toolReturned")
    assert log == [event for pair in zip(called, returned, strict=True) for event in pair]
    for call, back in zip(called, returned, strict=True):
        assert back["payload"]["callId"] == call["payload"]["callId"]
        assert back["causationId"] == call["eventId"]
        assert "causationId" not in back["payload"]


def test_call_ids_are_the_same_in_every_run_and_do_not_contain_the_run_id(acme: Wire) -> None:
    workflow_id = acme.register(scripted([mock(mockToolCalls=[ECHO, ECHO])]))

    ids = []
    for _ in range(2):
        run_id = acme.create(workflow_id)
        acme.finished(run_id)
        ids.append(
            [e["payload"]["callId"] for e in events_of(acme.log(run_id), "agent.toolCalled")]
        )

    assert ids == [["call-actor-0-0", "call-actor-0-1"]] * 2


def test_call_ids_are_unique_in_a_run_with_a_loop(acme: Wire) -> None:
    back = {"type": "expression", "expression": "!nodes.loop.done"}
    nodes = [node("loop", "core.loop", config={"times": 3}), mock(mockToolCalls=[ECHO, ECHO])]
    edges = [edge("loop", "actor", condition=back), edge("actor", "loop")]
    run_id = acme.create(acme.register(scripted(nodes, edges=edges)))
    acme.finished(run_id)

    ids = [event["payload"]["callId"] for event in events_of(acme.log(run_id), "agent.toolCalled")]

    assert len(ids) == 6
    assert len(set(ids)) == 6


def test_hashes_are_omitted_when_a_call_has_no_arguments(acme: Wire) -> None:
    log = acted(acme, {"mockToolCalls": [{"toolId": "openwop:clock", "result": 1}]})

    called = payload(log, "agent.toolCalled")
    assert "inputs" not in called
    assert called["argsHash"] == hashlib.sha256(b"{}").hexdigest()


def test_a_result_of_null_is_an_outcome(acme: Wire) -> None:
    log = acted(acme, {"mockToolCalls": [{"toolId": "openwop:clock", "result": None}]})

    returned = payload(log, "agent.toolReturned")
    assert returned["outcome"] is None
    assert returned["status"] == "ok"
    assert not {"error", "durationMs"} & returned.keys()


def test_an_error_is_logged_as_code_and_message(acme: Wire) -> None:
    error = {"error": "boom", "message": "It broke.", "details": {"part": 7}}
    log = acted(acme, {"mockToolCalls": [{"toolId": "openwop:clock", "error": error}]})

    returned = payload(log, "agent.toolReturned")
    assert returned["error"] == {"code": "boom", "message": "It broke.", "details": {"part": 7}}
    assert returned["status"] == "error"
    assert "outcome" not in returned


# Reasoning


@pytest.mark.parametrize("reasoning", [False, None])
def test_an_agent_without_reasoning_in_its_script_does_not_reason(
    acme: Wire, reasoning: Json
) -> None:
    config: JsonObject = {} if reasoning is None else {"mockReasoning": reasoning}

    assert acted(acme, config) == []


def test_an_agent_with_only_reasoning_in_its_script_emits_a_text(acme: Wire) -> None:
    assert reasoned(acme, True)["reasoning"]


def test_a_full_run_gets_the_trace_and_others_the_summary(acme: Wire) -> None:
    thoughts = {"summary": "short", "trace": "the long way round"}

    assert reasoned(acme, thoughts)["reasoning"] == "short"
    assert reasoned(acme, thoughts, reasoningVerbosity="full") == {
        "agentId": "host:mock-agent:actor",
        "reasoning": "the long way round",
        "verbosity": "full",
    }
    assert reasoned(acme, {"summary": "short"}, reasoningVerbosity="full")["reasoning"] == "short"


def test_verbosity_off_suppresses_reasoning_and_nothing_else(acme: Wire) -> None:
    script = EVERYTHING | {"mockReasoning": {"summary": "x", "streamChunks": ["a", "b"]}}
    log = acted(acme, script, configurable={"reasoningVerbosity": "off"})

    assert [event["type"] for event in log] == [
        "agent.toolCalled",
        "agent.toolReturned",
        "agent.handoff",
        "agent.decided",
    ]


@pytest.mark.parametrize("value", ["loud", "", 3, None, ["full"]])
def test_an_unknown_verbosity_falls_back_to_the_host_s(acme: Wire, value: Json) -> None:
    assert reasoned(acme, {"summary": "s"}, reasoningVerbosity=value)["verbosity"] == "summary"


def test_a_summary_is_cut_to_the_advertised_number_of_tokens(acme: Wire) -> None:
    limit = acme.document("/.well-known/openwop")["agents"]["reasoning"]["tokenLimit"]
    long = "é" * 4 * limit

    cut = reasoned(acme, {"summary": long})["reasoning"]

    assert len(cut.encode()) <= 4 * limit
    assert cut.endswith("…")
    assert long.startswith(cut.removesuffix("…"))
    assert reasoned(acme, {"summary": long}, reasoningVerbosity="full")["reasoning"] == long


def test_text_of_exactly_the_limit_is_not_cut(acme: Wire) -> None:
    limit = acme.document("/.well-known/openwop")["agents"]["reasoning"]["tokenLimit"]
    exact = "x" * 4 * limit

    assert reasoned(acme, {"summary": exact})["reasoning"] == exact


# Streaming


CHUNKS = ["Let me think. ", "", "Then, ", "yes."]


def test_deltas_come_first_one_per_chunk_and_the_closing_text_is_their_sum(acme: Wire) -> None:
    agent = {"agentId": agent_name()}
    log = acted(acme, {"mockReasoning": {"summary": "s", "streamChunks": CHUNKS}}, agent)

    *deltas, closing = log
    assert [event["type"] for event in deltas] == ["agent.reasoning.delta"] * 4
    assert [event["payload"] for event in deltas] == [
        {"agentId": agent["agentId"], "delta": text, "sequence": n, "verbosity": "summary"}
        for n, text in enumerate(CHUNKS)
    ]
    assert closing["type"] == "agent.reasoned"
    assert closing["payload"]["reasoning"] == "Let me think. Then, yes."
    assert closing["payload"]["agentId"] == agent["agentId"]


def test_each_block_counts_its_deltas_from_zero(acme: Wire) -> None:
    thoughts = {"summary": "s", "streamChunks": ["a", "b"]}
    nodes = [mock(name, mockReasoning=thoughts) for name in ("one", "two")]
    run_id = acme.create(acme.register(scripted(nodes)))
    acme.finished(run_id)

    deltas = events_of(acme.log(run_id), "agent.reasoning.delta")

    assert [event["payload"]["sequence"] for event in deltas] == [0, 1, 0, 1]


# Defaults of the host


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHost]:
    """Start a host with reasoning off by default and a low token limit."""
    settings = {"WOPR_REASONING_VERBOSITY": "off", "WOPR_REASONING_TOKEN_LIMIT": "2"}
    with served(tmp_path_factory.mktemp("quiet"), "--conformance", **settings) as running:
        yield running


def test_the_host_s_verbosity_applies_unless_the_run_sets_another(quiet: ServedHost) -> None:
    thoughts = {"mockReasoning": {"summary": "more than eight bytes"}}
    with Wire(quiet.url, ACME) as wire:
        advertised = wire.document("/.well-known/openwop")["agents"]["reasoning"]

        assert advertised == {"verbosity": "off", "tokenLimit": 2, "streaming": True}
        assert acted(wire, thoughts) == []
        assert acted(wire, thoughts, configurable={"reasoningVerbosity": "loud"}) == []
        told = reasoned(wire, thoughts["mockReasoning"], reasoningVerbosity="summary")
        assert told["reasoning"] == "more …"
