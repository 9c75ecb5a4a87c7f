"""Suspend a node: the events that open an interrupt, and the turns of a conversation."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from wopr.engine.interrupts import GOVERNANCE, HELD_OUTPUTS, TIMEOUT, Interrupt
from wopr.engine.outcome import Suspended
from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.interrupts import InterruptPayload, is_vendor_kind
from wopr.protocol.runs import RunError
from wopr.runs.append import EventBatch

CHANNEL = "conversation"


def record_turn(batch: EventBatch, node_id: str, turn: JsonObject) -> None:
    """Write a turn to the workflow's `conversation` channel, if it has one.

    The message id makes a second write of the same turn harmless.
    """
    declared = batch.state.graph.channels.get(CHANNEL)
    if declared is None or declared.reducer != "message":
        return
    payload: JsonObject = {
        "channel": CHANNEL,
        "value": turn,
        "reducer": "message",
        "writtenAt": batch.iso,
        "nodeId": node_id,
        "schemaVersion": declared.schema_version,
    }
    batch.add("channel.written", payload, node_id=node_id)


def _turn(
    batch: EventBatch, interrupt: Interrupt, role: str, speaker: str, content: Json
) -> JsonObject:
    index = interrupt.turn_index + 1
    conversation_id: str = interrupt.data["conversationId"]
    return {
        "messageId": f"{conversation_id}:{index}:{role}",
        "from": speaker,
        "content": content,
        "ts": batch.now,
        "role": role,
        "turnIndex": index,
    }


def exchange(
    batch: EventBatch, node_id: str, interrupt: Interrupt, content: Json, speaker: str
) -> None:
    """Append a person's turn with its author. The conversation stays open."""
    turn = _turn(batch, interrupt, "user", "user", content) | {"speakerId": speaker}
    payload: JsonObject = {
        "conversationId": interrupt.data["conversationId"],
        "turnIndex": turn["turnIndex"],
        "turn": turn,
    }
    batch.add("conversation.exchanged", payload, node_id=node_id, causation_id=interrupt.turn_event)
    record_turn(batch, node_id, turn)


def close_conversation(
    batch: EventBatch, node_id: str, interrupt: Interrupt, content: Json, outcome: Json
) -> None:
    """Append the closing turn. No turn may follow in this conversation."""
    turn = _turn(batch, interrupt, "system", "host:conversation", content)
    payload: JsonObject = {
        "conversationId": interrupt.data["conversationId"],
        "turnIndex": turn["turnIndex"],
        "finalTurn": turn,
        "outcome": outcome,
    }
    batch.add("conversation.closed", payload, node_id=node_id, causation_id=interrupt.turn_event)
    record_turn(batch, node_id, turn)


# `approval.requested` has an older name for this action.
_LEGACY_ACTIONS = {"edit-accept": "edit"}


def suspend(batch: EventBatch, node_id: str, suspension: Suspended) -> RunError | None:
    """Append the events of a suspension, in the order of the protocol.

    Returns the error of the node when its request is invalid. The log then has the refusal.
    """
    request = _request(suspension)
    fault = _fault(batch, suspension, request)
    if fault:
        error = RunError(code="validation_error", message=fault, retryable=False)
        failed: JsonObject = {"nodeId": node_id, "error": msgspec.to_builtins(error)}
        batch.add("node.suspend-failed", failed, node_id=node_id)
        return error
    interrupt_id = f"int-{suspension.key}"
    payload: JsonObject = {
        "nodeId": node_id,
        "interruptId": interrupt_id,
        "kind": suspension.kind,
        "key": suspension.key,
        **({"reason": suspension.reason} if suspension.reason else {}),
        **suspension.extras,
    }
    suspended = batch.add("node.suspended", payload, node_id=node_id)
    batch.add("interrupt.requested", request, node_id=node_id, causation_id=suspended)
    _announce(batch, node_id, interrupt_id, suspension, suspended)
    return None


def _request(suspension: Suspended) -> JsonObject:
    request: JsonObject = {"kind": suspension.kind, "key": suspension.key, "data": suspension.data}
    if suspension.resume_schema is not None:
        request["resumeSchema"] = suspension.resume_schema
    if suspension.timeout_ms:
        request["timeoutMs"] = suspension.timeout_ms
    return request


