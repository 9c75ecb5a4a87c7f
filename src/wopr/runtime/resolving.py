"""Ends a wait: checks an answer, records it with its author, and lets the node go on."""

from __future__ import annotations

from wopr.engine.answers import (
    AnswerRefused,
    Approval,
    Clarified,
    Delivered,
    Governed,
    Ratified,
    Turn,
    is_exchange,
    read_answer,
    read_ratification,
)
from wopr.engine.interrupts import Interrupt, Resolution
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
from wopr.runtime.appender import Burst
from wopr.runtime.approving import approve, receive_recorded
from wopr.runtime.conversations import close_conversation, exchange
from wopr.runtime.governing import govern
from wopr.runtime.inbox import may_use_token
from wopr.runtime.steps import complete, fail_node
from wopr.runtime.suspending import timed_out
from wopr.runtime.waits import Resolver, end_wait, resume_node

# Who gives the answers that a conformance workflow brings along.
SCRIPT = Resolver(name="system:script")


def pending(
    state: RunState,
    node_id: str,
    interrupt_id: str | None = None,
    *,
    value: Json = None,
    by_token: bool = False,
) -> Interrupt:
    """The interrupt that an answer is for, or the reason why there is none.

    An answer that names an interrupt is for that one; others are for whatever the node waits for.
    """
    node = state.nodes.get(node_id)
    if node is None:
        raise NotFound(f"no node {node_id!r} waits here", code="interrupt_not_found")
    found = node.interrupt
    is_open = node.status == "suspended" and not state.is_terminal
    if found is not None and is_open and interrupt_id in (None, found.interrupt_id):
        return found
    # A token that died with its run is told the same, however the run ended.
    if _was_cancelled(state, node) and (state.cancelled_by_parent or not by_token):
        raise _cancelled(state)
    past = node.resolution
    if past is not None and interrupt_id in (None, past.interrupt_id):
        raise _settled(past, value)
    if interrupt_id is not None:
        raise Conflict("this wait has ended", code="interrupt_already_resolved")
    raise NotFound(f"node {node_id!r} does not wait for an answer", code="interrupt_not_found")


def _was_cancelled(state: RunState, node: NodeState) -> bool:
    is_cancelled = state.status == node.status == "cancelled"
    return is_cancelled and node.interrupt is not None


def _cancelled(state: RunState) -> WoprError:
    if state.cancelled_by_parent:
        return Gone("the run was cancelled with its parent", code="interrupt_gone")
    return Unprocessable("the run was cancelled while it waited", code="interrupt_cancelled")


def _settled(past: Resolution, value: Json) -> WoprError:
    if past.kind == "conversation.exchange" and is_exchange(value):
        return Refused(
            "the conversation is closed; nothing can follow it", field="resumeValue.operation"
        )
    return Conflict(
        f"this was settled already by {past.resolved_by}",
        code="interrupt_already_resolved",
        resolvedBy=past.resolved_by,
        interruptId=past.interrupt_id,
    )


def resolve(
    burst: Burst, node_id: str, interrupt: Interrupt, value: Json, by: Resolver
) -> WoprError | None:
    """Append what an answer leads to.

    A refused answer leaves the run as it was. One whose refusal itself belongs on the log is
    returned, for the caller to raise once that is committed.
    """
    if by.by_token and not may_use_token(burst.state, node_id, interrupt):
        raise Forbidden("this gate takes no token; sign in with a key")
    try:
        answer = read_answer(interrupt, value)
    except AnswerRefused as refused:
        kind = Unprocessable if refused.code == "correlation_mismatch" else Refused
        raise kind(str(refused), code=refused.code, field=refused.field) from refused
    refusal: WoprError | None = None
    match answer:
        case Approval(resume):
            approve(burst, node_id, interrupt, resume, by)
        case Governed():
            refusal = govern(burst, node_id, interrupt, answer, by)
        case Clarified(answers):
            _clarify(burst, node_id, interrupt, answers, by)
        case Delivered(delivered):
            end_wait(burst, node_id, interrupt, delivered, by.name)
            resume_node(burst, node_id, interrupt, delivered)
        case Ratified():
            end_wait(burst, node_id, interrupt, value, by.name)
            resume_node(burst, node_id, interrupt, value)
        case Turn():
            _take_turn(burst, node_id, interrupt, answer, by)
    burst.is_intervention = refusal is None and by is not SCRIPT
    return refusal


