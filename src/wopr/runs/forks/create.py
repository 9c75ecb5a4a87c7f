"""Create forks: new runs that share the history of their source up to a sequence."""

from __future__ import annotations

from collections.abc import Collection

import msgspec
from msgspec.structs import replace

from wopr.engine.fold.fold import fold_all
from wopr.engine.limits import HostLimits
from wopr.engine.preview import forecast_branch, forecast_replay
from wopr.engine.replay import ReplayRecord
from wopr.engine.state import RunIdentity, RunState, initial_state
from wopr.process.settings import Settings
from wopr.protocol.documents import UNSET, JsonObject, Unset, is_object, to_millis
from wopr.protocol.errors import NotFound, Refused, Unprocessable
from wopr.protocol.events import RunEvent
from wopr.protocol.forks import Fork, ForkAccepted, ForkPreview, ForkRun, OptionsOverlay, Shift
from wopr.protocol.observed_ids import require_own_run
from wopr.runs.active import ActiveRun
from wopr.runs.append import EventBatch
from wopr.runs.definitions.library import CompiledWorkflow
from wopr.runs.journal import Journal
from wopr.runs.large_values import LargeValues
from wopr.runs.requests import check_overlay
from wopr.runs.sensitive_values import SensitiveValues
from wopr.security.api_keys import Principal
from wopr.store.port import RunRow, StoredEvent

# Number of events that one append copies. Other runs commit between the appends.
COPIED_AT_ONCE = 200
_EVENTS = msgspec.json.Decoder(RunEvent)


async def find_source(journal: Journal, tenant: str, run_id: str) -> RunRow | None:
    """Return the run to fork from; None once retention has deleted it.

    Raises `Conflict` for an observed run.
    """
    row = await journal.store.run(tenant, run_id)
    if row is None and not await journal.store.is_expired(tenant, run_id):
        raise NotFound(f"there is no run {run_id!r}")
    require_own_run(run_id)
    return row


async def check_fork(
    journal: Journal, run_id: str, request: ForkRun, principal: Principal, settings: Settings
) -> None:
    """Raise for changes that a branch may not make, and for values that the log has masked."""
    source = await find_source(journal, principal.tenant, run_id)
    if source is None:
        return
    [started] = await read_events(journal, principal.tenant, run_id, 1)
    compiled = await compiled_of(journal, principal.tenant, source)
    await check_overlay(
        request,
        started.payload,
        compiled,
        principal=principal,
        library=journal.library,
        settings=settings,
    )


async def require_source(journal: Journal, tenant: str, run_id: str, request: ForkRun) -> RunRow:
    """Return the run to fork from. Raises when it cannot be forked as requested."""
    row = await find_source(journal, tenant, run_id)
    if row is None:
        raise Unprocessable(
            f"Run {run_id} was deleted by retention: its log cannot be forked.",
            code="replay_memory_snapshot_unavailable",
            sourceRunId=run_id,
            fromSeq=first_new_sequence(request),
            reason="retention_expired",
        )
    if request.mode == "branch" and isinstance(request.from_seq, Unset):
        raise Refused("fromSeq is required for a branch", field="fromSeq")
    if request.mode == "replay" and not request.run_options_overlay.is_empty:
        raise Refused("a replay takes no runOptionsOverlay", field="runOptionsOverlay")
    if request.run_options_overlay.inputs and first_new_sequence(request):
        raise Refused(
            "Only a branch from fromSeq 0 can change inputs.",
            field="runOptionsOverlay.inputs",
        )
    if first_new_sequence(request) > row.last_sequence + 1:
        raise Unprocessable(
            f"fromSeq is {first_new_sequence(request)}: it must be at most {row.last_sequence + 1}, "
            "the number of events of the run",
            code="invalid_from_seq",
            field="fromSeq",
            lastSequence=row.last_sequence,
        )
    return row


def first_new_sequence(request: ForkRun) -> int:
    """Return the first sequence that is not copied."""
    return 0 if isinstance(request.from_seq, Unset) else request.from_seq


async def read_events(journal: Journal, tenant: str, run_id: str, end: int) -> list[RunEvent]:
    """Return the events of a run before `end`, with the values that they refer to."""
    stored = await read_log(journal, tenant, run_id, end)
    return await journal.decode_events(tenant, run_id, stored, LargeValues())


