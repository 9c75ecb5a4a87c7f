"""Commands of clients: check them and append their events. The response follows the commit."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import msgspec

from wopr.engine.snapshot import visible_variables
from wopr.engine.state import RunState
from wopr.process.metrics import Metrics
from wopr.protocol.documents import Json, JsonObject, Unset, encode, to_iso
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
from wopr.runs.active import ActiveRun, PendingCancel, PendingPause
from wopr.runs.advance import Advancer
from wopr.runs.append import EventBatch, encode_value
from wopr.runs.create import Creator, refusing_large_data
from wopr.runs.execution.node_events import cancel_run, pause_now
from wopr.runs.forks.create import (
    fork_accepted,
    make_fork,
    preview_fork,
    require_source,
    start_fork,
)
from wopr.runs.interrupts.approvals import Resolver
from wopr.runs.interrupts.resolve import require_pending, resolve
from wopr.runs.requests import NewRun
from wopr.store.port import RecordBuilder
from wopr.store.port.audit import AuditDraft


class Commands:
    """Carries out the commands of clients."""

    def __init__(
        self,
        advancer: Advancer,
        metrics: Metrics,
        audit_draft: Callable[..., AuditDraft],
    ) -> None:
        self._advancer = advancer
        self._journal = advancer.journal
        self._metrics = metrics
        # Returns an audit entry for (tenant, principal, action, resource, **facts).
        self._audit_draft = audit_draft
        self._creator = Creator(advancer)

    async def create(self, new: NewRun, build_record: RecordBuilder | None = None) -> bytes:
        """Start a run and return the encoded 201 response."""
        response = await self._creator.create(new, build_record)
        self._metrics.count_created()
        return response

    async def cancel(
        self, tenant: str, run_id: str, reason: str, *, by: str = "host"
    ) -> CancelAnswer:
        """Cancel a run and its children. A run that has ended is unchanged."""
        async with self._locked_run(tenant, run_id) as run:
            if run.state.is_terminal:
                return CancelAnswer(run_id=run_id, status=run.state.status, already_terminal=True)
            command = PendingCancel(reason=reason)

            def change(batch: EventBatch) -> None:
                cancel_run(run, batch, command)
                self._audit(batch, by, "run.cancel")

            await self._advancer.transact(run, change)
            return CancelAnswer(run_id=run_id, status=run.state.status)

    async def bulk_cancel(
        self, tenant: str, request: BulkCancel, *, by: str = "host"
    ) -> BulkCancelAnswer:
        """Cancel many runs, each with its own result."""
        reason = "" if isinstance(request.reason, Unset) else request.reason
        return BulkCancelAnswer(
            results=[
                await self._cancel_item(tenant, run_id, reason, by) for run_id in request.run_ids
            ]
        )

    async def _cancel_item(self, tenant: str, run_id: str, reason: str, by: str) -> BulkCancelItem:
        try:
            response = await self.cancel(tenant, run_id, reason, by=by)
        except WoprError as error:
            problem = ItemError(code=error.code, message=error.message)
            return BulkCancelItem(run_id=run_id, ok=False, error=problem)
        if response.status in ("completed", "failed"):
            problem = ItemError(code="run_terminal", message=f"the run has {response.status}")
            return BulkCancelItem(run_id=run_id, ok=False, status=response.status, error=problem)
        return BulkCancelItem(run_id=run_id, ok=True, status=response.status)

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
        async with self._locked_run(tenant, run_id) as run:
            _require_released(run)
            if run.pending_pause is not None and run.pending_pause.is_settled(run.state):
                # Remove it, so that it does not refuse this pause.
                await self._advancer.transact(run, lambda _: None)
            if run.state.status != "running" or run.pending_pause is not None:
                raise _wrong_status(run.state, "paused", "running")
            reason = "" if isinstance(request.reason, Unset) else request.reason
            at = self._journal.now()
            if request.drain_policy == "immediate":

                def change(batch: EventBatch) -> None:
                    if batch.state.status != "running":
                        raise _wrong_status(batch.state, "paused", "running")
                    pause_now(batch, reason)
                    self._audit(batch, by, "run.pause", drainPolicy="immediate")

                await self._advancer.transact(run, change)
                run.cancel_ended_nodes()
            else:
                await self._pause_when_drained(
                    run, PendingPause(reason=reason, since=run.state.next_sequence), by
                )
        return PauseAnswer(run_id=run_id, status="paused", paused_at=to_iso(at))

    async def _pause_when_drained(self, run: ActiveRun, command: PendingPause, by: str) -> None:
        """Store the pause before the nodes drain, so that a crash does not lose it."""
        identity = run.state.identity
        now = self._journal.now()
        body = msgspec.json.encode(command)
        if not await self._journal.store.set_pending_command(
            identity.tenant, identity.run_id, body, now
        ):
            # Another process ended the run, or its parent is being cancelled.
            raise _wrong_status((await self._journal.newest_state(run))[0], "paused", "running")
        run.pending_pause = command

        def change(batch: EventBatch) -> None:
            self._advancer.executor.call_running_nodes(run, batch)
            self._audit(batch, by, "run.pause", drainPolicy="drain-current-node")

        await self._advancer.transact(run, change)

    async def resume(
        self, tenant: str, run_id: str, reason: str = "", *, by: str = "host"
    ) -> ResumeAnswer:
        """Continue a run that is paused or in quarantine."""
        async with self._locked_run(tenant, run_id) as run:
            if _is_quarantined(run):
                return await self._release(run, by)

            def change(batch: EventBatch) -> None:
                if batch.state.status != "paused":
                    raise _wrong_status(batch.state, "resumed", "paused")
                batch.add("run.resumed", {"reason": reason} if reason else {})
                batch.is_urgent = True
                self._audit(batch, by, "run.resume")
                self._advancer.executor.call_running_nodes(run, batch)

            await self._advancer.transact(run, change)
            return ResumeAnswer(
                run_id=run_id, status="running", resumed_at=to_iso(run.state.updated_at)
            )

    async def _release(self, run: ActiveRun, by: str) -> ResumeAnswer:
        """Release a run from quarantine.

        The audit entry is written first, because the run may crash this process.
        """
        identity, now = run.state.identity, self._journal.now()
        entry = self._audit_draft(identity.tenant, by, "run.release", identity.run_id)
        await self._journal.store.append_audit(entry)
        await self._journal.store.release_from_quarantine(identity.tenant, identity.run_id, now)
        run.row = await self._journal.store.run(identity.tenant, identity.run_id)
        if run.row is not None:
            self._advancer.wakeups.source.schedule(run.row)
            self._advancer.wakeups.source.wake(identity.tenant, identity.run_id)
        return ResumeAnswer(run_id=identity.run_id, status="running", resumed_at=to_iso(now))

    async def set_variables(
        self, tenant: str, run_id: str, variables: JsonObject, *, by: str
    ) -> JsonObject:
        """Change variables of a run that has not ended, and return all of its variables."""
        async with self._locked_run(tenant, run_id) as run:

            def change(batch: EventBatch) -> None:
                _require_released(run)
                if batch.state.is_terminal:
                    raise Conflict(
                        f"The variables of a {batch.state.status} run cannot be changed.",
                        runStatus=batch.state.status,
                    )
                for name, value in variables.items():
                    payload: JsonObject = {"name": name, "next": value}
                    if name in batch.state.variables:
                        payload["previous"] = batch.state.variables[name]
                    with refusing_large_data():
                        encode_value(value, batch.rules.limits)
                        batch.add("variable.changed", payload)
                self._audit(batch, by, "run.set-variables", names=sorted(variables))

            await self._advancer.transact(run, change)
            return visible_variables(run.state)

    async def fork(
        self,
        tenant: str,
        run_id: str,
        request: ForkRun,
        build_record: RecordBuilder | None = None,
        *,
        by: str = "host",
    ) -> bytes:
        """Fork a run and return the encoded 201 response.

        The rest of the history is copied, and a replay is made, in the background.
        """
        self._journal.quotas.check_new_run(tenant)
        source = await require_source(self._journal, tenant, run_id, request)
        fork = await make_fork(self._journal, tenant, source, request)
        inputs = request.run_options_overlay.inputs
        with refusing_large_data():
            run, batch = await start_fork(self._journal, tenant, source, fork, inputs)
        self._audit(
            batch, by, "run.fork", sourceRunId=run_id, mode=fork.mode, fromSeq=fork.from_seq
        )
        response = encode(fork_accepted(run.state.identity, fork))
        if self._journal.is_shared:
            run.due_in = 0
        async with run.lock:
            await self._advancer.active.commit(
                run, batch, build_record(response) if build_record else None
            )
        self._advancer.wakeups.source.wake(tenant, run.state.identity.run_id)
        self._metrics.count_created()
        return response

    async def preview_fork(self, tenant: str, run_id: str, request: ForkRun) -> ForkPreview:
        """Return what a fork would do."""
        return await preview_fork(self._journal, tenant, run_id, request)

    async def resolve_interrupt(
        self,
        tenant: str,
        run_id: str,
        node_id: str,
        value: Json,
        by: Resolver,
        *,
        interrupt_id: str | None = None,
    ) -> AnswerTaken:
        """Resolve the interrupt that a node waits for. The first response is taken."""
        async with self._locked_run(tenant, run_id) as run:

            def change(batch: EventBatch) -> WoprError | None:
                _require_released(run)
                interrupt = require_pending(
                    batch.state, node_id, interrupt_id, value=value, by_token=by.by_token
                )
                with refusing_large_data():
                    encode_value(value, batch.rules.limits)
                    refusal = resolve(batch, node_id, interrupt, value, by)
                batch.is_urgent = True
                self._audit(
                    batch,
                    by.name,
                    "interrupt.resolve",
                    nodeId=node_id,
                    kind=interrupt.kind,
                    role=by.role,
                )
                self._advancer.executor.call_running_nodes(run, batch)
                return refusal

            refusal = await self._advancer.transact(run, change)
            if refusal is not None:
                raise refusal
            return AnswerTaken(run_id=run_id, node_id=node_id, status=run.state.status)

    def _audit(self, batch: EventBatch, by: str, action: str, **facts: Json) -> None:
        """Add an audit entry to the transaction of the command."""
        run = batch.state.identity
        batch.audits.append(self._audit_draft(run.tenant, by, action, run.run_id, **facts))

    @asynccontextmanager
    async def _locked_run(self, tenant: str, run_id: str) -> AsyncGenerator[ActiveRun, None]:
        """Yield a run with this caller as its only writer."""
        is_known = run_id in self._advancer.active.runs
        run = await self._advancer.active.load(tenant, run_id)
        if run is None:
            raise NotFound(f"there is no run {run_id!r}")
        self._advancer.active.runs[run_id] = run
        async with run.lock:
            try:
                if is_known and self._journal.is_shared:
                    await self._advancer.active.catch_up(run)
                await self._advancer.forks.complete(run)
                yield run
            finally:
                self._advancer.active.release(run)


def _is_quarantined(run: ActiveRun) -> bool:
    return run.row is not None and run.row.quarantined_at is not None and not run.state.is_terminal


def _require_released(run: ActiveRun) -> None:
    """Refuse a command that would execute nodes of a run in quarantine."""
    if _is_quarantined(run):
        raise Conflict(
            "The run is in quarantine because it crashed the host's process. Resume or cancel it "
            "first.",
            runStatus=run.state.status,
        )


def _wrong_status(state: RunState, action: str, required: RunStatus) -> Conflict:
    return Conflict(
        f"Only a {required} run can be {action}. This run is {state.status}.",
        runStatus=state.status,
        pausedAt=to_iso(state.paused_at) if state.paused_at else None,
    )
