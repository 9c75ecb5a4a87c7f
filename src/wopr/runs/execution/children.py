"""Child runs: created in the transaction of their parent's `node.dispatched`."""

from __future__ import annotations

from wopr.engine.outcome import NodeFailure
from wopr.engine.snapshot import visible_variables
from wopr.engine.state import RunIdentity, RunState, initial_state
from wopr.nodes.context import ChildView
from wopr.protocol.documents import JsonObject
from wopr.protocol.errors import (
    CapabilityRequired,
    DescendantLimit,
    NotFound,
    QuotaExceeded,
    WoprError,
)
from wopr.protocol.runs import Owner
from wopr.runs.active import ActiveRun
from wopr.runs.append import EventBatch
from wopr.runs.definitions.library import CompiledWorkflow
from wopr.runs.journal import Journal
from wopr.runs.requests import check_inputs, check_test_hooks, started_payload
from wopr.store.port import Batch
from wopr.store.port.runs import too_many_active_error

# The limit for workflows that start themselves.
MAX_DEPTH = 16
# Limits of a run apply to it alone. Its children inherit the other options.
_OWN_OPTIONS = frozenset({"recursionLimit", "runTimeoutMs", "maxLoopIterations"})


async def child_batch(
    journal: Journal, parent: ActiveRun, node_id: str, workflow_id: str, inputs: JsonObject
) -> Batch:
    """Return the first append of a child run, for the transaction of its parent's dispatch."""
    identity = parent.state.identity
    root = identity.root_run_id or identity.run_id
    await _check_depth(journal, identity)
    await _check_limits(journal, identity.tenant, root)
    try:
        compiled = await journal.library.newest(identity.tenant, workflow_id)
        check_test_hooks(compiled)
        check_inputs(compiled, inputs)
    except NotFound as error:
        raise NodeFailure(error.message, code="unknown_child_workflow", retryable=False) from error
    except CapabilityRequired as error:
        raise NodeFailure(error.message, code="capability_not_provided", retryable=False) from error
    except WoprError as error:
        raise NodeFailure(error.message, code=error.code, retryable=False) from error
    child = RunIdentity(
        run_id=journal.new_id(),
        tenant=identity.tenant,
        workflow_id=compiled.workflow_id,
        workflow_version=compiled.version,
        parent_run_id=identity.run_id,
        parent_node_id=node_id,
        root_run_id=root,
    )
    sensitive = parent.sensitive.for_child()
    run = ActiveRun(initial_state(child, compiled.graph), compiled, sensitive, None)
    if journal.is_shared:
        # Any process may start it.
        run.due_in = 0
    owner = parent.state.owner or Owner(tenant=identity.tenant)
    options = _inherited_options(parent.state, compiled)
    payload = started_payload(compiled, inputs=inputs, owner=owner, configurable=options)

    def begin() -> EventBatch:
        batch = journal.batch(run)
        batch.add("run.started", payload)
        return batch

    batch = await journal.library.subprocesses.run(identity.tenant, begin)
    return Batch(
        run=journal.row(run, batch),
        first=0,
        events=tuple(batch.events),
        artifacts=tuple(batch.artifacts),
        limits=journal.quotas.creation_limits(identity.tenant),
    )


async def _check_depth(journal: Journal, identity: RunIdentity) -> None:
    depth, ancestor = 1, identity.parent_run_id
    while ancestor is not None and depth <= MAX_DEPTH:
        row = await journal.store.run(identity.tenant, ancestor)
        ancestor = row.parent_run_id if row is not None else None
        depth += 1
    if depth > MAX_DEPTH:
        raise NodeFailure(
            f"sub-workflows may be nested at most {MAX_DEPTH} levels deep",
            code="recursion_limit_exceeded",
            retryable=False,
        )


async def _check_limits(journal: Journal, tenant: str, root_run_id: str) -> None:
    """Raise `NodeFailure` when a limit allows no further child. The append checks it again."""
    limits = journal.quotas.creation_limits(tenant)
    root = await journal.store.run(tenant, root_run_id)
    if limits.descendants and root is not None and root.descendants >= limits.descendants:
        raise child_failure(
            DescendantLimit(root_run_id, limit=limits.descendants, current=root.descendants)
        )
    if limits.active_runs:
        current = await journal.store.active_runs(tenant)
        if current >= limits.active_runs:
            raise child_failure(too_many_active_error(limits.active_runs, current))
    try:
        await journal.quotas.check_write(tenant, "artifactBytes")
    except QuotaExceeded as refusal:
        raise child_failure(refusal) from refusal


def child_failure(refusal: DescendantLimit | QuotaExceeded) -> NodeFailure:
    """Return the failure of a node whose child was refused. A refusal by a quota is retryable."""
    return NodeFailure(
        refusal.message,
        code=refusal.code,
        retryable=isinstance(refusal, QuotaExceeded),
        details=dict(refusal.details),
    )


def _inherited_options(state: RunState, compiled: CompiledWorkflow) -> JsonObject:
    if compiled.configurable_schema is not None:
        return {}
    return {name: v for name, v in state.configurable.items() if name not in _OWN_OPTIONS}


async def child_views(journal: Journal, state: RunState, node_id: str) -> tuple[ChildView, ...]:
    """Return the children that a node has dispatched, with their current state."""
    return tuple(
        [
            await _view(journal, state.identity.tenant, run_id, workflow_id)
            for run_id, workflow_id in state.nodes[node_id].children
        ]
    )


async def _view(journal: Journal, tenant: str, run_id: str, workflow_id: str) -> ChildView:
    child = await journal.load(tenant, run_id)
    if child is None:
        raise NodeFailure(f"child run {run_id} was deleted", code="child_failed", retryable=False)
    return ChildView(
        run_id=run_id,
        workflow_id=workflow_id,
        status=child.state.status,
        variables=visible_variables(child.state),
        error=child.state.error,
    )
