"""Judges: a workflow that reads the logs of finished runs and annotates them as an agent.

The store has the whole state of a judge, so a restart continues where the last process stopped. The
id of a judging run is stored before the run starts, and its annotation is stored in one transaction
with the new state, so a run is judged once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, Protocol, cast

import msgspec
import structlog
from msgspec.structs import replace as with_fields

from wopr.feedback.annotations import AnnotationStore, Annotator, Author
from wopr.feedback.selection import newest_runs, run_filter
from wopr.feedback.snapshots import RunSnapshots
from wopr.process.background import BackgroundTask
from wopr.protocol.documents import UNSET, Json, JsonObject, Unset, encode, to_iso
from wopr.protocol.errors import NotFound, Refused, SequenceTaken, Unavailable, WoprError
from wopr.protocol.resources.annotations import KINDS_WITH_VALUE, SIGNAL_KINDS, AnnotationCreate
from wopr.protocol.resources.reviews import CreateJudge, Judge, JudgedRun, JudgedState
from wopr.protocol.runs import TERMINAL, CreateRun, Owner
from wopr.runs.commands import Commands
from wopr.runs.definitions.library import Library
from wopr.runs.requests import NewRun, check_inputs, check_test_hooks
from wopr.store.port import SHARED, AgentManifests, RunRow, StoredEvent
from wopr.store.port.feedback import JudgedRow, JudgeRow
from wopr.store.port.feedback import Judges as JudgeRows

# Limits of the inputs of a judging run, because they are the first event of its log.
MAX_EVENTS: Final = 500
MAX_EVENT_BYTES: Final = 512 * 1024
MAX_SNAPSHOT_BYTES: Final = 512 * 1024
# The content of the judged run is untrusted.
UNTRUSTED: Final = {"contentTrust": "untrusted"}

_MISSING: Final = object()


class JudgeSkipped(Exception):
    """The judge gives no annotation for this run. The message is the reason."""


class InvalidJudgeOutput(Exception):
    """The outputs of the judging run are not a valid signal. The message is the reason."""


def first_events(events: Sequence[StoredEvent]) -> list[StoredEvent]:
    """Return the first events of a log up to the limits of number and size."""
    chosen: list[StoredEvent] = []
    size = 0
    for event in events[:MAX_EVENTS]:
        size += len(event.body)
        if size > MAX_EVENT_BYTES:
            break
        chosen.append(event)
    return chosen


def judge_inputs(
    snapshot: bytes, events: Sequence[StoredEvent], length: int, mapping: Mapping[str, str]
) -> JsonObject:
    """Return the inputs of a judging run: the run and its log, or the mapped parts of these.

    If a path has no value, its input is left out, so that the workflow's default applies.
    """
    given: JsonObject = {
        "run": msgspec.json.decode(snapshot),
        "events": [msgspec.json.decode(event.body) for event in events],
        "eventsLeftOut": length - len(events),
    }
    if mapping:
        found = {name: _value_at(given, path) for name, path in mapping.items()}
        given = {name: value for name, value in found.items() if value is not _MISSING}
    return {**given, **UNTRUSTED}


def _value_at(value: Json, path: str) -> Json:
    for step in path.split("."):
        if isinstance(value, dict):
            value = cast("JsonObject", value).get(step, _MISSING)
        elif isinstance(value, list):
            value = _list_item(cast("list[object]", value), step)
        else:
            return _MISSING
    return value


def _list_item(items: list[object], step: str) -> object:
    is_index = step.isascii() and step.isdecimal() and len(step) < 10
    return items[int(step)] if is_index and int(step) < len(items) else _MISSING


def annotation_of(outputs: Json) -> AnnotationCreate:
    """Return the annotation in the outputs of a judging run.

    The outputs have one signal: `rating`, `correction`, `label`, or `flag` as true or false, and
    optionally a `note`. They may be nested under the name of a single last node.
    """
    members = _output_members(outputs)
    kinds = [kind for kind in SIGNAL_KINDS if members.get(kind) not in (None, False)]
    if not kinds and members.get("flag") is False:
        raise JudgeSkipped("the judge did not flag the run")
    if len(kinds) != 1:
        raise InvalidJudgeOutput(
            f"the judge's outputs must have exactly one of {', '.join(SIGNAL_KINDS)}, "
            f"not {', '.join(kinds) or 'none'}"
        )
    kind = kinds[0]
    if kind == "flag" and members["flag"] is not True:
        raise InvalidJudgeOutput("the judge's flag must be true or false")
    signal: JsonObject = {"kind": kind}
    if kind in KINDS_WITH_VALUE:
        signal[kind] = members[kind]
    document = {"signal": signal}
    if members.get("note") is not None:
        document["note"] = members["note"]
    try:
        return msgspec.convert(document, AnnotationCreate)
    except msgspec.ValidationError as fault:
        raise InvalidJudgeOutput(f"the judge's outputs are not a valid signal: {fault}") from fault


def _output_members(outputs: Json) -> JsonObject:
    members = cast("JsonObject", outputs) if isinstance(outputs, dict) else {}
    nested = list(members.values())
    if len(nested) == 1 and isinstance(nested[0], dict):
        return cast("JsonObject", nested[0])
    return members


# Number of concurrent judging runs of one judge.
MAX_CONCURRENT_RUNS = 8
MAX_JUDGES = 1000


class JudgeStore(AnnotationStore, JudgeRows, AgentManifests, Protocol):
    """The part of the store that judges use."""


class _EndedRun(msgspec.Struct, rename="camel"):
    """The part of an ended judging run's snapshot that is read."""

    outputs: Json = None
    error: JsonObject = {}


