"""Hand-off schemas: what an agent is handed and hands back must be what its manifest says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wopr.engine.outcome import Completed, Failed, NodeFailure
from wopr.engine.state import RunState
from wopr.protocol.checking import UserSchema
from wopr.protocol.documents import Json, JsonObject, Unset
from wopr.protocol.runs import RunError

if TYPE_CHECKING:
    from wopr.runtime.agent_call import AgentCall

TASK_VIOLATION = "handoff_task_schema_violation"
RETURN_VIOLATION = "handoff_return_schema_violation"


def check_task(call: AgentCall, inputs: JsonObject) -> None:
    """Fail a node before it executes when an agent would be handed what it does not take.

    An agent that the workflow requires is handed the run's inputs, so the nodes that a run begins
    with check them. An agent that a node is pinned to is handed the node's inputs, or the run's
    where the node has none of its own.
    """
    graph = call.state.graph
    required = graph.definition.metadata.requires_agent_id
    if not isinstance(required, Unset) and not graph.incoming[call.node_id]:
        _check(call, required, call.state.inputs)
    if call.agent is not None and call.agent.agent_id != required:
        _check(call, call.agent.agent_id, inputs or call.state.inputs)


def _check(call: AgentCall, agent_id: str, task: Json) -> None:
    found = call.installed(agent_id)
    fault = None if found is None else _fault(found.task_schema, task)
    if fault is not None:
        raise NodeFailure(
            f"{agent_id} does not take this task: {fault}",
            code=TASK_VIOLATION,
            retryable=False,
            details={"agentId": agent_id},
        )


def check_return(call: AgentCall, outcome: Completed) -> Failed | None:
    """The failure of a node whose outputs an agent may not hand back, before they are stored."""
    for agent_id in _returning(call):
        found = call.installed(agent_id)
        fault = None if found is None else _fault(found.return_schema, outcome.outputs)
        if fault is not None:
            message = f"{agent_id} handed back what it does not promise: {fault}"
            return Failed(
                RunError(
                    code=RETURN_VIOLATION,
                    message=message,
                    retryable=False,
                    details={"agentId": agent_id},
                )
            )
    return None


def _returning(call: AgentCall) -> list[str]:
    """The agents whose return value this node's outputs are."""
    required = call.state.graph.definition.metadata.requires_agent_id
    names = [] if call.agent is None else [call.agent.agent_id]
    if not isinstance(required, Unset) and _makes_outputs(call.state, call.node_id):
        names.append(required)
    return names


def _makes_outputs(state: RunState, node_id: str) -> bool:
    """Whether the run returns what this node does."""
    nodes = state.graph.nodes.values()
    primary = next((node.id for node in nodes if node.output_role == "primary"), None)
    return not state.graph.outgoing[node_id] if primary is None else primary == node_id


def _fault(schema: UserSchema | None, value: Json) -> str | None:
    """Say what is wrong with a value, if anything is."""
    for violation in () if schema is None else schema.violations(value):
        return f"{violation.place() or 'the whole'}: {violation.message}"
    return None
