"""The advance loop: fold, plan, execute, append, until the run ends or waits.

One run has one writer in this process, held by its lock; across processes the sequence is the
fence, and whoever loses a race reloads the log and plans again. Nodes that wait are executed by the
one process that holds the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

import anyio

from wopr.agents.memory import Memory
from wopr.protocol.errors import SequenceTaken, Unavailable, WoprError
from wopr.protocol.offloading import Results, WorkNeeded, known_results
from wopr.runtime.active import ActiveRun
from wopr.runtime.agent_call import AgentServices
from wopr.runtime.appender import Burst
from wopr.runtime.egress import Egress
from wopr.runtime.executing import Executing
from wopr.runtime.forks import Forks
from wopr.runtime.holding import PUT_OFF_MS, Holding
from wopr.runtime.journal import MOST_RACES, Journal
from wopr.runtime.metrics import Metrics
from wopr.runtime.stepping import Stepping
from wopr.runtime.steps import cancel_run
from wopr.runtime.tracing import Tracing
from wopr.runtime.wakeups import WATCH_SECONDS, Wakeups, WakeupSource
from wopr.runtime.wishes import CancelWish, read_wish
from wopr.store.port import Batch, RememberedAnswer, RunRow, StoredRun

T = TypeVar("T")
# How often it is looked whether a run that is watched is idle.
LOOKS = 240


class Advancer:
    """Moves runs forward."""

    def __init__(
        self,
        journal: Journal,
        *,
        egress: Egress,
        metrics: Metrics,
        tracing: Tracing,
        provides: frozenset[str],
        services: AgentServices,
        memory: Memory,
        source: WakeupSource,
        holding: Holding | None = None,
    ) -> None:
        self.journal = journal
        self.egress = egress
        self.services = services
        self.memory = memory
        self.holding = holding or Holding()
        self.runs: dict[str, ActiveRun] = {}
        self.wakeups = Wakeups(journal, self.advance, source, self.runs.__contains__)
        self.holding.memory.wake = self.wakeups.soon
        self._suspects = anyio.Lock()
        self._began = time.monotonic()
        self._metrics = metrics
        self._tracing = tracing
        self.stepping = Stepping(self, provides)
        self.executing = Executing(self)
        self.forks = Forks(self)

    async def load(
        self, tenant: str, run_id: str, stored: StoredRun | None = None
    ) -> ActiveRun | None:
        """The run that this process works on, or one folded from its log.

        The log is read from the store unless the caller has just read it.
        """
        kept = self.runs.get(run_id)
        if kept is not None:
            return kept if kept.state.identity.tenant == tenant else None
        if stored is None:
            run = await self.journal.load(tenant, run_id)
        else:
            run = await self.journal.restore(tenant, stored)
        # Another task may have taken it up while this one read.
        return self.runs.get(run_id, run)

    async def transact(
        self, run: ActiveRun, change: Callable[[Burst], T], *, is_fence: bool = False
    ) -> T:
        """Append what `change` adds and everything that follows from it. The caller holds the lock.

        When another process appended first, the run is reloaded and `change` is asked again; an
        error that it raises leaves nothing written. With `is_fence` it comes from a node in flight,
        and `HoldLost` is raised when another process has the run by now.
        """
        result, more = await self._append_or_reload(run, change, is_fence=is_fence)
        await self._go_on(run, more)
        return result

    async def begin(self, run: ActiveRun, burst: Burst, remember: RememberedAnswer | None) -> None:
        """Append the first burst of a new run and everything that follows from it."""
        # From here on whoever wakes the run waits for this lock instead of loading it once more.
        # Nobody can hold it yet, so there is nothing to wait for.
        run.lock.acquire_nowait()
        self.runs[run.state.identity.run_id] = run
        try:
            await self._go_on(run, await self._append(run, burst, remember))
        except BaseException:
            run.launch.clear()
            raise
        finally:
            self.release(run)
            run.lock.release()

    async def _append_or_reload(
        self, run: ActiveRun, change: Callable[[Burst], T], *, is_fence: bool = False
    ) -> tuple[T, bool]:
        races = 0
        results = Results()
        while races < MOST_RACES:
            burst = self.journal.burst(run)
            try:
                with known_results(results):
                    result = change(burst)
                    return result, await self._append(run, burst, is_fence=is_fence)
            except WorkNeeded as needed:
                self.journal.undo(run)
                await self.add_result(run, needed, results)
            except SequenceTaken:
                races += 1
                await self.reload(run)
            except BaseException:
                self.journal.undo(run)
                raise
        raise Unavailable("the run is being written elsewhere; try again")

    async def add_result(self, run: ActiveRun, needed: WorkNeeded, results: Results) -> None:
        """Have a subprocess do what the next attempt at a batch of events needs."""
        with self.wakeups.turns.paused():
            await self.journal.library.subprocesses.add(run.state.identity.tenant, needed, results)

    async def _append(
        self,
        run: ActiveRun,
        burst: Burst,
        remember: RememberedAnswer | None = None,
        *,
        is_fence: bool = False,
    ) -> bool:
        """Take the steps that follow from a burst and commit; True when more of them are left."""
        identity = run.state.identity
        is_replay = identity.fork is not None and identity.fork.mode == "replay"
        more = not is_replay and self.stepping.take_all(run, burst)
        claim = self.holding.claim(run, is_fence=is_fence)
        run.due_in = self.holding.due_in(run, burst.state, claim, goes_on=more or is_replay)
        began = time.perf_counter()
        try:
            has_written = await self.journal.commit(run, burst, remember, claim)
        finally:
            self.holding.note(run)
        if has_written:
            self._metrics.append_took(time.perf_counter() - began)
            self.committed(run, burst)
            await self.hand_over(run)
        if is_replay:
            # Whatever somebody did to a replay, only its record moves it on: nothing is executed.
            run.launch.clear()
            self.wakeups.soon(identity.tenant, identity.run_id)
        self.executing.launch(run)
        return more

    async def hand_over(self, run: ActiveRun) -> None:
        """Wake a run elsewhere whose nodes this process has no code for."""
        identity = run.state.identity
        if run.missing_types and not run.is_held and not run.state.is_terminal:
            needs = sorted(set(run.missing_types.values()))
            await self.wakeups.source.hand_over(identity.tenant, identity.run_id, needs)

    async def _go_on(self, run: ActiveRun, more: bool) -> None:
        """Take the steps that did not fit into one append; the first of them is acknowledged."""
        try:
            while more:
                _, more = await self._append_or_reload(run, lambda _: None)
        except WoprError as error:
            await self.wakeups.later(run.state.identity.tenant, run.state.identity.run_id, error)

    def committed(self, run: ActiveRun, burst: Burst) -> None:
        """Tell timers, parent and children what the store now knows."""
        identity = run.state.identity
        self._metrics.appended(burst.events)
        if run.row is not None:
            self.wakeups.source.noted(run.row)
        for wish in burst.wishes:
            self.wakeups.source.woke(identity.tenant, wish.run_id)
        for child in burst.children:
            self.wakeups.source.woke(identity.tenant, child.run.run_id)
        if run.state.is_terminal:
            self.runs.pop(identity.run_id, None)
            self.holding.memory.forget(identity.tenant, identity.run_id)
            run.launch.clear()
            run.parked.clear()
            self.executing.interrupt(run)
            self._metrics.ended(run.state.status)
            self._tracing.ended(run.state)
            if identity.parent_run_id is not None:
                self.wakeups.source.woke(identity.tenant, identity.parent_run_id)

    async def reload(self, run: ActiveRun) -> None:
        """Take in what another process appended, and stop what it has made needless here."""
        before = run.state.nodes
        await self.journal.reload(run)
        self.executing.interrupt(run)
        self.executing.give_way(run, before)
        if run.is_held and run.row is not None and run.row.holder != self.holding.process:
            self.executing.drop(run)

    def release(self, run: ActiveRun) -> None:
        """Let go of a run that has ended or waits: the store knows all there is to know."""
        if run.state.is_terminal or (run.is_idle and not run.lock.statistics().tasks_waiting):
            identity = run.state.identity
            self.runs.pop(identity.run_id, None)
            self.holding.memory.let_go(identity.tenant, identity.run_id)
            if run.has_crashes and self.wakeups.tasks is not None:
                # It did not end this process.
                self.wakeups.tasks.start_soon(self._clear_crashes, run)

    async def advance(self, tenant: str, run_id: str, stored: StoredRun | None = None) -> None:
        """Carry out what was wished, call what is due, and plan."""
        try:
            await self._advance(tenant, run_id, stored)
        finally:
            if run_id not in self.runs:
                # A run that was woken because there was memory for it may have needed none.
                self.holding.memory.let_go(tenant, run_id)

    async def _advance(self, tenant: str, run_id: str, stored: StoredRun | None) -> None:
        run = await self.load(tenant, run_id, stored)
        self.wakeups.begun(run_id)
        if run is None or run.state.is_terminal:
            return
        is_just_read = run_id not in self.runs
        if is_just_read and run.row is not None and run.row.crashes:
            await self._advance_after_crash(run, run.row)
        else:
            await self._advance_loaded(run, is_just_read=is_just_read)

    async def _advance_after_crash(self, run: ActiveRun, row: RunRow) -> None:
        """Advance a run that a process died with, and forget the crash once it is idle.

        Where processes share the store, after several crashes this process works on no other such
        run meanwhile, so that the next crash is counted for the run that causes it. The others wait
        for a limited time.
        """
        run.has_crashes = row.quarantined_at is None and row.holder is None
        most = self.journal.store.most_crashes
        if not (self.holding.is_shared and run.has_crashes and row.crashes >= most - 1):
            await self._advance_loaded(run, is_just_read=True)
            return
        tenant, run_id = run.state.identity.tenant, row.run_id
        # A process that is killed from outside shortly after its start ends without such a run.
        if self._suspects.locked() or time.monotonic() < self._began + WATCH_SECONDS:
            later = await self.journal.put_off(tenant, run_id, self.journal.now() + PUT_OFF_MS)
            if later is not None:
                self.wakeups.source.noted(later)
            return
        async with self._suspects:
            await self._advance_loaded(run, is_just_read=True)
            for _ in range(LOOKS):
                if run_id not in self.runs:
                    return
                await anyio.sleep(WATCH_SECONDS / LOOKS)
            await self._clear_crashes(run)

    async def _clear_crashes(self, run: ActiveRun) -> None:
        run.has_crashes = False
        with suppress(WoprError):
            await self.journal.store.clear_crashes(
                run.state.identity.tenant, run.state.identity.run_id
            )

    async def _advance_loaded(self, run: ActiveRun, *, is_just_read: bool) -> None:
        self.runs[run.state.identity.run_id] = run
        async with self.wakeups.turns.locked(run.lock):
            try:
                if not (is_just_read and self._is_fenced(run)):
                    await self.catch_up(run)
                await self._advance_locked(run)
            finally:
                self.release(run)

    def _is_fenced(self, run: ActiveRun) -> bool:
        """Whether a run that was read from the store can be advanced without a second look.

        Where processes share the store and none holds the run, nothing is executed before an append
        that fails when the log has moved on since.
        """
        row = run.row
        return (
            self.holding.is_shared
            and row is not None
            and row.holder is None
            and row.last_sequence == run.state.next_sequence - 1
        )

    async def _advance_locked(self, run: ActiveRun) -> None:
        row = await self._ours(run)
        if row is None:
            return
        if row.quarantined_at is not None and not isinstance(read_wish(row.wish), CancelWish):
            await self._rest(run, row)
            return
        heard, run.heard = run.heard, row.wakes
        try:
            await self._act(run, row)
        except BaseException:
            # For all that is known nothing was called: what woke the run is still to be acted on.
            run.heard = heard
            raise

    async def _rest(self, run: ActiveRun, row: RunRow) -> None:
        """Leave a run in quarantine alone: it is due again when it is released."""
        if row.wake_at is not None:
            tenant, resting = run.state.identity.tenant, replace(row, wake_at=None)
            await self.journal.store.append(
                tenant, [Batch(run=resting, first=row.last_sequence + 1)]
            )
            run.row = resting

    async def _act(self, run: ActiveRun, row: RunRow) -> None:
        wish = read_wish(row.wish)
        if isinstance(wish, CancelWish):
            await self.transact(run, lambda burst: cancel_run(run, burst, wish))
            return
        run.pausing = wish
        if run.state.identity.fork is not None and await self.forks.advance(run):
            return
        await self.transact(run, lambda burst: self.stepping.call_again(run, burst))

    async def catch_up(self, run: ActiveRun) -> None:
        """Take in what other processes have appended to a run that this one has in memory."""
        identity = run.state.identity
        run.row = await self.journal.store.run(identity.tenant, identity.run_id)
        if run.row is not None and run.row.last_sequence >= run.state.next_sequence:
            await self.reload(run)

    async def _ours(self, run: ActiveRun) -> RunRow | None:
        """The run's row if this process may advance it; the one that has it is told instead."""
        if run.row is None or run.state.is_terminal:
            return None
        holder = run.row.holder
        if holder is None:
            return run.row
        if holder == self.holding.process:
            # Also when the answer to the append that took it was lost.
            run.is_held = True
            return run.row
        await self.wakeups.source.tell(run.state.identity.tenant, run.row.run_id, holder)
        return None