async def read_log(journal: Journal, tenant: str, run_id: str, end: int) -> list[StoredEvent]:
    """Return the events of a run before `end`, as they are stored."""
    events: list[StoredEvent] = []
    while len(events) < end:
        page = await journal.store.read(tenant, run_id, len(events), min(end - len(events), 1000))
        if not page:
            break
        events += page
    return events


async def compiled_of(journal: Journal, tenant: str, source: RunRow) -> CompiledWorkflow:
    """Return the workflow version of the source."""
    return await journal.library.version(tenant, source.workflow_id, source.workflow_version)


async def open_fork(journal: Journal, tenant: str, source: RunRow, fork: Fork) -> ActiveRun:
    """Return a fork in memory, before its history is copied."""
    compiled = await compiled_of(journal, tenant, source)
    identity = RunIdentity(
        run_id=journal.new_id(),
        tenant=tenant,
        workflow_id=source.workflow_id,
        workflow_version=source.workflow_version,
        root_run_id=source.root_run_id or source.run_id,
        fork=fork,
    )
    return ActiveRun(initial_state(identity, compiled.graph), compiled, SensitiveValues(), None)


async def make_fork(journal: Journal, tenant: str, source: RunRow, request: ForkRun) -> Fork:
    """Return the facts about its source that are stored with a fork.

    A fork of a branch inherits the changes that the branch stored outside of its log.
    """
    before = _fork_of_source(source)
    # The first event has the inputs. The stored overlay is redacted like an event.
    options = msgspec.to_builtins(replace(request.run_options_overlay, inputs={}))
    overlay = msgspec.convert(journal.redactors.of_tenant(tenant).json(options), OptionsOverlay)
    shifts = [] if before is None else before.shifts
    start = first_new_sequence(request)
    if request.mode == "branch":
        await _require_no_memories(journal, tenant, source.run_id, start)
        shifts = [Shift(before=min(start, shift.before), by_ms=shift.by_ms) for shift in shifts]
        shifts += await _shift_to_now(journal, tenant, source, start, shifts)
    return Fork(
        source_run_id=source.run_id,
        mode=request.mode,
        from_seq=start,
        overlay=overlay if before is None else overlay.merge_over(before.overlay),
        origin_run_id=_origin(source.run_id, before) if request.mode == "replay" else UNSET,
        shifts=shifts,
    )


def _fork_of_source(source: RunRow) -> Fork | None:
    """Return the fork data of the source, if it is a fork itself."""
    return None if source.fork is None else msgspec.json.decode(source.fork, type=Fork)


def _origin(source_run_id: str, before: Fork | None) -> str:
    """Return the run id that payloads of the source use. A replay keeps that of its source."""
    if before is None or isinstance(before.origin_run_id, Unset):
        return source_run_id
    return before.origin_run_id


async def _require_no_memories(journal: Journal, tenant: str, run_id: str, end: int) -> None:
    """Refuse a branch whose history wrote memories, because their old state is not stored."""
    start = 0
    while start < end:
        page = await journal.store.read(tenant, run_id, start, min(end - start, 1000))
        for event in page:
            if event.type == "memory.written":
                raise Unprocessable(
                    f"The run wrote to its memory at sequence {event.sequence}. Branch before it.",
                    code="replay_memory_snapshot_unavailable",
                    sourceRunId=run_id,
                    fromSeq=end,
                    reason="event_log_unavailable",
                    oldestAvailableIdx=event.sequence,
                )
        if not page:
            return
        start = page[-1].sequence + 1


async def _shift_to_now(
    journal: Journal, tenant: str, source: RunRow, start: int, shifts: list[Shift]
) -> list[Shift]:
    """Return the shift by the time between the last copied event and now, as a list."""
    if not start:
        return []
    [last] = await journal.store.read(tenant, source.run_id, start - 1, 1)
    at = to_millis(_EVENTS.decode(last.body).timestamp) + sum(shift.by_ms for shift in shifts)
    return [Shift(before=start, by_ms=max(journal.now() - at, 0))]


