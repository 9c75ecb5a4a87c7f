"""The advance loop: fold, plan, apply, repeat, until the run ends or waits.

The module reads from top to bottom. A wake-up calls `advance`, and a command of a client calls
`transact`; `begin` is for a new run. Each of them makes a batch of events. `_append` adds the steps
that follow to the batch (`_apply_steps`) and commits it. `wopr.runs.execution.execute` calls the
nodes.

A lock makes one task of this process the only writer of a run. Across processes the sequence of the
log is the fence: a writer that loses a race reloads the log and plans again. Nodes that wait are
executed by the process that has the lease of the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import anyio

from wopr.cluster.leases import NO_ROOM_DELAY_MS, Leases
from wopr.cluster.wakeups import WATCH_SECONDS, Wakeups, WakeupSource
from wopr.engine.outcome import NodeFailure
from wopr.engine.plan import Breach, FailRun, Resume, Start, Step, plan
from wopr.engine.state import RunState
from wopr.process.egress import Egress
from wopr.process.metrics import Metrics
from wopr.protocol.errors import WoprError
from wopr.protocol.offloading import WorkNeeded
from wopr.runs.active import ActiveRun, PendingCancel, PendingPause, read_pending_command
from wopr.runs.active_runs import ActiveRuns
from wopr.runs.append import EventBatch
from wopr.runs.execution.agent_context import AgentServices
from wopr.runs.execution.execute import Executor, apply_step
from wopr.runs.execution.node_events import cancel_run, fail_node, fail_run
from wopr.runs.forks.advance import ForkAdvancer
from wopr.runs.journal import Journal, is_replay
from wopr.store.port import Batch, IdempotencyRecord, RunRow, StoredRun

T = TypeVar("T")
# Number of checks, within `WATCH_SECONDS`, whether a watched run is idle.
WATCH_CHECKS = 240


class Advancer:
    """Advances runs.

    `source` tells when a run is due. `provides` are the capabilities that node types may require.
    """

    def __init__(
        self,
        journal: Journal,
        *,
        egress: Egress,
        metrics: Metrics,
        provides: frozenset[str],
        services: AgentServices,
        source: WakeupSource,
        leases: Leases | None = None,
    ) -> None:
        self.journal = journal
        self.services = services
        self.leases = leases or Leases()
        runs: dict[str, ActiveRun] = {}
        self.wakeups = Wakeups(
            self.advance,
            source,
            journal.quotas.scheduler,
            is_busy=runs.__contains__,
            postpone=journal.postpone,
            now=journal.now,
        )
        self.active = ActiveRuns(runs, journal, self.leases, self.wakeups, metrics)
        self.executor = Executor(
            self.active,
            self.wakeups,
            egress=egress,
            services=services,
            provides=provides,
            transact=self.transact,
        )
        self.forks = ForkAdvancer(self.active, self.executor)
        self._metrics = metrics
        self._crash_watch = anyio.Lock()
        self._started_at = time.monotonic()

    # -- wake-ups

    async def advance(self, tenant: str, run_id: str, stored: StoredRun | None = None) -> None:
        """Carry out pending commands, call the nodes that are due, and plan."""
        try:
            await self._advance(tenant, run_id, stored)
        finally:
            if run_id not in self.active.runs:
                # Memory may be reserved for a run that does not need it.
                self.active.free_memory(tenant, run_id)

    async def _advance(self, tenant: str, run_id: str, stored: StoredRun | None) -> None:
        run = await self.active.load(tenant, run_id, stored)
        self.wakeups.record_begin(run_id)
        if run is None or run.state.is_terminal:
            return
        is_just_read = run_id not in self.active.runs
        if is_just_read and run.row is not None and run.row.crashes:
            await self._advance_after_crash(run, run.row)
        else:
            await self._advance_loaded(run, is_just_read=is_just_read)

    async def _advance_loaded(self, run: ActiveRun, *, is_just_read: bool) -> None:
        """Advance a run in memory, as its only writer in this process."""
        self.active.runs[run.state.identity.run_id] = run
        async with self.wakeups.scheduler.hold_lock(run.lock):
            try:
                if not (is_just_read and self._may_skip_catch_up(run)):
                    await self.active.catch_up(run)
                await self._advance_locked(run)
            finally:
                self.active.release(run)

    def _may_skip_catch_up(self, run: ActiveRun) -> bool:
        """Return whether a run that was just read can be advanced without a second read.

        Where processes share the store and no process has the lease of the run, no node is executed
        before an append, and that append fails when the log has grown.
        """
        row = run.row
        return (
            self.leases.is_shared
            and row is not None
            and row.holder is None
            and row.last_sequence == run.state.next_sequence - 1
        )

    async def _advance_locked(self, run: ActiveRun) -> None:
        """Advance a run, unless another process has its lease or it is in quarantine."""
        row = await self._own_row(run)
        if row is None:
            return
        command = read_pending_command(row.pending_command)
        if row.quarantined_at is not None and not isinstance(command, PendingCancel):
            await self._clear_timer(run, row)
            return
        before, run.last_wake = run.last_wake, row.wakes
        try:
            await self._call_and_plan(run, command)
        except BaseException:
            # Maybe no node was called, so the wake-up must stay.
            run.last_wake = before
            raise

    async def _own_row(self, run: ActiveRun) -> RunRow | None:
        """Return the row of a run that this process may advance; else wake the lease's holder."""
        if run.row is None or run.state.is_terminal:
            return None
        holder = run.row.holder
        if holder is None:
            return run.row
        if holder == self.leases.process:
            # Set again here, because the reply to the append that acquired the lease may be lost.
            run.is_held = True
            return run.row
        await self.wakeups.source.forward(run.state.identity.tenant, run.row.run_id, holder)
        return None

    async def _call_and_plan(
        self, run: ActiveRun, command: PendingPause | PendingCancel | None
    ) -> None:
        """Carry out a pending command, call the nodes that are due, and append the next steps."""
        if isinstance(command, PendingCancel):
            await self.transact(run, lambda batch: cancel_run(run, batch, command))
            return
        run.pending_pause = command
        if run.state.identity.fork is not None and await self.forks.advance(run):
            return
        await self.transact(run, lambda batch: self.executor.call_running_nodes(run, batch))

    async def _advance_after_crash(self, run: ActiveRun, row: RunRow) -> None:
        """Advance a run during which a process crashed, and clear the crash once the run is idle.

        Where processes share the store, a process advances only one run with several crashes at a
        time, so that the next crash is counted for the run that causes it. The others wait for a
        limited time.
        """
        run.has_crashes = row.quarantined_at is None and row.holder is None
        most = self.journal.store.max_crashes
        if not (self.leases.is_shared and run.has_crashes and row.crashes >= most - 1):
            await self._advance_loaded(run, is_just_read=True)
            return
        tenant, run_id = run.state.identity.tenant, row.run_id
        # A process that is killed from outside shortly after its start has not begun such a run.
        if self._crash_watch.locked() or time.monotonic() < self._started_at + WATCH_SECONDS:
            later = await self.journal.postpone(
                tenant, run_id, self.journal.now() + NO_ROOM_DELAY_MS
            )
            if later is not None:
                self.wakeups.source.schedule(later)
            return
        async with self._crash_watch:
            await self._advance_loaded(run, is_just_read=True)
            for _ in range(WATCH_CHECKS):
                if run_id not in self.active.runs:
                    return
                await anyio.sleep(WATCH_SECONDS / WATCH_CHECKS)
            await self.active.clear_crashes(run)

    async def _clear_timer(self, run: ActiveRun, row: RunRow) -> None:
        """Remove the timer of a run in quarantine. Its release makes it due again."""
        if row.wake_at is not None:
            tenant, without_timer = run.state.identity.tenant, replace(row, wake_at=None)
            write = Batch(run=without_timer, first=row.last_sequence + 1)
            await self.journal.store.append(tenant, [write])
            run.row = without_timer

    # -- appends

    async def transact(
        self, run: ActiveRun, change: Callable[[EventBatch], T], *, is_fence: bool = False
    ) -> T:
        """Append what `change` adds, and the next steps. The caller holds the lock.

        When another process appended first, the run is reloaded and `change` is called again. When
        `change` raises, nothing is written. With `is_fence`, which is for a node in flight,
        `LeaseLost` is raised when another process has the lease of the run.
        """
        result, has_more = await self._append_or_reload(run, change, is_fence=is_fence)
        await self._append_rest(run, has_more)
        return result

    async def begin(
        self, run: ActiveRun, batch: EventBatch, record: IdempotencyRecord | None
    ) -> None:
        """Append the first batch of a new run, and the next steps."""
        # A task that wakes the run now waits for this lock and does not load the run again. The
        # lock is free, because no other task has the run yet.
        run.lock.acquire_nowait()
        self.active.runs[run.state.identity.run_id] = run
        try:
            await self._append_rest(run, await self._append(run, batch, record))
        except BaseException:
            run.to_launch.clear()
            raise
        finally:
            self.active.release(run)
            run.lock.release()

    async def _append_or_reload(
        self, run: ActiveRun, change: Callable[[EventBatch], T], *, is_fence: bool = False
    ) -> tuple[T, bool]:
        """Append a change and its steps; return its result, and True when steps are left."""

        async def attempt() -> tuple[T, bool]:
            batch = self.journal.batch(run)
            result = change(batch)
            return result, await self._append(run, batch, is_fence=is_fence)

        return await self.active.repeat_after_races(run, attempt)

    async def _append(
        self,
        run: ActiveRun,
        batch: EventBatch,
        record: IdempotencyRecord | None = None,
        *,
        is_fence: bool = False,
    ) -> bool:
        """Apply the steps that follow from a batch and commit; True when steps are left."""
        identity = run.state.identity
        follows_record = is_replay(run.state)
        has_more = not follows_record and self._apply_steps(run, batch)
        claim = self.leases.acquire(
            identity.tenant,
            identity.run_id,
            is_held=run.is_held,
            has_in_flight=bool(run.in_flight),
            has_to_start=bool(run.to_launch),
            is_fence=is_fence,
        )
        run.due_in = self.leases.due_in(
            identity.tenant,
            identity.run_id,
            claim,
            has_to_start=bool(run.to_launch),
            is_continuing=has_more or follows_record,
            has_uncalled_node=partial(run.has_uncalled_node, batch.state),
        )
        began = time.perf_counter()
        try:
            has_written = await self.active.commit(run, batch, record, claim)
        finally:
            self.active.record_lease(run)
        if has_written:
            self._metrics.record_append(time.perf_counter() - began)
            await self.active.hand_over(run)
        if follows_record:
            # A replay follows only its record and executes no node.
            run.to_launch.clear()
            self.wakeups.advance_soon(identity.tenant, identity.run_id)
        self.executor.launch(run)
        return has_more

    async def _append_rest(self, run: ActiveRun, has_more: bool) -> None:
        """Apply the steps that did not fit into one append.

        When they fail, the caller does not fail: the run is advanced again later.
        """
        try:
            while has_more:
                _, has_more = await self._append_or_reload(run, lambda _: None)
        except WoprError as error:
            await self.wakeups.retry_later(
                run.state.identity.tenant, run.state.identity.run_id, error
            )

    # -- steps

    def _apply_steps(self, run: ActiveRun, batch: EventBatch) -> bool:
        """Apply every possible step; True when the batch is full and steps are left."""
        self.executor.find_lacking_tools(run, batch.state.started_at)
        while not batch.state.is_terminal:
            if batch.is_full:
                return True
            if _fail_if_too_large(run, batch):
                break
            try:
                steps = self._plan(run, batch)
            except WorkNeeded:
                if not batch.events:
                    raise
                # The next attempt has the result of the work and repeats only the plan.
                return True
            possible = [step for step in steps if self._can_apply(run, batch, step)]
            if not possible:
                run.missing_types = _missing_types(run, batch.state, steps)
                return False
            if not _fail_beyond_quota(run, batch, possible[0]):
                for step in possible:
                    self._apply(run, batch, step)
        run.missing_types = {}
        return False

    def _plan(self, run: ActiveRun, batch: EventBatch) -> Sequence[Step]:
        """Plan the next steps, as far as a pending pause allows them.

        The batch keeps the plan: its commit reads the wake-up time of the run from it.
        """
        state = run.sensitive.unmask(batch.state)
        in_flight = {*run.in_flight, *run.to_launch}
        batch.plan = plan(state, batch.now, self.journal.limits, in_flight=in_flight)
        steps: Sequence[Step] = batch.plan.steps
        if run.pending_pause is not None and not run.pending_pause.is_settled(batch.state):
            steps = [step for step in steps if isinstance(step, Breach)]
            if not steps:
                _pause_if_drained(run.pending_pause, batch)
        return steps

    def _can_apply(self, run: ActiveRun, batch: EventBatch, step: Step) -> bool:
        """Return whether this process has the code and the memory that a step needs."""
        if not isinstance(step, Start):
            return True
        if _lacks_code(run, step.node_id):
            return False
        node_type = run.compiled.types[step.node_id]
        if node_type is None or not node_type.is_async:
            return True
        return self.executor.reserve_memory(run, batch)

    def _apply(self, run: ActiveRun, batch: EventBatch, step: Step) -> None:
        if isinstance(step, Start):
            self.executor.start_node(run, batch, step)
        elif isinstance(step, Resume):
            self.executor.resume_node(run, batch, step)
        else:
            apply_step(run, batch, step)