def _clarify(
    burst: Burst, node_id: str, interrupt: Interrupt, answers: JsonObject, by: Resolver
) -> None:
    value: JsonObject = {"answers": answers}
    end_wait(burst, node_id, interrupt, value, by.name)
    _report_clarification(burst, node_id, answers, by.name)
    resume_node(burst, node_id, interrupt, value)


def _report_clarification(burst: Burst, node_id: str, answers: JsonObject, by: str) -> None:
    payload = {"nodeId": node_id, "answers": answers, "answeredBy": by}
    burst.add("clarification.resolved", payload, node_id=node_id)


def continue_answer(burst: Burst, node_id: str) -> None:
    """Append the rest of the events that follow a recorded `interrupt.resolved`.

    A branch may begin between that event and those that its source appended with it.
    """
    node = burst.state.nodes[node_id]
    interrupt, past = node.interrupt, node.resolution
    if interrupt is None or past is None:
        return
    if past.is_timeout:
        fail_node(burst, node_id, timed_out(burst, node_id, interrupt))
        return
    if not interrupt.is_reported:
        _report(burst, node_id, interrupt, past)
    if burst.state.nodes[node_id].status == "resuming":
        resume_node(burst, node_id, interrupt, past.value)


def _report(burst: Burst, node_id: str, interrupt: Interrupt, past: Resolution) -> None:
    """Append the event that repeats a recorded answer for its kind of wait, where there is one."""
    match interrupt.kind:
        case "approval":
            receive_recorded(burst, node_id, interrupt, past)
        case "clarification":
            _report_clarification(burst, node_id, past.value["answers"], past.resolved_by)
        case _:
            pass


def settle_held(burst: Burst, node_id: str) -> None:
    """Complete or fail a node that waited only for a person's answer to its decision."""
    node = burst.state.nodes[node_id]
    interrupt, past = node.interrupt, node.resolution
    if interrupt is None or interrupt.held_outputs is None or past is None:
        return
    answer = burst.vault.reveal(burst.state).answers[interrupt.key]
    said = read_ratification(interrupt.data.get("decision"), answer)
    agent_id: str = interrupt.data["agentId"]
    if said.is_rejection:
        message = f"{past.resolved_by} rejected the decision of {agent_id}"
        error = RunError(code="decision_rejected", message=message, retryable=False)
        fail_node(burst, node_id, error)
        return
    if not interrupt.is_reported:
        decided = {"agentId": agent_id, "decision": said.decision}
        burst.add("agent.decided", decided, node_id=node_id)
    complete(burst, node_id, interrupt.held_outputs | burst.vault.true_outputs(node_id))


def _take_turn(burst: Burst, node_id: str, interrupt: Interrupt, said: Turn, by: Resolver) -> None:
    if not said.is_close:
        exchange(burst, node_id, interrupt, said.content, by.name)
        return
    close_conversation(burst, node_id, interrupt, said.content, said.outcome)
    value: JsonObject = {"operation": "close", "outcome": said.outcome}
    end_wait(burst, node_id, interrupt, value, by.name)
    resume_node(burst, node_id, interrupt, value)


def play_script(burst: Burst, node_id: str, script: tuple[Json, ...]) -> None:
    """Give the answers that a conformance workflow brings along, by the way of all answers."""
    for value in script:
        interrupt = burst.state.nodes[node_id].interrupt
        if interrupt is not None:
            resolve(burst, node_id, interrupt, value, SCRIPT)
