"""The events that each node type may emit, and the capability that each event needs.

The permission depends on the type id. All other events are refused. Events of the run's lifecycle
(`run.*`, `node.*`, interrupts, caps, leases, replays) are appended by the host, without this table.
"""

from __future__ import annotations

from typing import Final

from wopr.protocol.documents import Json, JsonObject, is_object
from wopr.protocol.events import EVENT_TYPES, is_known_type


def _types(words: str) -> frozenset[str]:
    return frozenset(words.split())


_REASONING: Final = _types("agent.reasoned agent.reasoning.delta")
_TOOLS: Final = _types("agent.toolCalled agent.toolReturned")
_MODEL: Final = _types(
    """
    output.chunk provider.usage prompt.composed
    model.capability.substituted model.capability.insufficient
    envelope.retry.attempted envelope.retry.exhausted envelope.refusal envelope.truncated
    envelope.nlToFormat.engaged envelope.recovery.applied
    """
)
_INVOCATION: Final = _types(
    "agent.promptResolved agent.invocation.started agent.invocation.completed agent.verified"
)
_CONVERSATION: Final = _types("conversation.opened conversation.exchanged conversation.closed")
_CHAIN: Final = _types("core.workflowChain.event core.workflowChain.confidence-escalated")
_LLM: Final = (
    _REASONING
    | _TOOLS
    | _MODEL
    | _INVOCATION
    | _types("agent.decided memory.written channel.written log.appended artifact.created")
)
# The events that any node type without a prefix of the protocol may emit.
_ORDINARY: Final = _types(
    """
    log.appended artifact.created channel.written variable.changed version.pinned output.chunk
    provider.usage memory.written
    """
)
_VENDOR: Final = (
    _ORDINARY
    | _LLM
    | _types("agent.handoff agent.memory.consolidated tool.session.opened tool.session.closed")
)

EMITTERS: Final[dict[str, frozenset[str]]] = {
    # In conformance fixtures `core.identity` writes messages and memories.
    "core.identity": _types("channel.written memory.written"),
    "core.noop": frozenset(),
    "core.flow.noop": frozenset(),
    "core.openwop.flow.noop": frozenset(),
    "core.delay": frozenset(),
    "core.fail": frozenset(),
    "core.channelWrite": _types("channel.written"),
    "core.setVariable": _types("variable.changed"),
    "core.subWorkflow": _types("node.dispatched variable.changed core.workflowChain.event"),
    "core.dispatch": (
        _CHAIN | _CONVERSATION | _types("node.dispatched variable.changed agent.handoff")
    ),
    "core.orchestrator.supervisor": (
        _REASONING
        | _MODEL
        | _INVOCATION
        | _types("runOrchestrator.decided agent.decided memory.written")
    ),
    "core.conversationGate": _CONVERSATION | _types("channel.written"),
    "core.conformance.mock-agent": _REASONING | _TOOLS | _types("agent.handoff agent.decided"),
    "core.mcp.toolCall": _TOOLS,
}
# Prefixes of type ids, with a dot at the end.
EMITTER_PREFIXES: Final[dict[str, frozenset[str]]] = {
    "openwop.llm.": _LLM,
    "core.llm.": _LLM,
    "core.ai.": _MODEL | _types("log.appended"),
    "openwop.mcp.": _TOOLS,
    "vendor.": _VENDOR,
}
# Node types with these prefixes may emit only the events listed above.
PROTOCOL_PREFIXES: Final = ("core.", "openwop.", "conformance.")


def emittable_events(type_id: str) -> frozenset[str]:
    """Return the protocol events that a node type may emit."""
    named = EMITTERS.get(type_id)
    if named is not None:
        return named
    for prefix, events in EMITTER_PREFIXES.items():
        if type_id.startswith(prefix):
            return events
    return frozenset() if type_id.startswith(PROTOCOL_PREFIXES) else _ORDINARY