class Judges:
    """Creates judges and advances them step by step."""

    def __init__(
        self,
        store: JudgeStore,
        annotator: Annotator,
        *,
        starter: JudgeRunStarter,
        snapshots: RunSnapshots,
        now: Callable[[], int],
        new_id: Callable[[], str],
    ) -> None:
        self._store = store
        self._annotator = annotator
        self._starter = starter
        self._snapshots = snapshots
        self._now = now
        self._new_id = new_id

    async def create(self, tenant: str, creator: str, request: CreateJudge) -> Judge:
        """Create a judge. The runs are chosen now; `read` returns their states."""
        await self._annotator.check_quota(tenant)
        await self._require(tenant, request)
        now = self._now()
        redact = partial(self._annotator.redact, tenant)
        judge = Judge(
            judge_id=self._new_id(),
            workflow_id=request.workflow_id,
            agent_id=request.agent_id,
            state="running",
            created_at=to_iso(now),
            created_by=creator,
            counts={},
            input_mapping={
                redact(name): redact(path) for name, path in request.input_mapping.items()
            },
            filter=request.filter,
        )
        items = [
            JudgedRow(run_id=run, state="pending") for run in await self._runs(tenant, request)
        ]
        row = JudgeRow(
            judge_id=judge.judge_id, created_at=now, body=encode(judge), is_done=not items
        )
        await self._store.put_judge(tenant, row, items)
        return await self.read(tenant, judge.judge_id, after=-1, limit=0)

    async def _require(self, tenant: str, request: CreateJudge) -> None:
        """Raise `NotFound` for an agent or a workflow that the tenant does not have."""
        for owner in (tenant, SHARED):
            if await self._store.agent(owner, request.agent_id, None) is not None:
                break
        else:
            raise NotFound(f"there is no agent {request.agent_id!r}", field="agentId")
        for owner in (tenant, SHARED):
            if await self._store.workflow(owner, request.workflow_id, None) is not None:
                return
        raise NotFound(f"there is no workflow {request.workflow_id!r}", field="workflowId")

    async def _runs(self, tenant: str, request: CreateJudge) -> Sequence[str]:
        if not isinstance(request.run_ids, Unset):
            return list(dict.fromkeys(request.run_ids))
        if isinstance(request.filter, Unset):
            return []
        where = run_filter(request.filter, partial(self._annotator.redact, tenant))
        return await newest_runs(self._store, tenant, where, request.most_runs)

    async def read(self, tenant: str, judge_id: str, *, after: int, limit: int) -> Judge:
        """Return a judge with its counts and a page of its judged runs."""
        row = await self._store.judge(tenant, judge_id)
        if row is None:
            raise NotFound(f"there is no judge {judge_id[:128]!r}")
        judge = _decode_judge(row)
        counts = await self._store.judged_run_counts(tenant, judge_id)
        states: dict[JudgedState, int] = {
            state: counts.get(state, 0)
            for state in ("pending", "running", "annotated", "skipped", "failed")
        }
        items = await self._store.judged_runs(tenant, judge_id, after, limit + 1) if limit else []
        more = len(items) > limit > 0
        return with_fields(
            judge,
            state="done" if row.is_done else "running",
            counts=states,
            items=[_judged_run(item) for item in items[:limit]] if limit else UNSET,
            next_cursor=str(items[limit - 1].place) if more else UNSET,
        )

    async def unfinished_judges(self) -> list[tuple[str, str]]:
        """Return `(tenant, judge_id)` of the unfinished judges."""
        return await self._store.open_judges(MAX_JUDGES)

    async def step(self, tenant: str, judge_id: str) -> bool:
        """Advance a judge: read ended judging runs, start pending ones. False if nothing changed."""
        row = await self._store.judge(tenant, judge_id)
        if row is None:
            return False
        judge = _decode_judge(row)
        running = await self._store.judged_runs(
            tenant, judge_id, -1, MAX_CONCURRENT_RUNS, "running"
        )
        moved = [await self._finish_if_ended(tenant, judge, item) for item in running]
        free_slots = MAX_CONCURRENT_RUNS - len(running) + sum(moved)
        pending = await self._store.judged_runs(tenant, judge_id, -1, free_slots, "pending")
        for item in pending:
            await self._begin(tenant, judge, item)
        if not running and not pending:
            await self._store.close_judge(tenant, judge_id)
        return any(moved) or bool(pending) or not running

    async def _begin(self, tenant: str, judge: Judge, item: JudgedRow) -> None:
        """Store the id of the judging run first, so that a restart uses the same id."""
        named = replace(item, state="running", judge_run_id=self._new_id())
        if await self._store.set_judged_state(tenant, judge.judge_id, named):
            await self._launch(tenant, judge, named)

    async def _launch(self, tenant: str, judge: Judge, item: JudgedRow) -> None:
        try:
            inputs = await self._inputs(tenant, judge, item)
            metadata: JsonObject = {
                "judgeId": judge.judge_id,
                "judgedRunId": item.run_id,
                "agentId": judge.agent_id,
                "contentTrust": "untrusted",
            }
            await self._starter.start(tenant, item.judge_run_id or "", judge, inputs, metadata)
        except JudgeSkipped as reason:
            unused = replace(item, judge_run_id=None)
            await self._end(tenant, judge, unused, "skipped", str(reason))
        except Unavailable:
            raise
        except WoprError as error:
            unused = replace(item, judge_run_id=None)
            await self._end(tenant, judge, unused, "failed", error.message)

    async def _inputs(self, tenant: str, judge: Judge, item: JudgedRow) -> JsonObject:
        run = await self._store.run(tenant, item.run_id)
        if run is None:
            raise JudgeSkipped("there is no such run")
        if run.status not in TERMINAL:
            raise JudgeSkipped(f"the run has not ended: it is {run.status}")
        if run.workflow_id == judge.workflow_id:
            raise JudgeSkipped("the run belongs to the judge's own workflow")
        snapshot = await self._snapshots.read_whole(tenant, run)
        if len(snapshot) > MAX_SNAPSHOT_BYTES:
            raise JudgeSkipped(f"the run's snapshot is over {MAX_SNAPSHOT_BYTES} bytes")
        events = await self._store.read(tenant, item.run_id, 0, MAX_EVENTS)
        return judge_inputs(
            snapshot, first_events(events), run.last_sequence + 1, judge.input_mapping
        )

    async def _finish_if_ended(self, tenant: str, judge: Judge, item: JudgedRow) -> bool:
        """Read the outputs of a judging run that has ended; False if it has not."""
        run = await self._store.run(tenant, item.judge_run_id or "")
        if run is None:
            await self._launch(tenant, judge, item)
            return True
        if run.status not in TERMINAL:
            return False
        ended = msgspec.json.decode(await self._snapshots.read_whole(tenant, run), type=_EndedRun)
        if run.status != "completed":
            ending = "failed" if run.status == "failed" else f"was {run.status}"
            reason = f"the judging run {ending}: {ended.error.get('message', 'no reason')}"
            await self._end(tenant, judge, item, "failed", reason)
            return True
        await self._annotate(tenant, judge, item, ended.outputs)
        return True

    async def _annotate(self, tenant: str, judge: Judge, item: JudgedRow, outputs: Json) -> None:
        judged: RunRow | None = await self._store.run(tenant, item.run_id)
        try:
            if judged is None:
                raise JudgeSkipped("the run has been deleted")
            request = annotation_of(outputs)
            author = Author(actor=judge.agent_id, source="agent")
            prepared = await self._annotator.prepare(tenant, judged, author, request)
            done = replace(item, state="annotated", annotation_id=prepared.row.annotation_id)
            if await self._store.set_judged_state(tenant, judge.judge_id, done, prepared.row):
                self._annotator.publisher.publish(prepared.annotation)
        except (JudgeSkipped, NotFound) as reason:
            await self._end(tenant, judge, item, "skipped", str(reason))
        except (InvalidJudgeOutput, Refused) as reason:
            await self._end(tenant, judge, item, "failed", str(reason))

    async def _end(
        self, tenant: str, judge: Judge, item: JudgedRow, state: JudgedState, reason: str
    ) -> None:
        redacted = self._annotator.redact(tenant, reason)
        await self._store.set_judged_state(
            tenant, judge.judge_id, replace(item, state=state, reason=redacted)
        )


