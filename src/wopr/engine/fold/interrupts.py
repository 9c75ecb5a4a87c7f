"""Fold of interrupt events: suspension, votes, turns and resolution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from wopr.engine.fold.payload import Change, node_state_of, read_member, with_node
from wopr.engine.interrupts import (
    HELD_OUTPUTS,
    WAITING_STATUS,
    Ballot,
    Interrupt,
    Resolution,
    waiting_status,
)
from wopr.engine.state import ENDED, NodeState, RunState
from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.events import RunEvent
from wopr.protocol.interrupts import INTERRUPT_KIND
from wopr.protocol.runs import RunStatus

_WAITING_STATUSES: dict[str, RunStatus] = {
    "waiting-approval": "waiting-approval",
    "waiting-input": "waiting-input",
    "waiting-external": "waiting-external",
}


def status_of(nodes: Mapping[str, NodeState]) -> RunStatus:
    """Return the status of a run: it waits as soon as one of its nodes waits."""
    for node in nodes.values():
        if node.status == "suspended" and node.interrupt is not None:
            return node.interrupt.status
    return "running"


def with_current_status(state: RunState) -> RunState:
    """Return the state with the status that follows from its nodes."""
    if state.status not in _WAITING_STATUSES:
        return state
    return replace(state, status=status_of(state.nodes))


def _node_suspended(state: RunState, event: RunEvent, payload: JsonObject, at: int) -> RunState:
    event_kind = read_member(payload, "kind", str, "custom")
    interrupt = Interrupt(
        interrupt_id=read_member(payload, "interruptId", str, event.event_id),
        kind=read_member(payload, INTERRUPT_KIND, str, event_kind),
        event_kind=event_kind,
        key=read_member(payload, "key", str, event.event_id),
        requested_at=at,
        suspended_event=event.event_id,
        status=_status(payload, event_kind),
        reason=read_member(payload, "reason", str, ""),
        held_outputs=read_member(payload, HELD_OUTPUTS, dict[str, Any], None),
    )
    state = with_node(state, event, status="suspended", interrupt=interrupt)
    return replace(state, status=status_of(state.nodes)) if state.status == "running" else state


def _status(payload: JsonObject, kind: str) -> RunStatus:
    """Return the status that the event names for a vendor kind, else the status of the kind."""
    return _WAITING_STATUSES.get(
        read_member(payload, WAITING_STATUS, str, ""), waiting_status(kind)
    )


def _change_interrupt(state: RunState, event: RunEvent, **changes: Json) -> RunState:
    """Change the pending interrupt of the event's node."""
    node = node_state_of(state, event)
    if node is None or node.interrupt is None:
        return state
    return with_node(state, event, interrupt=replace(node.interrupt, **changes))


def _interrupt_requested(
    state: RunState, event: RunEvent, payload: JsonObject, at: int
) -> RunState:
    return _change_interrupt(
        state,
        event,
        data=read_member(payload, "data", dict[str, Any], {}),
        resume_schema=read_member(payload, "resumeSchema", dict[str, Any], None),
        timeout_ms=read_member(payload, "timeoutMs", int, 0),
        requested_at=at,
    )


def _governance_vote(*, is_grant: bool) -> Change:
    def change(state: RunState, event: RunEvent, payload: JsonObject, at: int) -> RunState:
        node = node_state_of(state, event)
        voter = read_member(payload, "principal", str, "")
        if node is None or node.interrupt is None or not voter:
            return state
        ballot = Ballot(voter=voter, is_grant=is_grant)
        return with_node(state, event, interrupt=node.interrupt.with_ballot(ballot))

    return change


def _conversation_turn(state: RunState, event: RunEvent, payload: JsonObject, at: int) -> RunState:
    index = read_member(payload, "turnIndex", int, 0)
    return _change_interrupt(state, event, turn_index=index, turn_event=event.event_id)


def _interrupt_resolved(state: RunState, event: RunEvent, payload: JsonObject, at: int) -> RunState:
    node = node_state_of(state, event)
    if node is None or node.interrupt is None:
        return state
    resolution = Resolution(
        interrupt_id=node.interrupt.interrupt_id,
        kind=node.interrupt.kind,
        resolved_by=read_member(payload, "resolvedBy", str, "unknown"),
        recorded=payload,
    )
    answers = {**state.answers, node.interrupt.key: payload.get("resumeValue")}
    status = "resuming" if node.status == "suspended" else node.status
    return with_node(replace(state, answers=answers), event, status=status, resolution=resolution)


def _node_resumed(state: RunState, event: RunEvent, payload: JsonObject, at: int) -> RunState:
    node = node_state_of(state, event)
    interrupt = None if node is None or not node.holds_outputs else node.interrupt
    return with_node(state, event, status="running", interrupt=interrupt, resumed_at=at)


def _answer_reported(state: RunState, event: RunEvent, payload: JsonObject, at: int) -> RunState:
    return _change_interrupt(state, event, is_reported=True)


def _approval_received(state: RunState, event: RunEvent, payload: JsonObject, at: int) -> RunState:
    """Apply a decision. After a refinement the gate and its sources run again."""
    node_id = event.node_id
    gate = node_state_of(state, event)
    if payload.get("action") != "refine" or gate is None or not isinstance(node_id, str):
        return _answer_reported(state, event, payload, at)
    feedback = read_member(payload, "refineFeedback", dict[str, Any], {})
    sources = {edge.source_node_id for edge in state.graph.incoming[node_id]}
    again = {
        # A source that still runs has not delivered to the gate yet.
        name: replace(state.nodes[name], status="pending", attempt=0, feedback=feedback)
        for name in sources
        if state.nodes[name].status in ENDED
    }
    again[node_id] = replace(
        gate, status="pending", attempt=0, interrupt=None, refinements=gate.refinements + 1
    )
    return replace(state, nodes={**state.nodes, **again})


CHANGES: dict[str, Change] = {
    "node.suspended": _node_suspended,
    "node.resumed": _node_resumed,
    "interrupt.requested": _interrupt_requested,
    "interrupt.resolved": _interrupt_resolved,
    "approval.granted": _governance_vote(is_grant=True),
    "approval.rejected": _governance_vote(is_grant=False),
    "approval.received": _approval_received,
    "clarification.resolved": _answer_reported,
    "conversation.opened": _conversation_turn,
    "conversation.exchanged": _conversation_turn,
    "conversation.closed": _conversation_turn,
}
