"""The event envelope and the 107 event types. The payloads are in the modules of this package."""

from __future__ import annotations

import re
from typing import Annotated, Final

import msgspec

from wopr.protocol.documents import UNSET, Document, Id, Json, Unset

EVENT_LOG_SCHEMA_VERSION: Final = 2
ENGINE_VERSION: Final = 1

EVENT_TYPES: Final[frozenset[str]] = frozenset(
    """
    run.started run.completed run.failed run.cancelled run.resuming run.paused run.resumed
    run.restored-from-snapshot run.dead_lettered
    node.started node.completed node.failed node.suspended node.suspend-failed node.resumed
    node.retried node.skipped node.cancelled node.dispatched
    approval.requested approval.received approval.granted approval.rejected approval.overridden
    clarification.requested clarification.resolved interrupt.requested interrupt.resolved
    channel.written artifact.created output.chunk variable.changed log.appended version.pinned
    workflow.restored workflow.loopback-limit workflow.stalled cap.breached
    lease.acquired lease.renewed lease.lost lease.handed-off replay.diverged
    replay.divergedAtRefusal
    agent.reasoned agent.reasoning.delta agent.toolCalled agent.toolReturned agent.handoff
    agent.decided agent.verified agent.promptResolved agent.invocation.started
    agent.invocation.completed agent.memory.consolidated provider.usage prompt.composed
    model.capability.substituted model.capability.insufficient
    envelope.retry.attempted envelope.retry.exhausted envelope.refusal envelope.truncated
    envelope.nlToFormat.engaged envelope.recovery.applied
    runOrchestrator.decided core.workflowChain.event core.workflowChain.confidence-escalated
    conversation.opened conversation.exchanged conversation.closed
    memory.compacted memory.written commitment.fired workspace.updated
    authorization.decided connector.authorized connector.auth_expired
    eval.started eval.scored eval.completed
    deployment.promoted deployment.rolled-back deployment.canary.adjusted deployment.state.changed
    roster.run.initiated tool.session.opened tool.session.closed egress.decided
    trigger.subscription.state.changed trigger.delivery.attempted
    budget.reserved budget.consumed budget.threshold.crossed budget.exhausted
    proposal.created proposal.activated goal.evaluated goal.closed import.applied
    voice.speech_start voice.transcript voice.endpoint_candidate voice.turn_commit
    voice.synthesis_chunk voice.barge_in voice.cancelled
    """.split()
)

RUN_TERMINAL_TYPES: Final = frozenset({"run.completed", "run.failed", "run.cancelled"})

_VENDOR_TYPE = re.compile(
    r"^(?!(?:openwop|core|community|vendor|private|local)\.)[a-z][a-zA-Z0-9_-]*(\.[a-zA-Z0-9_-]+)+$"
)
# First segments that are reserved for types of the protocol.
_RESERVED_SEGMENTS: Final = frozenset(
    {"run", "node", "approval", "clarification", "cap", "channel", "replay"}
)


def is_known_type(event_type: str) -> bool:
    """Return whether this is an event type of the protocol or of a vendor."""
    if event_type in EVENT_TYPES:
        return True
    return (
        event_type.split(".", 1)[0] not in _RESERVED_SEGMENTS
        and _VENDOR_TYPE.match(event_type) is not None
    )


class RunEvent(Document, frozen=True, kw_only=True):
    """One line of a run's log (RunEventDoc)."""

    event_id: Id
    run_id: Id
    type: str
    payload: Json
    timestamp: str
    sequence: Annotated[int, msgspec.Meta(ge=0)]
    node_id: Id | Unset = UNSET
    schema_version: int | Unset = UNSET
    engine_version: str | Unset = UNSET
    causation_id: Id | Unset = UNSET
    # An extension of this host: the version of the code that executed the node.
    code_version: str | Unset = UNSET