def _decode_judge(row: JudgeRow) -> Judge:
    return msgspec.json.decode(row.body, type=Judge)


def _judged_run(row: JudgedRow) -> JudgedRun:
    state: JudgedState = row.state  # type: ignore[assignment]  # only these states are stored
    return JudgedRun(
        run_id=row.run_id,
        state=state,
        judge_run_id=row.judge_run_id or UNSET,
        annotation_id=row.annotation_id or UNSET,
        reason=row.reason or UNSET,
    )


# The interval of checks grows from the shortest to the longest while nothing changes.
SHORTEST_SECONDS = 0.05
LONGEST_SECONDS = 2.0
IDLE_SECONDS = 30.0

log = structlog.get_logger("wopr.judges")


class JudgeRunStarter:
    """Starts judging runs on behalf of the judge's creator."""

    def __init__(self, commands: Commands, library: Library) -> None:
        self._commands = commands
        self._library = library

    async def start(
        self, tenant: str, run_id: str, judge: Judge, inputs: JsonObject, metadata: JsonObject
    ) -> None:
        """Start a run with this id, unless it already exists.

        Raises `WoprError` if the workflow does not accept these inputs.
        """
        compiled = await self._library.newest(tenant, judge.workflow_id)
        check_test_hooks(compiled)
        check_inputs(compiled, inputs)
        request = CreateRun(
            workflow_id=judge.workflow_id, inputs=inputs, tags=["judge"], metadata=metadata
        )
        owner = Owner(tenant=tenant, principal=judge.created_by)
        new = NewRun(request=request, compiled=compiled, owner=owner, run_id=run_id)
        try:
            await self._commands.create(new)
        except SequenceTaken:
            log.info("judging run exists already", run_id=run_id)


class JudgeTask:
    """The background task that advances judges until all are done."""

    def __init__(self, judges: Judges) -> None:
        self._judges = judges
        self._pause = SHORTEST_SECONDS
        self.task = BackgroundTask("judges", self._round, max_retry_seconds=LONGEST_SECONDS)

    def wake(self) -> None:
        """Start a new judge at once."""
        self.task.trigger()

    async def _round(self) -> float:
        """Advance every unfinished judge; return the seconds until the next round."""
        unfinished_judges = await self._judges.unfinished_judges()
        moved = [await self._step(tenant, judge_id) for tenant, judge_id in unfinished_judges]
        self._pause = SHORTEST_SECONDS if any(moved) else min(self._pause * 2, LONGEST_SECONDS)
        return self._pause if unfinished_judges else IDLE_SECONDS

    async def _step(self, tenant: str, judge_id: str) -> bool:
        try:
            return await self._judges.step(tenant, judge_id)
        except WoprError as error:
            log.error("judge failed", judge_id=judge_id, code=error.code, message=str(error))
        except Exception as error:  # the outer edge of a task
            log.error("judge failed", judge_id=judge_id, exc_info=error)
        return False
