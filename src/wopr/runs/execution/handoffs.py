"""Handoffs between agents: the event at a node boundary, and the schemas of task and return."""

from __future__ import annotations

from wopr.engine.fold.agents import SUPERVISOR
from wopr.engine.outcome import Completed, Failed, NodeFailure
from wopr.engine.state import RunState
from wopr.protocol.documents import Json, JsonObject, Unset
from wopr.protocol.json_schema.validation import UserSchema
from wopr.protocol.runs import RunError
from wopr.protocol.workflow import WorkflowNode
from wopr.runs.append import EventBatch
from wopr.runs.execution.agent_context import AgentServices

EVENT_TYPE = "agent.handoff"
TASK_VIOLATION = "handoff_task_schema_violation"
RETURN_VIOLATION = "handoff_return_schema_violation"


def add_handoff(batch: EventBatch, node: WorkflowNode) -> None:
    """Append the handoff to a node from the agents of the nodes before it.

    A node without an agent has no handoff. Where several branches meet, each of their agents
    hands off. A retry is not a handoff.
    """
    if isinstance(node.agent, Unset) or node.type_id == SUPERVISOR:
        return
    is_retry = batch.state.nodes[node.id].status == "retrying"
    if is_retry or not batch.rules.guard.advertises(EVENT_TYPE):
        return
    receiver = node.agent.agent_id
    for sender in _agents_before(batch.state, node.id):
        if sender != receiver:
            payload = {"fromAgentId": sender, "toAgentId": receiver}
            batch.add(EVENT_TYPE, payload, node_id=node.id)


def _agents_before(state: RunState, node_id: str) -> list[str]:
    """Return the agents in control at the end of each node that leads here, every agent once."""
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


def check_task(services: AgentServices, state: RunState, node_id: str, inputs: JsonObject) -> None:
    """Raise `NodeFailure` for a task that the manifest of an agent excludes.

    The agent that the workflow requires gets the inputs of the run, so the first nodes of a run
    check them. The agent that a node is pinned to gets the node's inputs, or those of the run where
    the node has none.
    """
    graph = state.graph
    required = graph.definition.metadata.requires_agent_id
    if not isinstance(required, Unset) and not graph.incoming[node_id]:
        _check_task(services, state, node_id, required, state.inputs)
    pinned = graph.nodes[node_id].agent
    if not isinstance(pinned, Unset) and pinned.agent_id != required:
        _check_task(services, state, node_id, pinned.agent_id, inputs or state.inputs)


def _check_task(
    services: AgentServices, state: RunState, node_id: str, agent_id: str, task: Json
) -> None:
    found = services.installed_agent(state, node_id, agent_id)
    fault = None if found is None else _fault(found.task_schema, task)
    if fault is not None:
        raise NodeFailure(
            f"{agent_id} does not take this task: {fault}",
            code=TASK_VIOLATION,
            retryable=False,
            details={"agentId": agent_id},
        )


def check_return(
    services: AgentServices, state: RunState, node_id: str, outcome: Completed
) -> Failed | None:
    """Return the failure of a node whose outputs break the return schema of an agent."""
    for agent_id in _returning_agents(state, node_id):
        found = services.installed_agent(state, node_id, agent_id)
        fault = None if found is None else _fault(found.return_schema, outcome.outputs)
        if fault is not None:
            return Failed(
                RunError(
                    code=RETURN_VIOLATION,
                    message=f"{agent_id} returned outputs that its manifest excludes: {fault}",
                    retryable=False,
                    details={"agentId": agent_id},
                )
            )
    return None


def _returning_agents(state: RunState, node_id: str) -> list[str]:
    """Return the agents whose return value the outputs of this node are."""
    pinned = state.graph.nodes[node_id].agent
    names = [] if isinstance(pinned, Unset) else [pinned.agent_id]
    required = state.graph.definition.metadata.requires_agent_id
    if not isinstance(required, Unset) and _makes_outputs(state, node_id):
        names.append(required)
    return names


def _makes_outputs(state: RunState, node_id: str) -> bool:
    """Return whether the outputs of this node are outputs of the run."""
    nodes = state.graph.nodes.values()
    primary = next((node.id for node in nodes if node.output_role == "primary"), None)
    return not state.graph.outgoing[node_id] if primary is None else primary == node_id


def _fault(schema: UserSchema | None, value: Json) -> str | None:
    """Return what the schema forbids about a value, or None."""
    for violation in () if schema is None else schema.violations(value):
        return f"{violation.place() or 'the value'}: {violation.message}"
    return None