def _fail_if_too_large(run: ActiveRun, batch: EventBatch) -> bool:
    """Fail a run whose data is larger than the limit; True when it failed."""
    limits = batch.rules.limits
    if limits is None or batch.size <= limits.run_bytes:
        return False
    try:
        limits.check_run(batch.size)
    except NodeFailure as failure:
        fail_run(run, batch, failure.error, failure.error.code)
    return True


def _fail_beyond_quota(run: ActiveRun, batch: EventBatch, step: Step) -> bool:
    """Fail a run that would start a node far beyond a quota of its tenant; True when it failed.

    The nodes that handle a failure are not started either.
    """
    if not isinstance(step, Start):
        return False
    try:
        batch.check_quota()
    except NodeFailure as failure:
        fail_node(batch, step.node_id, failure.error, max(1, step.attempt))
        apply_step(run, batch, FailRun(step.node_id, failure.error))
        return True
    return False


def _lacks_code(run: ActiveRun, node_id: str) -> bool:
    """Return whether a node waits for a process with its code. A node with a test hook fails."""
    return not run.has_code(node_id) and node_id not in run.compiled.test_hooks


def _missing_types(run: ActiveRun, state: RunState, steps: Sequence[Step]) -> dict[str, str]:
    """Return the nodes that are due and that this process has no code for, each with the code."""
    due = [step.node_id for step in steps if isinstance(step, Start)]
    if state.status != "paused":
        due += [node_id for node_id, node in state.nodes.items() if node.status == "running"]
    return {node_id: run.needed_code(node_id) for node_id in due if _lacks_code(run, node_id)}


def _pause_if_drained(pending_pause: PendingPause, batch: EventBatch) -> None:
    is_running = any(node.status == "running" for node in batch.state.nodes.values())
    if is_running:
        return
    reason = {"reason": pending_pause.reason} if pending_pause.reason else {}
    batch.add("run.paused", {**reason, "drainPolicy": "drain-current-node"})
