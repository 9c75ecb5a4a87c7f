"""Resolve an interrupt: check the resume value, append it with its author, and resume the node."""

from __future__ import annotations

from wopr.engine.interrupts import Interrupt, Resolution
from wopr.engine.resume_values import (
    ApprovalValue,
    ClarificationValue,
    DeliveredValue,
    GovernanceValue,
    InvalidResumeValue,
    Ratification,
    TurnValue,
    is_exchange,
    read_ratification,
    read_resume_value,
)
from wopr.engine.state import NodeState, RunState
from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.errors import (
    Conflict,
    Forbidden,
    Gone,
    NotFound,
    Refused,
    Unprocessable,
    WoprError,
)
from wopr.protocol.runs import RunError
from wopr.runs.append import EventBatch
from wopr.runs.execution.node_events import complete_node, fail_node
from wopr.runs.interrupts.approvals import (
    Resolver,
    add_recorded_decision,
    append_resolution,
    approve,
    govern,
    resume_node,
)
from wopr.runs.interrupts.inbox import may_use_token
from wopr.runs.interrupts.suspend import close_conversation, exchange, report_timeout

# The author of resume values that a conformance workflow contains.
SCRIPT_RESOLVER = Resolver(name="system:script")


def require_pending(
    state: RunState,
    node_id: str,
    interrupt_id: str | None = None,
    *,
    value: Json = None,
    by_token: bool = False,
) -> Interrupt:
    """Return the interrupt that a resume value is for. Raises when the node is not suspended.

    Without an interrupt id, it is the pending interrupt of the node.
    """
    node = state.nodes.get(node_id)
    if node is None:
        raise NotFound(f"The run has no node {node_id!r}.", code="interrupt_not_found")
    found = node.interrupt
    is_open = node.status == "suspended" and not state.is_terminal
    if found is not None and is_open and interrupt_id in (None, found.interrupt_id):
        return found
    # A caller with a token gets the same error, however the run ended.
    if _was_cancelled(state, node) and (state.cancelled_by_parent or not by_token):
        raise _cancelled_error(state)
    resolution = node.resolution
    if resolution is not None and interrupt_id in (None, resolution.interrupt_id):
        raise _already_resolved(resolution, value)
    if interrupt_id is not None:
        raise Conflict("This interrupt has ended.", code="interrupt_already_resolved")
    raise NotFound(f"Node {node_id!r} does not wait for a response.", code="interrupt_not_found")


def _was_cancelled(state: RunState, node: NodeState) -> bool:
    is_cancelled = state.status == node.status == "cancelled"
    return is_cancelled and node.interrupt is not None


def _cancelled_error(state: RunState) -> WoprError:
    if state.cancelled_by_parent:
        return Gone("The run was cancelled with its parent.", code="interrupt_gone")
    return Unprocessable("The run was cancelled while it waited.", code="interrupt_cancelled")


def _already_resolved(resolution: Resolution, value: Json) -> WoprError:
    if resolution.kind == "conversation.exchange" and is_exchange(value):
        return Refused("The conversation is closed.", field="resumeValue.operation")
    return Conflict(
        f"This interrupt was resolved already by {resolution.resolved_by}.",
        code="interrupt_already_resolved",
        resolvedBy=resolution.resolved_by,
        interruptId=resolution.interrupt_id,
    )


def resolve(
    batch: EventBatch, node_id: str, interrupt: Interrupt, value: Json, by: Resolver
) -> WoprError | None:
    """Append the events of a resume value.

    Raises when it is refused; the run is then unchanged. A refusal that belongs on the log is
    returned instead, and the caller raises it after the commit.
    """
    if by.by_token and not may_use_token(batch.state, node_id, interrupt):
        raise Forbidden("This gate accepts no interrupt token. Use an API key.")
    try:
        answer = read_resume_value(interrupt, value)
    except InvalidResumeValue as refused:
        kind = Unprocessable if refused.code == "correlation_mismatch" else Refused
        raise kind(str(refused), code=refused.code, field=refused.field) from refused
    refusal: WoprError | None = None
    match answer:
        case ApprovalValue(resume):
            approve(batch, node_id, interrupt, resume, by)
        case GovernanceValue():
            refusal = govern(batch, node_id, interrupt, answer, by)
        case ClarificationValue(answers):
            _clarify(batch, node_id, interrupt, answers, by)
        case DeliveredValue(delivered):
            append_resolution(batch, node_id, interrupt, delivered, by.name)
            resume_node(batch, node_id, interrupt, delivered)
        case Ratification():
            append_resolution(batch, node_id, interrupt, value, by.name)
            resume_node(batch, node_id, interrupt, value)
        case TurnValue():
            _take_turn(batch, node_id, interrupt, answer, by)
    batch.is_intervention = refusal is None and by is not SCRIPT_RESOLVER
    return refusal


