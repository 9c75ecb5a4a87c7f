from __future__ import annotations

import pytest

from wopr.protocol.emitters import (
    CAPABILITIES,
    EMITTER_PREFIXES,
    EMITTERS,
    capability_value,
    is_advertised,
    may_emit,
    required_capability,
)
from wopr.protocol.events import EVENT_TYPES

AGENT_EVENTS = sorted(name for name in EVENT_TYPES if name.startswith("agent."))
HOST_FAMILIES = "run node approval clarification interrupt cap lease replay workflow".split()
HOST_EVENTS = sorted(
    name for name in EVENT_TYPES - {"node.dispatched"} if name.split(".")[0] in HOST_FAMILIES
)
UNAUTHORISED = """
    core.identity core.noop core.flow.noop core.openwop.flow.noop core.delay core.ai.callPrompt
    core.channelWrite core.unheardOf acme.step local.step
    """.split()


def emitters_of(event_type: str) -> set[str]:
    tables = EMITTERS | EMITTER_PREFIXES
    return {type_id for type_id, events in tables.items() if event_type in events}


@pytest.mark.parametrize(
    ("event_type", "emitters"),
    [
        ("agent.reasoned", {"core.orchestrator.supervisor", "core.conformance.mock-agent"}),
        ("agent.reasoning.delta", {"core.orchestrator.supervisor", "core.conformance.mock-agent"}),
        (
            "agent.toolCalled",
            {"core.mcp.toolCall", "openwop.mcp.", "core.conformance.mock-agent"},
        ),
        (
            "agent.toolReturned",
            {"core.mcp.toolCall", "openwop.mcp.", "core.conformance.mock-agent"},
        ),
        ("agent.decided", {"core.orchestrator.supervisor", "core.conformance.mock-agent"}),
    ],
)
def test_usage_events_come_from_models_and_from_the_types_the_protocol_names(
    event_type: str, emitters: set[str]
) -> None:
    assert emitters_of(event_type) == emitters | {"openwop.llm.", "core.llm.", "vendor."}


@pytest.mark.parametrize(
    ("event_type", "emitters"),
    [
        ("agent.handoff", {"core.dispatch", "core.conformance.mock-agent", "vendor."}),
        ("runOrchestrator.decided", {"core.orchestrator.supervisor"}),
        ("core.workflowChain.event", {"core.dispatch", "core.subWorkflow"}),
        ("core.workflowChain.confidence-escalated", {"core.dispatch"}),
        ("conversation.opened", {"core.conversationGate", "core.dispatch"}),
        ("node.dispatched", {"core.dispatch", "core.subWorkflow"}),
    ],
)
def test_orchestration_events_have_exactly_their_emitters(
    event_type: str, emitters: set[str]
) -> None:
    assert emitters_of(event_type) == emitters


@pytest.mark.parametrize("type_id", UNAUTHORISED)
@pytest.mark.parametrize("event_type", AGENT_EVENTS)
def test_pure_types_never_emit_agent_events(type_id: str, event_type: str) -> None:
    assert not may_emit(type_id, event_type)


@pytest.mark.parametrize("event_type", AGENT_EVENTS)
def test_vendor_types_can_emit_every_agent_event(event_type: str) -> None:
    assert may_emit("vendor.acme.researcher", event_type)


@pytest.mark.parametrize("event_type", HOST_EVENTS)
def test_events_of_the_run_itself_belong_to_the_host(event_type: str) -> None:
    assert emitters_of(event_type) == set()
    assert not may_emit("acme.step", event_type)


@pytest.mark.parametrize(
    ("type_id", "event_type"),
    [
        ("core.channelWrite", "channel.written"),
        ("core.ai.callPrompt", "output.chunk"),
        ("core.ai.callPrompt", "provider.usage"),
        ("core.subWorkflow", "node.dispatched"),
        ("core.llm.chat", "agent.reasoned"),
        ("openwop.mcp.call", "agent.toolCalled"),
        ("acme.step", "artifact.created"),
        ("acme.step", "acme.shipment.booked"),
        ("vendor.acme.step", "acme.shipment.booked"),
    ],
)
def test_a_granted_event_can_be_emitted(type_id: str, event_type: str) -> None:
    assert may_emit(type_id, event_type)


@pytest.mark.parametrize(
    ("type_id", "event_type"),
    [
        ("core.delay", "channel.written"),
        ("core.noop", "acme.shipment.booked"),
        ("vendor.acme.step", "runOrchestrator.decided"),
        ("vendor.acme.step", "run.invented"),
        ("acme.step", "core.invented"),
        ("core.llmish", "agent.reasoned"),
    ],
)
def test_an_event_that_is_not_granted_is_refused(type_id: str, event_type: str) -> None:
    assert not may_emit(type_id, event_type)


def test_the_tables_name_protocol_events_only() -> None:
    granted = frozenset[str]().union(*EMITTERS.values(), *EMITTER_PREFIXES.values())

    assert granted <= EVENT_TYPES
    assert all(any(name.startswith(key) for name in EVENT_TYPES) for key in CAPABILITIES)


@pytest.mark.parametrize(
    ("event_type", "path"),
    [
        ("agent.reasoned", "agents.supported"),
        ("agent.reasoning.delta", "agents.reasoning.streaming"),
        ("agent.invocation.started", "agents.liveRuntime.supported"),
        ("runOrchestrator.decided", "agents.orchestrator"),
        ("core.workflowChain.event", "multiAgent.executionModel.supported"),
        ("conversation.opened", "conversationPrimitive"),
        ("memory.written", "memory.attribution.emitsWriteEvents"),
        ("provider.usage", "providerUsage.supported"),
        ("replay.diverged", "replay.supported"),
        ("run.started", None),
        ("node.dispatched", None),
        ("channel.written", None),
        ("acme.shipment.booked", None),
    ],
)
def test_each_event_family_names_the_capability_it_needs(event_type: str, path: str | None) -> None:
    assert required_capability(event_type) == path


@pytest.mark.parametrize(
    ("document", "event_type", "expected"),
    [
        ({"agents": {"supported": True}}, "agent.decided", True),
        ({"agents": {"supported": True, "decisionEvents": False}}, "agent.decided", False),
        ({"agents": {"supported": False}}, "agent.decided", False),
        ({}, "agent.decided", False),
        ({"agents": {"reasoning": {"streaming": True}}}, "agent.reasoning.delta", False),
        ({"agents": {"supported": True}}, "agent.reasoning.delta", False),
        (
            {"agents": {"supported": True, "reasoning": {"streaming": True}}},
            "agent.reasoning.delta",
            True,
        ),
        ({"conversationPrimitive": True}, "conversation.opened", True),
        ({}, "run.started", True),
    ],
)
def test_an_event_is_emitted_only_where_discovery_allows_it(
    document: dict[str, object], event_type: str, expected: bool
) -> None:
    assert is_advertised(event_type, document) is expected


def test_a_path_through_a_value_that_is_not_an_object_finds_nothing() -> None:
    assert capability_value({"agents": True}, "agents.reasoning.streaming") is None
