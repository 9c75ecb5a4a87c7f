"""Commands: wishes of a client, checked and turned into events. The answer follows the commit."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec

from wopr.engine.snapshot import visible_variables
from wopr.engine.state import RunState
from wopr.protocol.documents import Json, JsonObject, Unset, encode
from wopr.protocol.errors import Conflict, NotFound, Unprocessable, WoprError
from wopr.protocol.forks import ForkPreview, ForkRun
from wopr.protocol.interrupts import AnswerTaken
from wopr.protocol.runs import (
    DRAIN_POLICIES,
    BulkCancel,
    BulkCancelAnswer,
    BulkCancelItem,
    CancelAnswer,
    ItemError,
    PauseAnswer,
    PauseRun,
    ResumeAnswer,
    RunStatus,
)
from wopr.protocol.times import to_iso
from wopr.runtime.active import ActiveRun
from wopr.runtime.advance import Advancer
from wopr.runtime.appender import Burst, encoded_value
from wopr.runtime.audit import Audit
from wopr.runtime.creating import Creator, Remember, refusing_large_data
from wopr.runtime.forking import accepted, begin_fork, fork_of, preview_of, source_of
from wopr.runtime.metrics import Metrics
from wopr.runtime.requests import NewRun
from wopr.runtime.resolving import pending, resolve
from wopr.runtime.steps import cancel_run, pause_now
from wopr.runtime.waits import Resolver
from wopr.runtime.wishes import CancelWish, PauseWish


class Commands:
    """What clients can ask a run to do."""

    def __init__(self, advancer: Advancer, metrics: Metrics, audit: Audit) -> None:
        self._advancer = advancer
        self._journal = advancer.journal
        self._metrics = metrics
        self._audit = audit
        self._creator = Creator(advancer)

    async def create(self, new: NewRun, remember: Remember | None = None) -> bytes:
        """Start a run and return the encoded 201 answer."""
        answer = await self._creator.create(new, remember)
        self._metrics.created()
        return answer

    async def cancel(
        self, tenant: str, run_id: str, reason: str, *, by: str = "host"
    ) -> CancelAnswer:
        """Cancel a run and its children; a run that has ended answers with its status."""
        async with self._held(tenant, run_id) as run:
            if run.state.is_terminal:
                return CancelAnswer(run_id=run_id, status=run.state.status, already_terminal=True)
            wish = CancelWish(reason=reason)

            def change(burst: Burst) -> None:
                cancel_run(run, burst, wish)
                self._note(burst, by, "run.cancel")

            await self._advancer.transact(run, change)
            return CancelAnswer(run_id=run_id, status=run.state.status)

    async def bulk_cancel(
        self, tenant: str, request: BulkCancel, *, by: str = "host"
    ) -> BulkCancelAnswer:
        """Cancel many runs; each gets its own answer."""
        reason = "" if isinstance(request.reason, Unset) else request.reason
        return BulkCancelAnswer(
            results=[
                await self._cancel_item(tenant, run_id, reason, by) for run_id in request.run_ids
            ]
        )

    async def _cancel_item(self, tenant: str, run_id: str, reason: str, by: str) -> BulkCancelItem:
        try:
            answer = await self.cancel(tenant, run_id, reason, by=by)
        except WoprError as error:
            problem = ItemError(code=error.code, message=error.message)
            return BulkCancelItem(run_id=run_id, ok=False, error=problem)
        if answer.status in ("completed", "failed"):
            problem = ItemError(code="run_terminal", message=f"the run has {answer.status}")
            return BulkCancelItem(run_id=run_id, ok=False, status=answer.status, error=problem)
        return BulkCancelItem(run_id=run_id, ok=True, status=answer.status)

    async def pause(
        self, tenant: str, run_id: str, request: PauseRun, *, by: str = "host"
    ) -> PauseAnswer:
        """Pause a run, at once or when the nodes in flight have ended."""
        if request.drain_policy not in DRAIN_POLICIES:
            raise Unprocessable(
                f"drainPolicy must be one of {', '.join(DRAIN_POLICIES)}",
                code="validation_error",
                field="drainPolicy",
                supported=list(DRAIN_POLICIES),
            )
        async with self._held(tenant, run_id) as run:
            _require_released(run)
            if run.pausing is not None and run.pausing.is_settled(run.state):
                # What is over makes room for this one.
                await self._advancer.transact(run, lambda _: None)
            if run.state.status != "running" or run.pausing is not None:
                raise _conflict(run.state, "paused", "running")
            reason = "" if isinstance(request.reason, Unset) else request.reason
            at = self._journal.now()
            if request.drain_policy == "immediate":

                def change(burst: Burst) -> None:
                    pause_now(burst, reason)
                    self._note(burst, by, "run.pause", drainPolicy="immediate")

                await self._advancer.transact(run, change)
                self._advancer.executing.interrupt(run)
            else:
                await self._pause_when_drained(
                    run, PauseWish(reason=reason, since=run.state.next_sequence), by
                )
        return PauseAnswer(run_id=run_id, status="paused", paused_at=to_iso(at))

    async def _pause_when_drained(self, run: ActiveRun, wish: PauseWish, by: str) -> None:
        """Keep the wish first, so that a crash while the nodes drain does not lose it."""
        identity = run.state.identity
        now = self._journal.now()
        body = msgspec.json.encode(wish)
        if not await self._journal.store.set_wish(identity.tenant, identity.run_id, body, now):
            # Ended elsewhere, or about to be cancelled with its parent.
            raise _conflict((await self._journal.catch_up(run))[0], "paused", "running")
        run.pausing = wish

        def change(burst: Burst) -> None:
            self._advancer.stepping.call_again(run, burst)
            self._note(burst, by, "run.pause", drainPolicy="drain-current-node")

        await self._advancer.transact(run, change)

    async def resume(
        self, tenant: str, run_id: str, reason: str = "", *, by: str = "host"
    ) -> ResumeAnswer:
        """Let a run go on that is paused or in quarantine."""
        async with self._held(tenant, run_id) as run:
            if _is_quarantined(run):
                return await self._release(run, by)

            def change(burst: Burst) -> None:
                if burst.state.status != "paused":
                    raise _conflict(burst.state, "resumed", "paused")
                burst.add("run.resumed", {"reason": reason} if reason else {})
                burst.is_urgent = True
                self._note(burst, by, "run.resume")
                self._advancer.stepping.call_again(run, burst)

            await self._advancer.transact(run, change)
            return ResumeAnswer(
                run_id=run_id, status="running", resumed_at=to_iso(run.state.updated_at)
            )

    async def _release(self, run: ActiveRun, by: str) -> ResumeAnswer:
        """Take a run out of quarantine; the audit log has it even if the run ends the process."""
        identity, now = run.state.identity, self._journal.now()
        await self._audit.record(identity.tenant, by, "run.release", identity.run_id)
        await self._journal.store.release(identity.tenant, identity.run_id, now)
        run.row = await self._journal.store.run(identity.tenant, identity.run_id)
        if run.row is not None:
            self._advancer.wakeups.source.noted(run.row)
            self._advancer.wakeups.source.woke(identity.tenant, identity.run_id)
        return ResumeAnswer(run_id=identity.run_id, status="running", resumed_at=to_iso(now))

    async def set_variables(
        self, tenant: str, run_id: str, variables: JsonObject, *, by: str
    ) -> JsonObject:
        """Change variables of a run that has not ended, and return what it has then."""
        async with self._held(tenant, run_id) as run:

            def change(burst: Burst) -> None:
                _require_released(run)
                if burst.state.is_terminal:
                    raise Conflict(f"the run is {burst.state.status}", runStatus=burst.state.status)
                for name, value in variables.items():
                    payload: JsonObject = {"name": name, "next": value}
                    if name in burst.state.variables:
                        payload["previous"] = burst.state.variables[name]
                    with refusing_large_data():
                        encoded_value(value, burst.limits)
                        burst.add("variable.changed", payload)
                self._note(burst, by, "run.set-variables", names=sorted(variables))

            await self._advancer.transact(run, change)
            return visible_variables(run.state)

    async def fork(
        self,
        tenant: str,
        run_id: str,
        request: ForkRun,
        remember: Remember | None = None,
        *,
        by: str = "host",
    ) -> bytes:
        """Fork a run and return the encoded 201 answer; history and replay follow by themselves."""
        self._journal.quotas.check_new_run(tenant)
        source = await source_of(self._journal, tenant, run_id, request)
        fork = await fork_of(self._journal, tenant, source, request)
        inputs = request.run_options_overlay.inputs
        with refusing_large_data():
            run, burst = await begin_fork(self._journal, tenant, source, fork, inputs)
        self._note(burst, by, "run.fork", sourceRunId=run_id, mode=fork.mode, fromSeq=fork.from_seq)
        answer = encode(accepted(run.state.identity, fork))
        if self._journal.is_shared:
            run.due_in = 0
        async with run.lock:
            await self._journal.commit(run, burst, remember(answer) if remember else None)
            self._advancer.committed(run, burst)
        self._advancer.wakeups.source.woke(tenant, run.state.identity.run_id)
        self._metrics.created()
        return answer

    async def preview_fork(self, tenant: str, run_id: str, request: ForkRun) -> ForkPreview:
        """Say what a fork would do."""
        return await preview_of(self._journal, tenant, run_id, request)

    async def answer(
        self,
        tenant: str,
        run_id: str,
        node_id: str,
        value: Json,
        by: Resolver,
        *,
        interrupt_id: str | None = None,
    ) -> AnswerTaken:
        """Answer what a node waits for. Of several answers the first one taken wins."""
        async with self._held(tenant, run_id) as run:

            def change(burst: Burst) -> WoprError | None:
                _require_released(run)
                interrupt = pending(
                    burst.state, node_id, interrupt_id, value=value, by_token=by.by_token
                )
                with refusing_large_data():
                    encoded_value(value, burst.limits)
                    refusal = resolve(burst, node_id, interrupt, value, by)
                burst.is_urgent = True
                self._note(
                    burst,
                    by.name,
                    "interrupt.resolve",
                    nodeId=node_id,
                    kind=interrupt.kind,
                    role=by.role,
                )
                self._advancer.stepping.call_again(run, burst)
                return refusal

            refusal = await self._advancer.transact(run, change)
            if refusal is not None:
                raise refusal
            return AnswerTaken(run_id=run_id, node_id=node_id, status=run.state.status)

    def _note(self, burst: Burst, by: str, action: str, **facts: Json) -> None:
        """Put on record who did this, in the transaction that does it."""
        run = burst.state.identity
        burst.audits.append(self._audit.draft(run.tenant, by, action, run.run_id, **facts))

    @asynccontextmanager
    async def _held(self, tenant: str, run_id: str) -> AsyncGenerator[ActiveRun, None]:
        """A run with this caller as its only writer."""
        is_kept = run_id in self._advancer.runs
        run = await self._advancer.load(tenant, run_id)
        if run is None:
            raise NotFound(f"there is no run {run_id!r}")
        self._advancer.runs[run_id] = run
        async with run.lock:
            try:
                if is_kept and self._journal.is_shared:
                    await self._advancer.catch_up(run)
                await self._advancer.forks.complete(run)
                yield run
            finally:
                self._advancer.release(run)


def _is_quarantined(run: ActiveRun) -> bool:
    return run.row is not None and run.row.quarantined_at is not None and not run.state.is_terminal


def _require_released(run: ActiveRun) -> None:
    """Refuse a command that would execute nodes of a run in quarantine."""
    if _is_quarantined(run):
        raise Conflict(
            "the run is in quarantine because it ended the host's process: resume it first, or "
            "cancel it",
            runStatus=run.state.status,
        )


def _conflict(state: RunState, wanted: str, needed: RunStatus) -> Conflict:
    return Conflict(
        f"only a {needed} run can be {wanted}; this one is {state.status}",
        runStatus=state.status,
        pausedAt=to_iso(state.paused_at) if state.paused_at else None,
    )
