"""Compares two runs of a tenant, page by page, and finds where a run comes from."""

from __future__ import annotations

from itertools import islice

from wopr.engine.diff import event_diffs, is_same_event, same, state_diff
from wopr.engine.fold import fold_all
from wopr.engine.fold_agents import DISPATCH
from wopr.engine.state import RunState, initial
from wopr.fleet.observed_ids import is_observed_run
from wopr.protocol.documents import UNSET
from wopr.protocol.errors import NotFound
from wopr.protocol.events import RunEvent
from wopr.protocol.forks import Ancestry, AncestryParent, RunDiff
from wopr.runtime.active import ActiveRun
from wopr.runtime.forking import read_events
from wopr.runtime.journal import Journal

# What two runs are compared by is for those above too.
__all__ = ["HOST_ID", "MOST_DIFFS", "ancestry", "compare", "is_same_event", "same"]

MOST_DIFFS = 1000
HOST_ID = "wopr"


async def compare(journal: Journal, tenant: str, a: str, b: str) -> RunDiff:
    """How run `b` differs from run `a`; the same answer for the same two logs.

    The answer is `truncated` when a run has not ended or when there are more differences than
    `MOST_DIFFS`.
    """
    left, right = await _load(journal, tenant, a), await _load(journal, tenant, b)
    logs = [
        await read_events(journal, tenant, run_id, _compared(own.state, other.state))
        for run_id, own, other in ((a, left, right), (b, right, left))
    ]
    is_open = not (left.state.is_terminal and right.state.is_terminal)
    diffs = list(islice(event_diffs(*logs), MOST_DIFFS + 1))
    return RunDiff(
        a=a,
        b=b,
        diverged_at_seq=diffs[0].seq if diffs else None,
        event_diffs=diffs[:MOST_DIFFS],
        state_diff=state_diff(_at_end(left.state, logs[0]), _at_end(right.state, logs[1])),
        truncated=True if is_open or len(diffs) > MOST_DIFFS else UNSET,
    )


def _compared(own: RunState, other: RunState) -> int:
    """How many events of a run are compared: no more than a run that has not ended has so far."""
    end = own.next_sequence
    return end if other.is_terminal else min(end, other.next_sequence)


def _at_end(state: RunState, log: list[RunEvent]) -> RunState:
    if len(log) == state.next_sequence:
        return state
    return fold_all(initial(state.identity, state.graph), log)


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
