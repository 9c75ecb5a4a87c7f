"""Hand-offs at node boundaries: control goes from one pinned agent to another."""

from __future__ import annotations

from wopr.engine.fold_agents import SUPERVISOR
from wopr.engine.state import RunState
from wopr.protocol.documents import Unset
from wopr.protocol.workflow import WorkflowNode
from wopr.runtime.appender import Burst

EVENT_TYPE = "agent.handoff"


def hand_over(burst: Burst, node: WorkflowNode) -> None:
    """Record the hand-off to this node, where both its agent and the one before are known.

    A node without an agent on either side of the boundary passes nothing on. Where several
    branches meet, each of their agents hands over. A node that is tried again has control already.
    """
    if isinstance(node.agent, Unset) or node.type_id == SUPERVISOR:
        return
    is_retry = burst.state.nodes[node.id].status == "retrying"
    if is_retry or not burst.guard.advertises(EVENT_TYPE):
        return
    receiver = node.agent.agent_id
    for sender in _agents_before(burst.state, node.id):
        if sender != receiver:
            payload = {"fromAgentId": sender, "toAgentId": receiver}
            burst.add(EVENT_TYPE, payload, node_id=node.id)


def _agents_before(state: RunState, node_id: str) -> list[str]:
    """Who held control at the end of each node that leads here, every agent once."""
    names: dict[str, None] = {}
    loop = state.graph.loops.get(node_id)
    is_next_round = loop is not None and state.nodes[node_id].status == "completed"
    edges = loop.back if loop is not None and is_next_round else state.graph.incoming[node_id]
    for edge in edges:
        source = state.graph.nodes[edge.source_node_id]
        before = state.nodes[source.id]
        if not isinstance(source.agent, Unset) and before.status == "completed":
            names[before.handed_to or source.agent.agent_id] = None
    return list(names)
