"""Opens a wait: the events that say what the run waits for, and the inbox row that shows it."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from wopr.engine.interrupts import GOVERNANCE, HELD_OUTPUTS, TIMEOUT, Interrupt
from wopr.engine.outcome import Suspended
from wopr.protocol.documents import JsonObject
from wopr.protocol.interrupts import InterruptPayload, is_vendor_kind
from wopr.protocol.runs import RunError
from wopr.runtime.appender import Burst
from wopr.runtime.conversations import close_conversation, record_turn

# The older event writes this action under its older name.
_LEGACY_ACTIONS = {"edit-accept": "edit"}


def suspend(burst: Burst, node_id: str, wanted: Suspended) -> RunError | None:
    """Append the events of a wait, in the protocol's order; the wait is durable with them.

    A wait that cannot be is on the log as such, and the answer says why the node fails.
    """
    request = _request(wanted)
    fault = _fault(burst, wanted, request)
    if fault:
        error = RunError(code="validation_error", message=fault, retryable=False)
        payload = {"nodeId": node_id, "error": msgspec.to_builtins(error)}
        burst.add("node.suspend-failed", payload, node_id=node_id)
        return error
    interrupt_id = f"int-{wanted.key}"
    about: JsonObject = {
        "nodeId": node_id,
        "interruptId": interrupt_id,
        "kind": wanted.kind,
        "key": wanted.key,
        **({"reason": wanted.reason} if wanted.reason else {}),
        **wanted.extras,
    }
    suspended = burst.add("node.suspended", about, node_id=node_id)
    burst.add("interrupt.requested", request, node_id=node_id, causation_id=suspended)
    _announce(burst, node_id, interrupt_id, wanted, suspended)
    return None


def _request(wanted: Suspended) -> JsonObject:
    request: JsonObject = {"kind": wanted.kind, "key": wanted.key, "data": wanted.data}
    if wanted.resume_schema is not None:
        request["resumeSchema"] = wanted.resume_schema
    if wanted.timeout_ms:
        request["timeoutMs"] = wanted.timeout_ms
    return request


def _fault(burst: Burst, wanted: Suspended, request: JsonObject) -> str:
    """What keeps a request from being one that can be shown, answered and told apart."""
    if wanted.key in burst.state.answers:
        return f"the wait {wanted.key!r} was answered already; its node must not ask again"
    # A vendor kind that the operator wants in the events has the form of a custom wait.
    checked = request | {"kind": "custom"} if is_vendor_kind(wanted.kind) else request
    try:
        msgspec.convert(checked, InterruptPayload)
    except msgspec.ValidationError as fault:
        return f"the wait {wanted.key[:256]!r} cannot be: {fault}"
    return ""


def _announce(
    burst: Burst, node_id: str, interrupt_id: str, wanted: Suspended, suspended: str
) -> None:
    """The events of older readers, and the opening of a conversation."""
    data = wanted.data
    about: JsonObject = {"nodeId": node_id, "interruptId": interrupt_id}
    if wanted.kind == "approval" and GOVERNANCE not in data:
        shown = ("artifactId", "artifactType", "title", "approversList", "requiredApprovals")
        about |= {name: data[name] for name in shown if name in data}
        about["actions"] = [_LEGACY_ACTIONS.get(action, action) for action in data["actions"]]
        burst.add("approval.requested", about, node_id=node_id, causation_id=suspended)
    elif wanted.kind == "clarification":
        about["questions"] = data["questions"]
        burst.add("clarification.requested", about, node_id=node_id, causation_id=suspended)
    elif wanted.opening is not None:
        burst.add("conversation.opened", wanted.opening, node_id=node_id, causation_id=suspended)
        record_turn(burst, node_id, wanted.opening["initialTurn"])


def low_confidence(
    agent_id: str, threshold: float, observed: float, decision: object, key: str
) -> Suspended:
    """The wait for a person to ratify a decision that its agent is not sure of."""
    about: JsonObject = {"agentId": agent_id, "threshold": threshold, "observed": observed}
    with_decision = about | {"decision": decision}
    return Suspended(
        kind="low-confidence",
        key=key,
        data=with_decision,
        reason="low-confidence",
        extras=with_decision,
    )


def hold(burst: Burst, node_id: str, wanted: Suspended, outputs: JsonObject) -> RunError | None:
    """Suspend a node that is done but for a decision that waits to be ratified."""
    return suspend(burst, node_id, replace(wanted, extras=wanted.extras | {HELD_OUTPUTS: outputs}))


def expired(burst: Burst, node_id: str) -> RunError:
    """Append the end of a wait that was not answered, and say how the node failed."""
    interrupt = burst.state.nodes[node_id].interrupt
    if interrupt is None:
        return RunError(code="internal_error", message=f"{node_id} does not wait")
    if interrupt.kind == "conversation.exchange":
        close_conversation(burst, node_id, interrupt, "the conversation timed out", None)
    burst.add(
        "interrupt.resolved",
        {
            **({"action": TIMEOUT} if interrupt.kind == "approval" else {}),
            "nodeId": node_id,
            "interruptId": interrupt.interrupt_id,
            "kind": interrupt.event_kind,
            "resolvedAt": burst.iso,
            "resolvedBy": "system:timeout",
            "outcome": "rejected",
            "reason": TIMEOUT,
        },
        node_id=node_id,
        causation_id=interrupt.suspended_event,
    )
    return timed_out(burst, node_id, interrupt)


def timed_out(burst: Burst, node_id: str, interrupt: Interrupt) -> RunError:
    """Append what follows the end of a wait that was not answered, and say how the node failed."""
    if interrupt.kind == "approval" and not interrupt.is_reported:
        burst.add("approval.received", {"nodeId": node_id, "action": TIMEOUT}, node_id=node_id)
    message = f"{node_id} waited longer than {interrupt.timeout_ms} ms for an answer"
    return RunError(code="interrupt_timeout", message=message, retryable=False)
