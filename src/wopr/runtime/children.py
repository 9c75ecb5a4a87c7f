"""Child runs: born with their parent's dispatch event, in the parent's tenant."""

from __future__ import annotations

from wopr.engine.outcome import NodeFailure
from wopr.engine.snapshot import visible_variables
from wopr.engine.state import RunIdentity, RunState, initial
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
from wopr.runtime.active import ActiveRun
from wopr.runtime.appender import Burst
from wopr.runtime.journal import Journal
from wopr.runtime.library import Compiled
from wopr.runtime.starting import check_inputs, check_test_hooks, started_payload
from wopr.store.port import Batch
from wopr.store.port.runs import too_many_active

# A workflow that calls itself must end somewhere.
DEEPEST = 16
# Options that say how long a run may go on are its own; the others go down to its children.
_OWN_OPTIONS = frozenset({"recursionLimit", "runTimeoutMs", "maxLoopIterations"})


async def child_batch(
    journal: Journal, parent: ActiveRun, node_id: str, workflow_id: str, inputs: JsonObject
) -> Batch:
    """The first event of a child run, to be appended together with its parent's dispatch."""
    identity = parent.state.identity
    root = identity.root_run_id or identity.run_id
    await _check_depth(journal, identity)
    await _check_room(journal, identity.tenant, root)
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
    vault = parent.vault.handed_down()
    run = ActiveRun(initial(child, compiled.graph), compiled, vault, None)
    if journal.is_shared:
        # Whoever is free takes it up.
        run.due_in = 0
    owner = parent.state.owner or Owner(tenant=identity.tenant)
    options = _inherited(parent.state, compiled)
    payload = started_payload(compiled, inputs=inputs, owner=owner, configurable=options)

    def begin() -> Burst:
        burst = journal.burst(run)
        burst.add("run.started", payload)
        return burst

    burst = await journal.library.subprocesses.run(identity.tenant, begin)
    return Batch(
        run=journal.row(run, burst),
        first=0,
        events=tuple(burst.events),
        artifacts=tuple(burst.artifacts),
        limits=journal.quotas.creation_limits(identity.tenant),
    )


async def _check_depth(journal: Journal, identity: RunIdentity) -> None:
    depth, ancestor = 1, identity.parent_run_id
    while ancestor is not None and depth <= DEEPEST:
        row = await journal.store.run(identity.tenant, ancestor)
        ancestor = row.parent_run_id if row is not None else None
        depth += 1
    if depth > DEEPEST:
        raise NodeFailure(
            f"sub-workflows may be nested {DEEPEST} deep at most",
            code="recursion_limit_exceeded",
            retryable=False,
        )


async def _check_room(journal: Journal, tenant: str, root_run_id: str) -> None:
    """Fail a node whose next child goes beyond a limit. The append that creates it checks again."""
    limits = journal.quotas.creation_limits(tenant)
    root = await journal.store.run(tenant, root_run_id)
    if limits.descendants and root is not None and root.descendants >= limits.descendants:
        raise no_room(
            DescendantLimit(root_run_id, limit=limits.descendants, current=root.descendants)
        )
    if limits.active_runs:
        current = await journal.store.active_runs(tenant)
        if current >= limits.active_runs:
            raise no_room(too_many_active(limits.active_runs, current))
    try:
        await journal.quotas.check_write(tenant, "artifactBytes")
    except QuotaExceeded as refusal:
        raise no_room(refusal) from refusal


def no_room(refusal: DescendantLimit | QuotaExceeded) -> NodeFailure:
    """The failure of a node whose child was refused. A quota becomes free, so it may be tried again."""
    return NodeFailure(
        refusal.message,
        code=refusal.code,
        retryable=isinstance(refusal, QuotaExceeded),
        details=dict(refusal.details),
    )


def _inherited(state: RunState, compiled: Compiled) -> JsonObject:
    if compiled.configurable_schema is not None:
        return {}
    return {name: v for name, v in state.configurable.items() if name not in _OWN_OPTIONS}


async def child_views(journal: Journal, state: RunState, node_id: str) -> tuple[ChildView, ...]:
    """The children that a node has dispatched, as they stand now."""
    return tuple(
        [
            await _view(journal, state.identity.tenant, run_id, workflow_id)
            for run_id, workflow_id in state.nodes[node_id].children
        ]
    )


async def _view(journal: Journal, tenant: str, run_id: str, workflow_id: str) -> ChildView:
    child = await journal.load(tenant, run_id)
    if child is None:
        raise NodeFailure(f"child run {run_id} is gone", code="child_failed", retryable=False)
    return ChildView(
        run_id=run_id,
        workflow_id=workflow_id,
        status=child.state.status,
        variables=visible_variables(child.state),
        error=child.state.error,
    )
