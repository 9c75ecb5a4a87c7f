"""The advance loop: fold, plan, execute, append, until the run ends or waits.

One run has one writer in this process, held by its lock; across processes the sequence is the
fence, and whoever loses a race reloads the log and plans again. Nodes that wait are executed by the
one process that holds the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import anyio
import httpx
import msgspec

from wopr.agents.memory import Memory
from wopr.engine.outcome import Completed, Failed, NodeFailure, Outcome, Suspended, Waiting
from wopr.engine.plan import plan
from wopr.engine.steps import Breach, Start
from wopr.nodes.registry import NodeType
from wopr.protocol.documents import JsonObject, Unset
from wopr.protocol.errors import HoldLost, SequenceTaken, Unavailable, WoprError
from wopr.protocol.runs import RunError
from wopr.runtime.active import HEARD_NONE, ActiveRun
from wopr.runtime.agent_call import AgentCall, AgentServices
from wopr.runtime.appender import Burst
from wopr.runtime.call import NodeCall
from wopr.runtime.calling import call_and_wait, call_now, keys_of
from wopr.runtime.children import child_views
from wopr.runtime.forks import Forks
from wopr.runtime.handoff_schemas import check_return
from wopr.runtime.handoffs import hand_over
from wopr.runtime.holding import Holding
from wopr.runtime.journal import MOST_RACES, Journal
from wopr.runtime.metrics import Metrics
from wopr.runtime.resolving import play_script
from wopr.runtime.steps import cancel_run, fail_node, is_current, settle, take
from wopr.runtime.suspending import hold
from wopr.runtime.tracing import Tracing
from wopr.runtime.wakeups import Wakeups, WakeupSource
from wopr.runtime.wishes import CancelWish, PauseWish, read_wish
from wopr.store.port import RememberedAnswer, RunRow

T = TypeVar("T")

# Events of one append: enough for any ordinary advance, small enough to let others commit.
LARGEST_BURST = 200


class Advancer:
    """Moves runs forward."""

    def __init__(
        self,
        journal: Journal,
        *,
        http: httpx.AsyncClient,
        metrics: Metrics,
        tracing: Tracing,
        provides: frozenset[str],
        services: AgentServices,
        memory: Memory,
        source: WakeupSource,
        holding: Holding | None = None,
    ) -> None:
        self.journal = journal
        self.http = http
        self.services = services
        self.memory = memory
        self.holding = holding or Holding()
        self.wakeups = Wakeups(journal, self.advance, source)
        self.runs: dict[str, ActiveRun] = {}
        self._metrics = metrics
        self._tracing = tracing
        self._provides = provides
        self.forks = Forks(self)

    async def load(self, tenant: str, run_id: str) -> ActiveRun | None:
        """The run that this process works on, or one folded from its log."""
        kept = self.runs.get(run_id)
        if kept is not None:
            return kept if kept.state.identity.tenant == tenant else None
        run = await self.journal.load(tenant, run_id)
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
        for _ in range(MOST_RACES):
            burst = self.journal.burst(run)
            try:
                result = change(burst)
                return result, await self._append(run, burst, is_fence=is_fence)
            except SequenceTaken:
                await self.reload(run)
            except BaseException:
                self.journal.undo(run)
                raise
        raise Unavailable("the run is being written elsewhere; try again")

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
        more = not is_replay and self._take_steps(run, burst)
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
        if is_replay:
            # Whatever somebody did to a replay, only its record moves it on: nothing is executed.
            run.launch.clear()
            self.wakeups.soon(identity.tenant, identity.run_id)
        self._launch(run)
        return more

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
            run.launch.clear()
            run.parked.clear()
            self.interrupt(run)
            self._metrics.ended(run.state.status)
            self._tracing.ended(run.state)
            if identity.parent_run_id is not None:
                self.wakeups.source.woke(identity.tenant, identity.parent_run_id)

    async def reload(self, run: ActiveRun) -> None:
        """Take in what another process appended, and stop what it has made needless here."""
        before = run.state.nodes
        await self.journal.reload(run)
        self.interrupt(run)
        for node_id in list(run.in_flight):
            if run.state.nodes[node_id].started_event != before[node_id].started_event:
                # Begun anew elsewhere: nobody waits for this execution, and another one is due.
                run.in_flight.pop(node_id).cancel()
        if run.is_held and run.row is not None and run.row.holder != self.holding.process:
            self.drop(run)

    def drop(self, run: ActiveRun) -> None:
        """Stop executing a run that another process has by now."""
        if not run.is_idle:
            # Nodes are to be called elsewhere: what says so in the row is not for this one to clear.
            run.heard = HEARD_NONE
        for in_flight in run.in_flight.values():
            in_flight.cancel()
        run.in_flight.clear()
        run.launch.clear()
        run.is_held = False
        self.holding.note(run)

    def interrupt(self, run: ActiveRun) -> None:
        """Stop executions that the log no longer waits for."""
        for node_id, in_flight in list(run.in_flight.items()):
            if run.state.is_terminal or run.state.nodes[node_id].status != "running":
                in_flight.cancel()

    # Steps

    def _take_steps(self, run: ActiveRun, burst: Burst) -> bool:
        """Take every step that needs no waiting; True when the burst is full and more are left."""
        while not burst.state.is_terminal:
            if len(burst.events) >= LARGEST_BURST:
                return True
            steps = plan(run.vault.reveal(burst.state), burst.now, self.journal.limits).steps
            if run.pausing is not None:
                steps = tuple(step for step in steps if isinstance(step, Breach))
                if not steps:
                    _pause_when_drained(run.pausing, burst)
            if not steps:
                return False
            for step in steps:
                if isinstance(step, Start):
                    self.start_node(run, burst, step)
                else:
                    take(run, burst, step)
        return False

    def start_node(self, run: ActiveRun, burst: Burst, step: Start) -> None:
        """Append a node's start, and call it unless it may wait."""
        node = run.compiled.graph.nodes[step.node_id]
        node_type = run.compiled.types[node.id]
        if node_type is None:
            message = f"this host has no node type {node.type_id!r}"
            fail_node(burst, node.id, RunError(code="unsupported_node_type", message=message))
            return
        missing = [need for need in node_type.requires if need not in self._provides]
        if missing:
            fail_node(burst, node.id, _not_provided(node.type_id, missing))
            return
        hand_over(burst, node)
        payload: JsonObject = {"nodeId": node.id, "typeId": node.type_id, "attempt": step.attempt}
        if not isinstance(node.agent, Unset):
            payload["agent"] = msgspec.to_builtins(node.agent)
        burst.add("node.started", payload, node_id=node.id)
        self._call_or_launch(run, burst, node.id, node_type)

    def asked_keys(self, run: ActiveRun, burst: Burst, node_id: str) -> frozenset[str] | None:
        """What a node would ask a model first, for a replay to compare; None when it asks none."""
        node_type = run.compiled.types[node_id]
        if node_type is None or burst.state.nodes[node_id].status != "running":
            return None
        return keys_of(run, AgentCall(self, run, node_id, burst.state, now=burst.now), node_type)

    def _call_or_launch(
        self, run: ActiveRun, burst: Burst, node_id: str, node_type: NodeType
    ) -> None:
        if node_type.is_async:
            run.launch.append(node_id)
            return
        call = AgentCall(self, run, node_id, burst.state, now=burst.now)
        self._settle(run, burst, call, call_now(run, call, node_type))

    def _settle(self, run: ActiveRun, burst: Burst, call: AgentCall, outcome: Outcome) -> None:
        """Append what a node emitted and what came of its call."""
        try:
            call.write(burst)
        except NodeFailure as failure:
            outcome = Failed(failure.error)
        if isinstance(outcome, Completed):
            outcome = check_return(call, outcome) or outcome
        doubt = call.doubt(burst) if isinstance(outcome, Completed) else None
        if doubt is not None and isinstance(outcome, Completed):
            fault = hold(burst, call.node_id, doubt, outcome.outputs)
            if fault is not None:
                fail_node(burst, call.node_id, fault)
            return
        settle(run, burst, call.node_id, outcome)
        if isinstance(outcome, Suspended) and outcome.script:
            play_script(burst, call.node_id, outcome.script)
            self.call_again(run, burst)

    def call_again(self, run: ActiveRun, burst: Burst) -> None:
        """Call every running node that is due, or that nobody in this process is executing."""
        if burst.state.status == "paused":
            return
        for node_id, node in list(burst.state.nodes.items()):
            if node.status != "running" or node_id in run.launch:
                continue
            if node_id in run.in_flight:
                run.missed.add(node_id)
                continue
            until = run.parked.get(node_id, 0)
            node_type = run.compiled.types[node_id]
            if node_type is not None and (until is None or until <= burst.now):
                self._call_or_launch(run, burst, node_id, node_type)

    # Nodes that wait

    def _launch(self, run: ActiveRun) -> None:
        """Start the async nodes whose start is now on the log."""
        if self.holding.is_shared and not run.is_held:
            # Another process executes them: it has the run, or will.
            self.drop(run)
        if self.wakeups.tasks is None or not run.launch:
            return
        self.runs[run.state.identity.run_id] = run
        for node_id in run.launch:
            scope = run.in_flight[node_id] = anyio.CancelScope()
            run.missed.discard(node_id)
            self.wakeups.tasks.start_soon(self._execute, run, node_id, scope)
        run.launch.clear()

    async def _execute(self, run: ActiveRun, node_id: str, scope: anyio.CancelScope) -> None:
        """Call an async node and append what came of it."""
        call = AgentCall(self, run, node_id, run.state, now=self.journal.now())
        outcome: Outcome | None = None
        try:
            with scope:
                outcome = await self._call(run, call)
            async with run.lock:
                try:
                    await self._finish(run, call, outcome, scope)
                finally:
                    self.release(run)
        except HoldLost:
            # Whatever came of it here: the process that has the run calls the node itself.
            self.drop(run)
            self.release(run)
        except Exception as error:  # the outer edge of a task
            # The node stays running on the log, and is called again.
            if run.in_flight.get(node_id) is scope:
                del run.in_flight[node_id]
            await self.wakeups.later(call.tenant, call.run_id, error)

    async def _call(self, run: ActiveRun, call: AgentCall) -> Outcome | None:
        node_type = run.compiled.types[call.node_id]
        if node_type is None:
            return None
        try:
            call.children = await child_views(self.journal, call.state, call.node_id)
        except NodeFailure as failure:
            return Failed(failure.error)
        return await call_and_wait(run, call, node_type, call.now)

    async def _finish(
        self, run: ActiveRun, call: AgentCall, outcome: Outcome | None, scope: anyio.CancelScope
    ) -> None:
        """Append the outcome of an async node, unless the run has moved on without it."""
        # A node that was interrupted may be in flight again before its first execution is done.
        if run.in_flight.get(call.node_id) is scope:
            del run.in_flight[call.node_id]
        if outcome is None or run.state.is_terminal:
            if run.is_held and run.is_idle:
                # It was interrupted, and nothing that the log says shows that it has ended here.
                await self.transact(run, lambda _: None)
            return

        def change(burst: Burst) -> None:
            if not is_current(burst.state, call.node_id, call.started_event):
                return
            self._settle(run, burst, call, outcome)
            if isinstance(outcome, Waiting) and call.node_id in run.missed:
                # What it waits for may have happened, and only this process knows. It is called
                # again before the run is let go, so that whoever takes over calls it too.
                run.launch.append(call.node_id)

        await self.transact(run, change, is_fence=self.holding.is_shared)

    async def flush(self, run: ActiveRun, call: NodeCall) -> None:
        """Append what a node in flight has emitted so far."""

        def change(burst: Burst) -> int:
            is_awaited = is_current(burst.state, call.node_id, call.started_event)
            return call.write(burst) if is_awaited else 0

        async with run.lock:
            # A node whose time is up meanwhile is stopped after the commit and not during it, so
            # that what this process knows and what the store holds stay the same.
            with anyio.CancelScope(shield=True):
                call.forget(await self.transact(run, change, is_fence=self.holding.is_shared))

    def release(self, run: ActiveRun) -> None:
        """Let go of a run that has ended or waits: the store knows all there is to know."""
        if run.state.is_terminal or (run.is_idle and not run.lock.statistics().tasks_waiting):
            self.runs.pop(run.state.identity.run_id, None)

    async def advance(self, tenant: str, run_id: str) -> None:
        """Carry out what was wished, call what is due, and plan."""
        run = await self.load(tenant, run_id)
        self.wakeups.begun(run_id)
        if run is None or run.state.is_terminal:
            return
        self.runs[run_id] = run
        async with run.lock:
            try:
                await self._advance_locked(run)
            finally:
                self.release(run)

    async def _advance_locked(self, run: ActiveRun) -> None:
        row = await self._ours(run)
        if row is None:
            return
        heard, run.heard = run.heard, row.wakes
        try:
            await self._act(run, row)
        except BaseException:
            # For all that is known nothing was called: what woke the run is still to be acted on.
            run.heard = heard
            raise

    async def _act(self, run: ActiveRun, row: RunRow) -> None:
        wish = read_wish(row.wish)
        if isinstance(wish, CancelWish):
            await self.transact(run, lambda burst: cancel_run(run, burst, wish))
            return
        run.pausing = wish
        if run.state.identity.fork is not None and await self.forks.advance(run):
            return
        await self.transact(run, lambda burst: self.call_again(run, burst))

    async def catch_up(self, run: ActiveRun) -> None:
        """Take in what other processes have appended to a run that this one has in memory."""
        identity = run.state.identity
        run.row = await self.journal.store.run(identity.tenant, identity.run_id)
        if run.row is not None and run.row.last_sequence >= run.state.next_sequence:
            await self.reload(run)

    async def _ours(self, run: ActiveRun) -> RunRow | None:
        """The run's row if this process may advance it; the one that has it is told instead."""
        await self.catch_up(run)
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


def _pause_when_drained(pausing: PauseWish, burst: Burst) -> None:
    is_running = any(node.status == "running" for node in burst.state.nodes.values())
    if burst.state.status == "paused" or is_running:
        return
    reason = {"reason": pausing.reason} if pausing.reason else {}
    burst.add("run.paused", {**reason, "drainPolicy": "drain-current-node"})


def _not_provided(type_id: str, missing: list[str]) -> RunError:
    return RunError(
        code="capability_not_provided",
        message=f"{type_id} requires {', '.join(missing)}, which this host does not provide",
        details={"missing": missing},
    )
