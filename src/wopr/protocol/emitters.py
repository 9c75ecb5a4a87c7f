"""Which node types may emit which events, and which capability an event needs.

An emitter is a property of the type id. What is not granted here is refused: the events of a
run's own life (`run.*`, `node.*`, waits, caps, leases, replays) belong to the host, which appends
them itself and never asks this table.
"""

from __future__ import annotations

from typing import Final, cast

from wopr.protocol.documents import Json, JsonObject
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
# What any node type outside the protocol's own prefixes may put out.
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
    # Types that pass values on leave no trace of an agent; the conformance fixtures make
    # `core.identity` write messages and memories.
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
# Families of type ids; the prefix ends with its dot.
EMITTER_PREFIXES: Final[dict[str, frozenset[str]]] = {
    "openwop.llm.": _LLM,
    "core.llm.": _LLM,
    "core.ai.": _MODEL | _types("log.appended"),
    "openwop.mcp.": _TOOLS,
    "vendor.": _VENDOR,
}
# Nodes under these prefixes emit what is listed above and nothing else.
PROTOCOL_PREFIXES: Final = ("core.", "openwop.", "conformance.")


def granted(type_id: str) -> frozenset[str]:
    """The protocol events that a node type may emit."""
    named = EMITTERS.get(type_id)
    if named is not None:
        return named
    for prefix, events in EMITTER_PREFIXES.items():
        if type_id.startswith(prefix):
            return events
    return frozenset() if type_id.startswith(PROTOCOL_PREFIXES) else _ORDINARY


def may_emit(type_id: str, event_type: str) -> bool:
    """Tell whether a node of this type may emit this event.

    Vendor event types are open to every node type but the protocol's own. Agent events are open
    to the types that the protocol names and to `vendor.<host>.*`.
    """
    if event_type in EVENT_TYPES:
        return event_type in granted(type_id)
    return not type_id.startswith(PROTOCOL_PREFIXES) and is_known_type(event_type)


# Event type, or family ending with its dot → the path in the discovery document that must be
# true. The longest match wins; what has no entry needs no capability.
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
# Four families of agent events can be switched off one by one: `false` silences, absence does not.
SILENCERS: Final[dict[str, str]] = {
    "agent.reasoned": "agents.reasoningEvents",
    "agent.reasoning.delta": "agents.reasoningEvents",
    "agent.toolCalled": "agents.toolEvents",
    "agent.toolReturned": "agents.toolEvents",
    "agent.handoff": "agents.handoffEvents",
    "agent.decided": "agents.decisionEvents",
}


def _covers(key: str, event_type: str) -> bool:
    return event_type.startswith(key) if key.endswith(".") else event_type == key


def _gate(event_type: str) -> str | None:
    keys = [key for key in CAPABILITIES if _covers(key, event_type)]
    return CAPABILITIES[max(keys, key=len)] if keys else None


_GATES: Final = {event_type: _gate(event_type) for event_type in EVENT_TYPES}


def required_capability(event_type: str) -> str | None:
    """The path in the discovery document that gates an event, or `None` when nothing does."""
    return _GATES.get(event_type)


def is_advertised(event_type: str, document: JsonObject) -> bool:
    """Tell whether a discovery document lets its host emit an event of this type."""
    if event_type.startswith("agent.") and look_up(document, "agents.supported") is not True:
        return False
    silencer = SILENCERS.get(event_type)
    if silencer is not None and look_up(document, silencer) is False:
        return False
    path = required_capability(event_type)
    return path is None or look_up(document, path) not in (None, False)


def look_up(document: JsonObject, path: str) -> Json:
    """The value at a dotted path of the discovery document, or `None`."""
    value: Json = document
    for step in path.split("."):
        if not isinstance(value, dict):
            return None
        value = cast("JsonObject", value).get(step)
    return value