async def start_fork(
    journal: Journal, tenant: str, source: RunRow, fork: Fork, inputs: JsonObject
) -> tuple[ActiveRun, EventBatch]:
    """Return a fork with its first event, to be committed. The rest of its history follows."""
    run = await open_fork(journal, tenant, source, fork)
    first = await read_events(journal, tenant, fork.source_run_id, 1)

    def begin() -> EventBatch:
        batch = journal.batch(run)
        if fork.from_seq or fork.mode == "replay":
            copy_events(batch, first, {})
        else:
            batch.add("run.started", branch_payload(first[0], fork, inputs))
        return batch

    return run, await journal.library.subprocesses.run(tenant, begin)


async def preview_fork(journal: Journal, tenant: str, run_id: str, request: ForkRun) -> ForkPreview:
    """Return what a fork would do, without doing it. Raises like the fork itself."""
    source = await require_source(journal, tenant, run_id, request)
    fork = await make_fork(journal, tenant, source, request)
    before = _fork_of_source(source)
    # The log of the source has its own times, without the gap before the branch.
    shifts = [] if before is None else before.shifts
    as_branch = replace(fork, mode="branch", shifts=shifts)
    run = await open_fork(journal, tenant, source, as_branch)
    events = await read_events(journal, tenant, run_id, source.last_sequence + 1)
    if fork.mode == "branch" and not fork.from_seq:
        inputs = request.run_options_overlay.inputs
        events[0] = replace(events[0], payload=branch_payload(events[0], fork, inputs))
    effectful = {node_id for node_id in run.compiled.types if run.compiled.may_have_effect(node_id)}
    return await journal.library.subprocesses.run(
        tenant, lambda: _preview(events, run.state, fork, effectful, journal.limits)
    )


def copy_events(batch: EventBatch, events: list[RunEvent], ids: dict[str, str]) -> None:
    """Copy events with the same sequences, payloads and times, and with new ids."""
    for event in events:
        batch.copy(event, ids)


def branch_payload(source: RunEvent, fork: Fork, inputs: JsonObject) -> JsonObject:
    """Return the payload of `run.started` for a branch from 0, with its changes."""
    payload: JsonObject = dict(source.payload)
    if inputs:
        payload["inputs"] = {**payload.get("inputs", {}), **inputs}
    overlay = fork.overlay
    if overlay.configurable:
        payload["configurable"] = {**payload.get("configurable", {}), **overlay.configurable}
    if overlay.tags:
        payload["tags"] = overlay.tags
    if overlay.metadata:
        payload["metadata"] = {**payload.get("metadata", {}), **overlay.metadata}
    return payload


def fork_accepted(identity: RunIdentity, fork: Fork) -> ForkAccepted:
    """Return the response to a fork."""
    return ForkAccepted(
        run_id=identity.run_id,
        source_run_id=fork.source_run_id,
        from_seq=fork.from_seq,
        mode=fork.mode,
        status="running",
        events_url=f"/v1/runs/{identity.run_id}/events",
    )


def _preview(
    events: list[RunEvent],
    before: RunState,
    fork: Fork,
    effectful: Collection[str],
    limits: HostLimits,
) -> ForkPreview:
    """Return what a fork would copy, run again and ask again."""
    is_branch = fork.mode == "branch"
    # A fork from 0 copies the first event too.
    copied = max(fork.from_seq, 1)
    state = fold_all(before, events[:copied])
    record = [event for event in ReplayRecord(events).events if event.sequence >= copied]
    expected = (
        forecast_branch(state, record, limits)
        if is_branch
        else forecast_replay(state, record, limits, effectful)
    )
    keys = [_key(event) for event in events if event.type == "interrupt.requested"]
    kept = [key for key in keys if key in state.answers] if is_branch else keys
    return ForkPreview(
        source_run_id=fork.source_run_id,
        mode=fork.mode,
        from_seq=fork.from_seq,
        copied_events=fork.from_seq,
        kept_nodes=[
            name
            for name, node in state.nodes.items()
            if node.status == "completed" and name not in expected.executed
        ],
        rerun_nodes=expected.executed,
        possible_nodes=expected.possible,
        effects_again=[n for n in expected.executed if n in effectful] if is_branch else [],
        possible_effects=[n for n in expected.possible if n in effectful] if is_branch else [],
        answers_kept=kept,
        answers_asked_again=[key for key in keys if key not in kept],
    )


def _key(event: RunEvent) -> str:
    return str(event.payload.get("key", "")) if is_object(event.payload) else ""