def _fault(batch: EventBatch, suspension: Suspended, request: JsonObject) -> str:
    """Return why a request cannot be shown or resolved; empty when it can."""
    if suspension.key in batch.state.answers:
        return f"the interrupt {suspension.key!r} was resolved already: use another key"
    # A vendor kind has the form of a custom interrupt.
    checked = request | {"kind": "custom"} if is_vendor_kind(suspension.kind) else request
    try:
        msgspec.convert(checked, InterruptPayload)
    except msgspec.ValidationError as fault:
        return f"the interrupt {suspension.key[:256]!r} is invalid: {fault}"
    return ""


def _announce(
    batch: EventBatch, node_id: str, interrupt_id: str, suspension: Suspended, suspended: str
) -> None:
    """Append the events that older readers expect, and the opening of a conversation."""
    data = suspension.data
    payload: JsonObject = {"nodeId": node_id, "interruptId": interrupt_id}
    if suspension.kind == "approval" and GOVERNANCE not in data:
        members = ("artifactId", "artifactType", "title", "approversList", "requiredApprovals")
        payload |= {name: data[name] for name in members if name in data}
        payload["actions"] = [_LEGACY_ACTIONS.get(action, action) for action in data["actions"]]
        batch.add("approval.requested", payload, node_id=node_id, causation_id=suspended)
    elif suspension.kind == "clarification":
        payload["questions"] = data["questions"]
        batch.add("clarification.requested", payload, node_id=node_id, causation_id=suspended)
    elif suspension.opening is not None:
        batch.add(
            "conversation.opened", suspension.opening, node_id=node_id, causation_id=suspended
        )
        record_turn(batch, node_id, suspension.opening["initialTurn"])


def low_confidence_interrupt(
    agent_id: str, threshold: float, observed: float, decision: object, key: str
) -> Suspended:
    """Return the suspension in which a person ratifies a decision with low confidence."""
    data: JsonObject = {
        "agentId": agent_id,
        "threshold": threshold,
        "observed": observed,
        "decision": decision,
    }
    return Suspended(
        kind="low-confidence",
        key=key,
        data=data,
        reason="low-confidence",
        extras=data,
    )


def suspend_with_outputs(
    batch: EventBatch, node_id: str, suspension: Suspended, outputs: JsonObject
) -> RunError | None:
    """Suspend a node. Its outputs are held until a person has ratified its decision."""
    return suspend(
        batch, node_id, replace(suspension, extras=suspension.extras | {HELD_OUTPUTS: outputs})
    )


def expire_interrupt(batch: EventBatch, node_id: str) -> RunError:
    """Append the timeout of an interrupt, and return the error of its node."""
    interrupt = batch.state.nodes[node_id].interrupt
    if interrupt is None:
        return RunError(
            code="internal_error", message=f"Node {node_id!r} does not wait for an interrupt."
        )
    if interrupt.kind == "conversation.exchange":
        close_conversation(batch, node_id, interrupt, "the conversation timed out", None)
    batch.add(
        "interrupt.resolved",
        {
            **({"action": TIMEOUT} if interrupt.kind == "approval" else {}),
            "nodeId": node_id,
            "interruptId": interrupt.interrupt_id,
            "kind": interrupt.event_kind,
            "resolvedAt": batch.iso,
            "resolvedBy": "system:timeout",
            "outcome": "rejected",
            "reason": TIMEOUT,
        },
        node_id=node_id,
        causation_id=interrupt.suspended_event,
    )
    return report_timeout(batch, node_id, interrupt)


def report_timeout(batch: EventBatch, node_id: str, interrupt: Interrupt) -> RunError:
    """Append the events that follow the timeout of an interrupt, and return its node's error."""
    if interrupt.kind == "approval" and not interrupt.is_reported:
        batch.add("approval.received", {"nodeId": node_id, "action": TIMEOUT}, node_id=node_id)
    message = f"{node_id} waited longer than {interrupt.timeout_ms} ms for a response"
    return RunError(code="interrupt_timeout", message=message, retryable=False)
