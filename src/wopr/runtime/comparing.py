"""Compares two runs of a tenant, page by page, and finds where a run comes from."""

from __future__ import annotations

from wopr.engine.diff import event_diffs, is_same_event, same, state_diff
from wopr.engine.fold_agents import DISPATCH
from wopr.fleet.observed_ids import is_observed_run
from wopr.protocol.errors import NotFound
from wopr.protocol.forks import Ancestry, AncestryParent, RunDiff
from wopr.runtime.active import ActiveRun
from wopr.runtime.forking import read_events
from wopr.runtime.journal import Journal

# What two runs are compared by is for those above too.
__all__ = ["HOST_ID", "MOST_DIFFS", "ancestry", "compare", "is_same_event", "same"]

MOST_DIFFS = 1000
HOST_ID = "wopr"


async def compare(journal: Journal, tenant: str, a: str, b: str) -> RunDiff:
    """How run `b` differs from run `a`; the same answer for the same two logs."""
    left, right = await _load(journal, tenant, a), await _load(journal, tenant, b)
    diffs = event_diffs(
        await read_events(journal, tenant, a, left.state.next_sequence),
        await read_events(journal, tenant, b, right.state.next_sequence),
    )
    shown = [diff for _, diff in zip(range(MOST_DIFFS + 1), diffs, strict=False)]
    answer = RunDiff(
        a=a,
        b=b,
        diverged_at_seq=shown[0].seq if shown else None,
        event_diffs=shown[:MOST_DIFFS],
        state_diff=state_diff(left.state, right.state),
    )
    if len(shown) <= MOST_DIFFS:
        return answer
    return RunDiff(
        a=a,
        b=b,
        diverged_at_seq=answer.diverged_at_seq,
        event_diffs=answer.event_diffs,
        state_diff=answer.state_diff,
        truncated=True,
    )


async def _load(journal: Journal, tenant: str, run_id: str) -> ActiveRun:
    run = await journal.load(tenant, run_id)
    if run is None:
        raise NotFound(f"there is no run {run_id!r}")
    return run


async def ancestry(journal: Journal, tenant: str, run_id: str) -> Ancestry:
    """The run that started this one, if another did."""
    if is_observed_run(run_id) and await journal.store.run(tenant, run_id) is not None:
        return Ancestry(run_id=run_id, host_id=HOST_ID, parent=None)
    run = await _load(journal, tenant, run_id)
    identity = run.state.identity
    if identity.parent_run_id is None:
        return Ancestry(run_id=run_id, host_id=HOST_ID, parent=None)
    parent = await journal.load(tenant, identity.parent_run_id)
    node = None
    if parent is not None:
        node = parent.compiled.graph.nodes.get(identity.parent_node_id or "")
    is_dispatch = node is not None and node.type_id == DISPATCH
    return Ancestry(
        run_id=run_id,
        host_id=HOST_ID,
        parent=AncestryParent(
            run_id=identity.parent_run_id,
            host_id=HOST_ID,
            cause="core.dispatch" if is_dispatch else "core.subWorkflow",
        ),
    )