def may_emit(type_id: str, event_type: str) -> bool:
    """Return whether a node of this type may emit this event.

    Every node type without a prefix of the protocol may emit vendor events. Agent events may be
    emitted by the types that the protocol names and by `vendor.<host>.*`.
    """
    if event_type in EVENT_TYPES:
        return event_type in emittable_events(type_id)
    return not type_id.startswith(PROTOCOL_PREFIXES) and is_known_type(event_type)


# The capability that an event type needs, as a path in the discovery document. A key with a dot at
# its end is a family of event types. The longest match applies. Other event types need no
# capability.
CAPABILITIES: Final[dict[str, str]] = {
    "agent.": "agents.supported",
    "agent.reasoning.delta": "agents.reasoning.streaming",
    "agent.promptResolved": "prompts.supported",
    "agent.invocation.": "agents.liveRuntime.supported",
    "agent.memory.consolidated": "agents.memoryConsolidation.supported",
    "agent.verified": "multiAgent.executionModel.verifier.supported",
    "runOrchestrator.decided": "agents.orchestrator",
    "core.workflowChain.": "multiAgent.executionModel.supported",
    "conversation.": "conversationPrimitive",
    "memory.written": "memory.attribution.emitsWriteEvents",
    "memory.compacted": "memory.compaction.supported",
    "commitment.fired": "agents.commitments.supported",
    "workspace.updated": "workspace.supported",
    "provider.usage": "providerUsage.supported",
    "prompt.composed": "prompts.supported",
    "model.capability.": "modelCapabilities.supported",
    "envelope.": "envelopes.reliability.supported",
    "run.paused": "runs.pauseResume.supported",
    "run.resumed": "runs.pauseResume.supported",
    "run.dead_lettered": "deadLetter.supported",
    "replay.diverged": "replay.supported",
    "replay.divergedAtRefusal": (
        "multiAgent.executionModel.replayDeterminism.refusalDivergenceEmission"
    ),
    "authorization.decided": "authorization.supported",
    "connector.": "oauth.supported",
    "egress.decided": "httpClient.egressPolicy.supported",
    "tool.session.": "toolCatalog.sessionLifecycle",
    "eval.": "agents.evalSuite.supported",
    "deployment.": "agents.deployment.supported",
    "roster.": "agents.roster.supported",
    "trigger.": "triggerBridge.supported",
    "budget.": "budget.supported",
    "proposal.": "agents.proposals",
    "goal.": "agents.goals",
    "import.applied": "portability.import",
    "voice.": "aiProviders.realtimeVoice",
}
# Four families of agent events can be switched off with `false`. Absence does not switch them off.
SWITCHES: Final[dict[str, str]] = {
    "agent.reasoned": "agents.reasoningEvents",
    "agent.reasoning.delta": "agents.reasoningEvents",
    "agent.toolCalled": "agents.toolEvents",
    "agent.toolReturned": "agents.toolEvents",
    "agent.handoff": "agents.handoffEvents",
    "agent.decided": "agents.decisionEvents",
}


def _covers(key: str, event_type: str) -> bool:
    return event_type.startswith(key) if key.endswith(".") else event_type == key


def _required_capability(event_type: str) -> str | None:
    keys = [key for key in CAPABILITIES if _covers(key, event_type)]
    return CAPABILITIES[max(keys, key=len)] if keys else None


_REQUIRED: Final = {event_type: _required_capability(event_type) for event_type in EVENT_TYPES}


def required_capability(event_type: str) -> str | None:
    """Return the capability that an event type needs, or None.

    It is a path in the discovery document.
    """
    return _REQUIRED.get(event_type)


def is_advertised(event_type: str, document: JsonObject) -> bool:
    """Return whether a host with this discovery document may emit an event of this type."""
    if (
        event_type.startswith("agent.")
        and capability_value(document, "agents.supported") is not True
    ):
        return False
    switch = SWITCHES.get(event_type)
    if switch is not None and capability_value(document, switch) is False:
        return False
    path = required_capability(event_type)
    return path is None or capability_value(document, path) not in (None, False)


def capability_value(document: JsonObject, path: str) -> Json:
    """Return the value at a dotted path of the discovery document, or None."""
    value: Json = document
    for step in path.split("."):
        if not is_object(value):
            return None
        value = value.get(step)
    return value
