"""Compares two runs of a tenant, and finds the parent of a run."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from wopr.engine.diff import event_diffs, is_same_event, state_diff
from wopr.engine.fold.agents import DISPATCH
from wopr.engine.fold.fold import fold_all
from wopr.engine.state import RunState, initial_state
from wopr.process.tenant_slots import run_by_size
from wopr.protocol.documents import UNSET, JsonObject, encode
from wopr.protocol.errors import NotFound
from wopr.protocol.events import RunEvent
from wopr.protocol.forks import Ancestry, AncestryParent, EventDiff, RunDiff
from wopr.protocol.observed_ids import is_observed_run
from wopr.runs.active import ActiveRun
from wopr.runs.forks.create import read_log
from wopr.runs.journal import Journal
from wopr.runs.large_values import LargeValues
from wopr.store.port import StoredEvent

# `is_same_event` is exported for the console, which does not import the engine.
__all__ = ["HOST_ID", "MAX_DIFFS", "ancestry", "compare", "is_same_event"]

MAX_DIFFS = 1000
# The most bytes of the events and of the values in a comparison.
MAX_EVENT_BYTES = 4 * 1024 * 1024
MAX_STATE_BYTES = 2 * 1024 * 1024
HOST_ID = "wopr"
_EVENTS = msgspec.json.Decoder(RunEvent)


async def compare(journal: Journal, tenant: str, a: str, b: str) -> RunDiff:
    """Return how run `b` differs from run `a`. Equal logs always give the same result.

    It is `truncated` when a run has not ended, when there are more differences than
    `MAX_DIFFS`, or when events or values are left out because they have too many bytes.
    """
    left, right = await _load(journal, tenant, a), await _load(journal, tenant, b)
    # Equal values have equal references, so events are compared as they are stored.
    logs = [
        await read_log(journal, tenant, run_id, _compared_count(own.state, other.state))
        for run_id, own, other in ((a, left, right), (b, right, left))
    ]
    ends = [
        await _end_state(journal, run, log) for run, log in zip((left, right), logs, strict=True)
    ]
    is_open = not (left.state.is_terminal and right.state.is_terminal)
    size = left.log_bytes + right.log_bytes
    return await run_by_size(size, lambda: _diff(a, b, logs, ends, is_open))


def _diff(
    a: str,
    b: str,
    logs: Sequence[list[StoredEvent]],
    ends: Sequence[RunState],
    is_open: bool,
) -> RunDiff:
    is_truncated = is_open
    events: list[EventDiff] = []
    bytes_left = MAX_EVENT_BYTES
    decoded = [[_EVENTS.decode(event.body) for event in log] for log in logs]
    for found in event_diffs(*decoded):
        if len(events) == MAX_DIFFS:
            is_truncated = True
            break
        size = len(encode(found))
        if size > bytes_left:
            # The difference is listed without its events.
            is_truncated = True
            found = EventDiff(seq=found.seq, op=found.op)
        else:
            bytes_left -= size
        events.append(found)
    values, is_complete = _limit_values(state_diff(*ends), MAX_STATE_BYTES)
    return RunDiff(
        a=a,
        b=b,
        diverged_at_seq=events[0].seq if events else None,
        event_diffs=events,
        state_diff=values,
        truncated=True if is_truncated or not is_complete else UNSET,
    )


def _limit_values(found: JsonObject, bytes_left: int) -> tuple[JsonObject, bool]:
    """Return the different values that fit into `bytes_left`, with {} in place of the others."""
    is_complete = True
    for section in found.values():
        for name, value in section.items():
            size = len(encode(value))
            if size > bytes_left:
                section[name] = {}
                is_complete = False
            else:
                bytes_left -= size
    return found, is_complete


def _compared_count(own: RunState, other: RunState) -> int:
    """Return how many events of a run are compared: at most as many as an unfinished run has."""
    end = own.next_sequence
    return end if other.is_terminal else min(end, other.next_sequence)


async def _end_state(journal: Journal, run: ActiveRun, log: list[StoredEvent]) -> RunState:
    """Return the state after these events of a run, with references to large values."""
    state, large_values = run.state, run.large_values
    if len(log) != state.next_sequence:
        identity, large_values = state.identity, LargeValues()
        events = await journal.decode_events(identity.tenant, identity.run_id, log, large_values)
        state = fold_all(initial_state(identity, state.graph), events)
    return large_values.state_with_references(state)


async def _load(journal: Journal, tenant: str, run_id: str) -> ActiveRun:
    run = await journal.load(tenant, run_id)
    if run is None:
        raise NotFound(f"there is no run {run_id!r}")
    return run


async def ancestry(journal: Journal, tenant: str, run_id: str) -> Ancestry:
    """Return the run that started this one, if any."""
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
