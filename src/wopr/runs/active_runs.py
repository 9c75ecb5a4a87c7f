"""The runs in memory of this process: load, commit and release them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from wopr.cluster.leases import Leases
from wopr.cluster.wakeups import Wakeups
from wopr.process.metrics import Metrics
from wopr.protocol.errors import SequenceTaken, Unavailable, WoprError
from wopr.protocol.offloading import Results, WorkNeeded, known_results
from wopr.runs.active import ActiveRun
from wopr.runs.append import EventBatch
from wopr.runs.journal import MAX_RACES, Journal
from wopr.store.port import Claim, IdempotencyRecord, StoredRun

T = TypeVar("T")


class ActiveRuns:
    """The runs in memory, by run id.

    A run is in `runs` while a node is in flight, or while a task holds its lock or waits for it.
    """

    def __init__(
        self,
        runs: dict[str, ActiveRun],
        journal: Journal,
        leases: Leases,
        wakeups: Wakeups,
        metrics: Metrics,
    ) -> None:
        self.runs = runs
        self.journal = journal
        self.leases = leases
        self._wakeups = wakeups
        self._metrics = metrics

    async def load(
        self, tenant: str, run_id: str, stored: StoredRun | None = None
    ) -> ActiveRun | None:
        """Return the run that is in memory, or a new one that is folded from the log.

        The log is read from the store unless the caller has just read it.
        """
        known = self.runs.get(run_id)
        if known is not None:
            return known if known.state.identity.tenant == tenant else None
        if stored is None:
            run = await self.journal.load(tenant, run_id)
        else:
            run = await self.journal.restore(tenant, stored)
        # Another task may have loaded the run during this read.
        return self.runs.get(run_id, run)

    async def commit(
        self,
        run: ActiveRun,
        batch: EventBatch,
        record: IdempotencyRecord | None = None,
        claim: Claim | None = None,
    ) -> bool:
        """Commit a batch and wake the runs that it concerns; False when nothing was written."""
        has_written = await self.journal.commit(run, batch, record, claim)
        if has_written:
            self._wake_others(run, batch)
            if run.state.is_terminal:
                self._end(run)
        return has_written

    def _wake_others(self, run: ActiveRun, batch: EventBatch) -> None:
        source, tenant = self._wakeups.source, run.state.identity.tenant
        self._metrics.count_events(batch.events)
        if run.row is not None:
            source.schedule(run.row)
        for command in batch.commands:
            source.wake(tenant, command.run_id)
        for child in batch.children:
            source.wake(tenant, child.run.run_id)
        parent = run.state.identity.parent_run_id
        if parent is not None and run.state.is_terminal:
            source.wake(tenant, parent)

    def _end(self, run: ActiveRun) -> None:
        """Stop all work on a run that has ended."""
        identity = run.state.identity
        self.runs.pop(identity.run_id, None)
        self.leases.memory.stop_waiting(identity.tenant, identity.run_id)
        run.to_launch.clear()
        run.parked.clear()
        run.cancel_ended_nodes()
        self._metrics.count_ended(run.state.status)

    async def reload(self, run: ActiveRun) -> None:
        """Fold the events of another process, and cancel executions that they end."""
        before = run.state.nodes
        await self.journal.reload(run)
        run.cancel_ended_nodes()
        run.cancel_superseded_nodes(before)
        if run.is_held and run.row is not None and run.row.holder != self.leases.process:
            self.drop(run)

    async def catch_up(self, run: ActiveRun) -> None:
        """Fold the events of other processes into a run in memory."""
        identity = run.state.identity
        run.row = await self.journal.store.run(identity.tenant, identity.run_id)
        if run.row is not None and run.row.last_sequence >= run.state.next_sequence:
            await self.reload(run)

    async def repeat_after_races(self, run: ActiveRun, attempt: Callable[[], Awaitable[T]]) -> T:
        """Call `attempt`, which makes a batch for a run and commits it, until it succeeds.

        After a lost race the events of the other process are folded first. Offloaded work is done
        before the next attempt. When `attempt` fails otherwise, its changes in memory are undone.
        """
        races = 0
        results = Results()
        while races < MAX_RACES:
            try:
                with known_results(results):
                    return await attempt()
            except WorkNeeded as needed:
                self.journal.undo(run)
                await self._add_result(run, needed, results)
            except SequenceTaken:
                races += 1
                await self.reload(run)
            except BaseException:
                self.journal.undo(run)
                raise
        raise Unavailable("Other processes write to this run. Try again.")

    async def _add_result(self, run: ActiveRun, needed: WorkNeeded, results: Results) -> None:
        """Do offloaded work in a subprocess or a thread, and add its result."""
        with self._wakeups.scheduler.without_slot():
            await self.journal.library.subprocesses.add_result(
                run.state.identity.tenant, needed, results
            )

    async def hand_over(self, run: ActiveRun) -> None:
        """Wake a run in another process when this process has no code for its nodes."""
        identity = run.state.identity
        if run.missing_types and not run.is_held and not run.state.is_terminal:
            needs = sorted(set(run.missing_types.values()))
            await self._wakeups.source.hand_over(identity.tenant, identity.run_id, needs)

    def drop(self, run: ActiveRun) -> None:
        """Cancel the executions of a run whose lease another process has."""
        run.stop()
        self.record_lease(run)

    def record_lease(self, run: ActiveRun) -> None:
        """Record whether this process has the lease of a run, and the memory of the run."""
        identity = run.state.identity
        self.leases.record(
            identity.tenant, identity.run_id, is_held=run.is_held, memory_bytes=run.memory_bytes
        )

    def release(self, run: ActiveRun) -> None:
        """Remove a run from memory that has ended or waits: the store has all of its state."""
        if run.state.is_terminal or (run.is_idle and not run.lock.statistics().tasks_waiting):
            identity = run.state.identity
            self.runs.pop(identity.run_id, None)
            self.free_memory(identity.tenant, identity.run_id)
            if run.has_crashes and self._wakeups.tasks is not None:
                # The run did not crash this process.
                self._wakeups.tasks.start_soon(self.clear_crashes, run)

    def free_memory(self, tenant: str, run_id: str) -> None:
        """Release the memory that was reserved for a run, and wake runs that wait for memory."""
        for waiting in self.leases.memory.release(tenant, run_id):
            self._wakeups.advance_soon(*waiting)

    async def clear_crashes(self, run: ActiveRun) -> None:
        """Clear the crash counter of a run that did not crash this process."""
        run.has_crashes = False
        with suppress(WoprError):
            await self.journal.store.clear_crashes(
                run.state.identity.tenant, run.state.identity.run_id
            )
