"""Fold of agent events: the run's agent and orchestrator, decisions, usage and handoffs."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from wopr.engine.fold.payload import Change, node_state_of, read_member, with_node
from wopr.engine.state import ChainLink, RunState, SupervisorDecision, is_history
from wopr.protocol.agents import AgentRef
from wopr.protocol.documents import JsonObject, Unset
from wopr.protocol.events import RunEvent

SUPERVISOR = "core.orchestrator.supervisor"
DISPATCH = "core.dispatch"
DEFAULT_ORCHESTRATOR = "host:orchestrator"


def bind_agent(state: RunState, node_id: str) -> RunState:
    """Make the agent of a pinned node the run's agent.

    A supervisor stays the run's orchestrator.
    """
    node = state.graph.nodes[node_id]
    pinned = None if isinstance(node.agent, Unset) else node.agent
    if node.type_id != SUPERVISOR:
        return state if pinned is None else replace(state, agent=pinned)
    if state.run_orchestrator is not None:
        return state
    named = read_member(node.config, "agentId", str, DEFAULT_ORCHESTRATOR)
    return replace(state, run_orchestrator=pinned or AgentRef(agent_id=named))


def _agent_handoff(state: RunState, event: RunEvent, payload: JsonObject, at: int) -> RunState:
    receiver = read_member(payload, "toAgentId", str, "")
    if not receiver:
        return state
    state = replace(state, agent=AgentRef(agent_id=receiver))
    return with_node(state, event, handed_to=receiver)


def _agent_decided(state: RunState, event: RunEvent, payload: JsonObject, at: int) -> RunState:
    node = node_state_of(state, event)
    is_complete = {"agentId", "decision", "confidence"} <= payload.keys()
    if node is not None and node.status == "running" and node.interrupt is not None:
        # A person ratified the decision of a completed node.
        return with_node(state, event, interrupt=replace(node.interrupt, is_reported=True))
    if node is None or not is_complete or not isinstance(payload["agentId"], str):
        return state
    return with_node(state, event, agent_decisions=(*node.agent_decisions, payload))


def _tool_called(state: RunState, event: RunEvent, payload: JsonObject, at: int) -> RunState:
    node, call_id = node_state_of(state, event), read_member(payload, "callId", str, "")
    if node is None or not call_id:
        return state
    state = replace(state, tool_calls=state.tool_calls + 1)
    return with_node(state, event, open_calls={**node.open_calls, call_id: event.event_id})


def _tool_returned(state: RunState, event: RunEvent, payload: JsonObject, at: int) -> RunState:
    node, call_id = node_state_of(state, event), read_member(payload, "callId", str, "")
    if node is None or call_id not in node.open_calls:
        return state
    open_calls = {name: called for name, called in node.open_calls.items() if name != call_id}
    is_new = not is_history(state.identity, event.sequence)
    returns = node.tool_returns + is_new
    return with_node(state, event, open_calls=open_calls, tool_returns=returns)


def _agent_invocation_started(
    state: RunState, event: RunEvent, payload: JsonObject, at: int
) -> RunState:
    return with_node(state, event, invocation_id=read_member(payload, "invocationId", str, ""))


def _provider_usage(state: RunState, event: RunEvent, payload: JsonObject, at: int) -> RunState:
    """Add up `metrics.openwopCost`. Provider and model are those of the last call."""
    past = state.usage or {}
    tokens = past.get("tokens", {"input": 0, "output": 0})
    usage: JsonObject = {
        "tokens": {
            "input": tokens["input"] + read_member(payload, "inputTokens", int, 0),
            "output": tokens["output"] + read_member(payload, "outputTokens", int, 0),
        },
        "provider": read_member(payload, "provider", str, "unknown"),
        "model": read_member(payload, "model", str, "unknown"),
    }
    usd = past.get("usd", 0) + read_member(payload, "costEstimateUsd", float, 0)
    usage = usage | {"usd": usd} if usd else usage
    state = replace(state, usage=usage, model_calls=state.model_calls + 1)
    node = node_state_of(state, event)
    if node is None or is_history(state.identity, event.sequence):
        return state
    return with_node(state, event, model_calls=node.model_calls + 1)


def _supervisor_decided(state: RunState, event: RunEvent, payload: JsonObject, at: int) -> RunState:
    decision = read_member(payload, "decision", dict[str, Any], {})
    decided = SupervisorDecision(event_id=event.event_id, decision=decision)
    state = with_node(state, event, decision=len(state.decisions))
    return replace(state, decisions=(*state.decisions, decided))


def _chain_event(state: RunState, event: RunEvent, payload: JsonObject, at: int) -> RunState:
    node = node_state_of(state, event)
    if node is None:
        return state
    link = ChainLink(
        phase=read_member(payload, "phase", str, ""),
        child_run_id=read_member(payload, "childRunId", str, ""),
        event_id=event.event_id,
    )
    return with_node(state, event, chain=(*node.chain, link))


CHANGES: dict[str, Change] = {
    "agent.handoff": _agent_handoff,
    "agent.decided": _agent_decided,
    "agent.toolCalled": _tool_called,
    "agent.toolReturned": _tool_returned,
    "agent.invocation.started": _agent_invocation_started,
    "provider.usage": _provider_usage,
    "runOrchestrator.decided": _supervisor_decided,
    "core.workflowChain.event": _chain_event,
}