def _clarify(
    batch: EventBatch, node_id: str, interrupt: Interrupt, answers: JsonObject, by: Resolver
) -> None:
    value: JsonObject = {"answers": answers}
    append_resolution(batch, node_id, interrupt, value, by.name)
    _report_clarification(batch, node_id, answers, by.name)
    resume_node(batch, node_id, interrupt, value)


def _report_clarification(batch: EventBatch, node_id: str, answers: JsonObject, by: str) -> None:
    payload = {"nodeId": node_id, "answers": answers, "answeredBy": by}
    batch.add("clarification.resolved", payload, node_id=node_id)


def continue_resolution(batch: EventBatch, node_id: str) -> None:
    """Append the remaining events after a recorded `interrupt.resolved`.

    A branch may start between that event and the events that its source appended with it.
    """
    node = batch.state.nodes[node_id]
    interrupt, resolution = node.interrupt, node.resolution
    if interrupt is None or resolution is None:
        return
    if resolution.is_timeout:
        fail_node(batch, node_id, report_timeout(batch, node_id, interrupt))
        return
    if not interrupt.is_reported:
        _report_resolution(batch, node_id, interrupt, resolution)
    if batch.state.nodes[node_id].status == "resuming":
        resume_node(batch, node_id, interrupt, resolution.value)


def _report_resolution(
    batch: EventBatch, node_id: str, interrupt: Interrupt, resolution: Resolution
) -> None:
    """Append the event of an approval or clarification that repeats a recorded resume value."""
    match interrupt.kind:
        case "approval":
            add_recorded_decision(batch, node_id, interrupt, resolution)
        case "clarification":
            _report_clarification(
                batch, node_id, resolution.value["answers"], resolution.resolved_by
            )
        case _:
            pass


def complete_ratified(batch: EventBatch, node_id: str) -> None:
    """Complete or fail a node after a person has ratified or rejected its held decision."""
    node = batch.state.nodes[node_id]
    interrupt, resolution = node.interrupt, node.resolution
    if interrupt is None or interrupt.held_outputs is None or resolution is None:
        return
    answer = batch.sensitive.unmask(batch.state).answers[interrupt.key]
    ratification = read_ratification(interrupt.data.get("decision"), answer)
    agent_id: str = interrupt.data["agentId"]
    if ratification.is_rejection:
        message = f"{resolution.resolved_by} rejected the decision of {agent_id}"
        error = RunError(code="decision_rejected", message=message, retryable=False)
        fail_node(batch, node_id, error)
        return
    if not interrupt.is_reported:
        decided = {"agentId": agent_id, "decision": ratification.decision}
        batch.add("agent.decided", decided, node_id=node_id)
    complete_node(batch, node_id, interrupt.held_outputs | batch.sensitive.true_outputs(node_id))


def _take_turn(
    batch: EventBatch, node_id: str, interrupt: Interrupt, turn: TurnValue, by: Resolver
) -> None:
    if not turn.is_close:
        exchange(batch, node_id, interrupt, turn.content, by.name)
        return
    close_conversation(batch, node_id, interrupt, turn.content, turn.outcome)
    value: JsonObject = {"operation": "close", "outcome": turn.outcome}
    append_resolution(batch, node_id, interrupt, value, by.name)
    resume_node(batch, node_id, interrupt, value)


def apply_script(batch: EventBatch, node_id: str, script: tuple[Json, ...]) -> None:
    """Resolve interrupts with the resume values that a conformance workflow contains."""
    for value in script:
        interrupt = batch.state.nodes[node_id].interrupt
        if interrupt is not None:
            resolve(batch, node_id, interrupt, value, SCRIPT_RESOLVER)
