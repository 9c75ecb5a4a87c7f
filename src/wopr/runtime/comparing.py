"""Compares two runs of a tenant, page by page, and finds where a run comes from."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from wopr.engine.diff import event_diffs, is_same_event, same, state_diff
from wopr.engine.fold import fold_all
from wopr.engine.fold_agents import DISPATCH
from wopr.engine.state import RunState, initial
from wopr.fleet.observed_ids import is_observed_run
from wopr.protocol.documents import UNSET, JsonObject, encode
from wopr.protocol.errors import NotFound
from wopr.protocol.events import RunEvent
from wopr.protocol.forks import Ancestry, AncestryParent, EventDiff, RunDiff
from wopr.runtime.active import ActiveRun
from wopr.runtime.forking import read_log
from wopr.runtime.heavy_reads import off_loop
from wopr.runtime.journal import Journal
from wopr.runtime.spilling import Spilled
from wopr.store.port import StoredEvent

# What two runs are compared by is for those above too.
__all__ = ["HOST_ID", "MOST_DIFFS", "ancestry", "compare", "is_same_event", "same"]

MOST_DIFFS = 1000
# The most bytes of the events of a comparison, and of its values.
MOST_EVENT_BYTES = 4 * 1024 * 1024
MOST_STATE_BYTES = 2 * 1024 * 1024
HOST_ID = "wopr"
_EVENTS = msgspec.json.Decoder(RunEvent)


async def compare(journal: Journal, tenant: str, a: str, b: str) -> RunDiff:
    """How run `b` differs from run `a`; the same answer for the same two logs.

    The answer is `truncated` when a run has not ended, when there are more differences than
    `MOST_DIFFS`, or when events or values are left out because they have too many bytes.
    """
    left, right = await _load(journal, tenant, a), await _load(journal, tenant, b)
    # Equal values have equal references, so events are compared as they are stored.
    logs = [
        await read_log(journal, tenant, run_id, _compared(own.state, other.state))
        for run_id, own, other in ((a, left, right), (b, right, left))
    ]
    ends = [await _at_end(journal, run, log) for run, log in zip((left, right), logs, strict=True)]
    is_open = not (left.state.is_terminal and right.state.is_terminal)
    size = left.log_bytes + right.log_bytes
    return await off_loop(size, lambda: _diff(a, b, logs, ends, is_open))


def _diff(
    a: str,
    b: str,
    logs: Sequence[list[StoredEvent]],
    ends: Sequence[RunState],
    is_open: bool,
) -> RunDiff:
    is_cut = is_open
    events: list[EventDiff] = []
    room = MOST_EVENT_BYTES
    decoded = [[_EVENTS.decode(event.body) for event in log] for log in logs]
    for found in event_diffs(*decoded):
        if len(events) == MOST_DIFFS:
            is_cut = True
            break
        size = len(encode(found))
        if size > room:
            # The difference is named, without the events.
            is_cut = True
            found = EventDiff(seq=found.seq, op=found.op)
        else:
            room -= size
        events.append(found)
    values, has_all = _within(state_diff(*ends), MOST_STATE_BYTES)
    return RunDiff(
        a=a,
        b=b,
        diverged_at_seq=events[0].seq if events else None,
        event_diffs=events,
        state_diff=values,
        truncated=True if is_cut or not has_all else UNSET,
    )


def _within(found: JsonObject, room: int) -> tuple[JsonObject, bool]:
    """The differing values that fit into so many bytes; an empty object stands for the others."""
    has_all = True
    for section in found.values():
        for name, value in section.items():
            size = len(encode(value))
            if size > room:
                section[name] = {}
                has_all = False
            else:
                room -= size
    return found, has_all


def _compared(own: RunState, other: RunState) -> int:
    """How many events of a run are compared: no more than a run that has not ended has so far."""
    end = own.next_sequence
    return end if other.is_terminal else min(end, other.next_sequence)


async def _at_end(journal: Journal, run: ActiveRun, log: list[StoredEvent]) -> RunState:
    """The state after these events of a run, with references to large values."""
    state, spilled = run.state, run.spilled
    if len(log) != state.next_sequence:
        identity, spilled = state.identity, Spilled()
        events = await journal.whole(identity.tenant, identity.run_id, log, spilled)
        state = fold_all(initial(identity, state.graph), events)
    return spilled.shown_state(state)


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
