"""The RunSnapshot of a state: the response of `GET /v1/runs/{runId}`."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from wopr.engine.channels import is_context_channel
from wopr.engine.state import NodeState, RunState
from wopr.protocol.documents import UNSET, JsonObject, to_iso
from wopr.protocol.events import EVENT_LOG_SCHEMA_VERSION
from wopr.protocol.runs import ChildRun, NodeView, RunSnapshot


def snapshot(state: RunState, children: Iterable[ChildRun] = ()) -> RunSnapshot:
    """Return the snapshot of a state. A member that is not known yet is absent, never null."""
    run = state.identity
    ended = to_iso(state.ended_at) if state.ended_at else UNSET
    return RunSnapshot(
        run_id=run.run_id,
        workflow_id=run.workflow_id,
        workflow_version=run.workflow_version,
        status=state.status,
        owner=state.owner or UNSET,
        current_node_id=_suspended_node(state) or UNSET,
        started_at=to_iso(state.started_at) if state.started_at else UNSET,
        completed_at=ended,
        ended_at=ended,
        inputs=state.inputs,
        outputs=UNSET if state.outputs is None else state.outputs,
        variables=visible_variables(state),
        channels=state.channels or UNSET,
        node_states={n: _node_view(node) for n, node in state.nodes.items()},
        agent=state.agent or UNSET,
        run_orchestrator=state.run_orchestrator or UNSET,
        error=replace(state.error, retryable=UNSET) if state.error else UNSET,
        engine_version=state.engine_version or UNSET,
        event_log_schema_version=EVENT_LOG_SCHEMA_VERSION,
        tags=list(state.tags) or UNSET,
        metadata=state.metadata or UNSET,
        configurable=state.configurable or UNSET,
        metrics={"openwopCost": state.usage} if state.usage else UNSET,
        child_runs=list(children) or UNSET,
        parent_run_id=run.parent_run_id or UNSET,
        parent_node_id=run.parent_node_id or UNSET,
        source_run_id=run.fork.source_run_id if run.fork else UNSET,
        fork={"mode": run.fork.mode, "fromSeq": run.fork.from_seq} if run.fork else UNSET,
        paused_at=to_iso(state.paused_at) if state.paused_at else UNSET,
        last_sequence=state.next_sequence - 1,
    )


def visible_variables(state: RunState) -> JsonObject:
    """Return the variables, and the value of every channel that the workflow did not declare.

    Shared agent contexts are not included.
    """
    undeclared = {
        n: v
        for n, v in state.channels.items()
        if n not in state.graph.channels and not is_context_channel(n)
    }
    return {**state.variables, **undeclared}


def _suspended_node(state: RunState) -> str | None:
    if state.is_terminal:
        return None
    return next((n for n, node in state.nodes.items() if node.status == "suspended"), None)


def _node_view(node: NodeState) -> NodeView:
    return NodeView(
        status="running" if node.status == "resuming" else node.status,
        attempts=node.attempt + 1 if node.started_at else 0,
        started_at=to_iso(node.started_at) if node.started_at else UNSET,
        completed_at=to_iso(node.ended_at) if node.ended_at else UNSET,
        outputs=UNSET if node.outputs is None else node.outputs,
        error=node.error or UNSET,
        reason=node.reason or UNSET,
        code_version=node.code_version or UNSET,
    )
