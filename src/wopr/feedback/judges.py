"""Judges: a workflow that reads the logs of finished runs and annotates them as an agent.

All that a judge has done and has still to do is in the store, so a restart goes on where the
last process stopped. A judging run has its name before it starts, and its annotation is stored in
one transaction with the note that it was: neither happens twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import msgspec
from msgspec.structs import replace as with_fields

from wopr.feedback.annotations import AnnotationStore, Annotator, Author, SnapshotOf
from wopr.feedback.selection import newest_runs, run_filter
from wopr.feedback.verdicts import (
    MOST_EVENTS,
    MOST_SNAPSHOT_BYTES,
    BadVerdict,
    NoVerdict,
    capped,
    judge_inputs,
    verdict,
)
from wopr.protocol.documents import UNSET, Json, JsonObject, Unset, encode
from wopr.protocol.errors import NotFound, Refused, Unavailable, WoprError
from wopr.protocol.reviews import CreateJudge, Judge, JudgedRun, JudgedState
from wopr.protocol.runs import TERMINAL
from wopr.protocol.times import to_iso
from wopr.store.port import SHARED, AgentManifests, RunRow
from wopr.store.port.feedback import JudgedRow, JudgeRow
from wopr.store.port.feedback import Judges as JudgeRows

# Judging runs of one judge that are under way together.
AT_ONCE = 8
JUDGES_AT_ONCE = 1000


class JudgeStore(AnnotationStore, JudgeRows, AgentManifests, Protocol):
    """What judges need of the store."""


class StartRun(Protocol):
    """Starts the run that judges, under a name that is given; starting it again does nothing."""

    async def __call__(
        self, tenant: str, run_id: str, judge: Judge, inputs: JsonObject, metadata: JsonObject
    ) -> None:
        """Start it. Raises `WoprError` when the workflow cannot take these inputs."""
        ...


class _Ended(msgspec.Struct, rename="camel"):
    """What is read of a judging run that has ended."""

    outputs: Json = None
    error: JsonObject = {}


class Judges:
    """Takes orders for judgments and works on them, a step at a time."""

    def __init__(
        self,
        store: JudgeStore,
        annotator: Annotator,
        *,
        start: StartRun,
        snapshot: SnapshotOf,
        now: Callable[[], int],
        new_id: Callable[[], str],
    ) -> None:
        self._store = store
        self._annotator = annotator
        self._start = start
        self._snapshot = snapshot
        self._now = now
        self._new_id = new_id

    async def create(self, tenant: str, creator: str, request: CreateJudge) -> Judge:
        """Take an order. The runs are chosen now; what becomes of each is told by `read`."""
        await self._annotator.check_quota(tenant)
        await self._require(tenant, request)
        now = self._now()
        redacted = partial(self._annotator.redacted, tenant)
        judge = Judge(
            judge_id=self._new_id(),
            workflow_id=request.workflow_id,
            agent_id=request.agent_id,
            state="running",
            created_at=to_iso(now),
            created_by=creator,
            counts={},
            input_mapping={
                redacted(name): redacted(path) for name, path in request.input_mapping.items()
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
        """Refuse an agent or a workflow that the tenant has not: no name can be made up."""
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
        where = run_filter(request.filter, partial(self._annotator.redacted, tenant))
        return await newest_runs(self._store, tenant, where, request.most_runs)

    async def read(self, tenant: str, judge_id: str, *, after: int, limit: int) -> Judge:
        """A judge, how far it is, and a page of what came of its runs."""
        row = await self._store.judge(tenant, judge_id)
        if row is None:
            raise NotFound(f"there is no judge {judge_id[:128]!r}")
        judge = _judge(row)
        counts = await self._store.judged_counts(tenant, judge_id)
        states: dict[JudgedState, int] = {
            state: counts.get(state, 0)
            for state in ("pending", "running", "annotated", "skipped", "failed")
        }
        items = await self._store.judged(tenant, judge_id, after, limit + 1) if limit else []
        more = len(items) > limit > 0
        return with_fields(
            judge,
            state="done" if row.is_done else "running",
            counts=states,
            items=[_judged(item) for item in items[:limit]] if limit else UNSET,
            next_cursor=str(items[limit - 1].place) if more else UNSET,
        )

    async def unfinished(self) -> list[tuple[str, str]]:
        """`(tenant, judge_id)` of the judges that have work left."""
        return await self._store.open_judges(JUDGES_AT_ONCE)

    async def step(self, tenant: str, judge_id: str) -> bool:
        """Move a judge on: take what was said, start what can be started. False when it waits."""
        row = await self._store.judge(tenant, judge_id)
        if row is None:
            return False
        judge = _judge(row)
        running = await self._store.judged(tenant, judge_id, -1, AT_ONCE, "running")
        moved = [await self._settle(tenant, judge, item) for item in running]
        room = AT_ONCE - len(running) + sum(moved)
        pending = await self._store.judged(tenant, judge_id, -1, room, "pending")
        for item in pending:
            await self._begin(tenant, judge, item)
        if not running and not pending:
            await self._store.close_judge(tenant, judge_id)
        return any(moved) or bool(pending) or not running

    async def _begin(self, tenant: str, judge: Judge, item: JudgedRow) -> None:
        """Name the judging run first: after a crash it is started under the same name."""
        named = replace(item, state="running", judge_run_id=self._new_id())
        if await self._store.move_judged(tenant, judge.judge_id, named):
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
            await self._start(tenant, item.judge_run_id or "", judge, inputs, metadata)
        except NoVerdict as reason:
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
            raise NoVerdict("there is no such run")
        if run.status not in TERMINAL:
            raise NoVerdict(f"the run has not ended: it is {run.status}")
        if run.workflow_id == judge.workflow_id:
            raise NoVerdict("the run is one of the judge's own workflow")
        snapshot = await self._snapshot(tenant, run)
        if len(snapshot) > MOST_SNAPSHOT_BYTES:
            raise NoVerdict(f"the run's snapshot is over {MOST_SNAPSHOT_BYTES} bytes")
        events = await self._store.read(tenant, item.run_id, 0, MOST_EVENTS)
        return judge_inputs(snapshot, capped(events), run.last_sequence + 1, judge.input_mapping)

    async def _settle(self, tenant: str, judge: Judge, item: JudgedRow) -> bool:
        """Take what a judging run says once it has ended; False while it has not."""
        run = await self._store.run(tenant, item.judge_run_id or "")
        if run is None:
            await self._launch(tenant, judge, item)
            return True
        if run.status not in TERMINAL:
            return False
        ended = msgspec.json.decode(await self._snapshot(tenant, run), type=_Ended)
        if run.status != "completed":
            reason = f"the judging run {run.status}: {ended.error.get('message', 'no reason')}"
            await self._end(tenant, judge, item, "failed", reason)
            return True
        await self._take(tenant, judge, item, ended.outputs)
        return True

    async def _take(self, tenant: str, judge: Judge, item: JudgedRow, outputs: Json) -> None:
        judged: RunRow | None = await self._store.run(tenant, item.run_id)
        try:
            if judged is None:
                raise NoVerdict("there is no such run any more")
            request = verdict(outputs)
            author = Author(actor=judge.agent_id, source="agent")
            prepared = await self._annotator.prepare(tenant, judged, author, request)
            done = replace(item, state="annotated", annotation_id=prepared.row.annotation_id)
            if await self._store.move_judged(tenant, judge.judge_id, done, prepared.row):
                self._annotator.listener.stored(prepared.annotation)
        except (NoVerdict, NotFound) as reason:
            await self._end(tenant, judge, item, "skipped", str(reason))
        except (BadVerdict, Refused) as reason:
            await self._end(tenant, judge, item, "failed", str(reason))

    async def _end(
        self, tenant: str, judge: Judge, item: JudgedRow, state: JudgedState, reason: str
    ) -> None:
        said = self._annotator.redacted(tenant, reason)
        await self._store.move_judged(
            tenant, judge.judge_id, replace(item, state=state, reason=said)
        )


def _judge(row: JudgeRow) -> Judge:
    return msgspec.json.decode(row.body, type=Judge)


def _judged(row: JudgedRow) -> JudgedRun:
    state: JudgedState = row.state  # type: ignore[assignment]  # the store keeps what it was given
    return JudgedRun(
        run_id=row.run_id,
        state=state,
        judge_run_id=row.judge_run_id or UNSET,
        annotation_id=row.annotation_id or UNSET,
        reason=row.reason or UNSET,
    )
