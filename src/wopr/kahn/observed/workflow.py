"""The workflow of an observed run, derived from the agents in its log."""

from __future__ import annotations

from wopr.engine.graph import compile_graph
from wopr.kahn.observed.events import TYPE_ID
from wopr.kahn.observed.run import WORKFLOW_VERSION
from wopr.protocol.documents import Unset
from wopr.protocol.observed_ids import OBSERVED_WORKFLOW, is_observed_run
from wopr.protocol.runs import RunSnapshot
from wopr.protocol.workflow import (
    Position,
    WorkflowDefinition,
    WorkflowMetadata,
    WorkflowNode,
    WorkflowSettings,
)
from wopr.runs.definitions.child_workflows import interface_of
from wopr.runs.definitions.library import CompiledWorkflow, Library
from wopr.store.port import RunRow


async def workflow_of(
    library: Library, tenant: str, row: RunRow, snapshot: RunSnapshot
) -> CompiledWorkflow:
    """Return the workflow of a run."""
    if is_observed_run(row.run_id):
        return observed_workflow(snapshot)
    return await library.version(tenant, row.workflow_id, row.workflow_version)


def observed_workflow(snapshot: RunSnapshot) -> CompiledWorkflow:
    """Return a workflow with a node for each agent of an observed run, without edges."""
    states = {} if isinstance(snapshot.node_states, Unset) else snapshot.node_states
    definition = WorkflowDefinition(
        id=OBSERVED_WORKFLOW,
        name="Observed run",
        version=WORKFLOW_VERSION,
        nodes=[_node(agent_id) for agent_id in states],
        edges=[],
        triggers=[],
        variables=[],
        metadata=WorkflowMetadata(),
        settings=WorkflowSettings(),
    )
    return CompiledWorkflow(
        workflow_id=OBSERVED_WORKFLOW,
        version=WORKFLOW_VERSION,
        graph=compile_graph(definition, ()),
        types={},
        configs={},
        configurable_schema=None,
        channel_schemas={},
        has_agents=True,
        test_hooks={},
        interface=interface_of(definition),
    )


def _node(agent_id: str) -> WorkflowNode:
    return WorkflowNode(
        id=agent_id,
        type_id=TYPE_ID,
        name=agent_id,
        position=Position(x=0, y=0),
        config={},
        inputs={},
    )
