"""The advance loop: fold, plan, execute, append, until the run ends or waits.

One run has one writer in this process, held by its lock; across processes the sequence is the
fence, and whoever loses a race reloads the log and plans again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.abc
import httpx
import msgspec
import structlog

from wopr.engine.outcome import Failed, NodeFailure, Outcome
from wopr.engine.plan import Breach, Start, plan
from wopr.nodes.registry import NodeType
from wopr.protocol.documents import JsonObject, Unset
from wopr.protocol.errors import SequenceTaken, Unavailable, WoprError
from wopr.protocol.runs import RunError
from wopr.runtime.active import ActiveRun
from wopr.runtime.appender import Burst
from wopr.runtime.call import NodeCall
from wopr.runtime.calling import call_and_wait, call_now
from wopr.runtime.children import child_views
from wopr.runtime.journal import PAGE, Journal
from wopr.runtime.metrics import Metrics
from wopr.runtime.steps import cancel_run, fail_node, is_current, settle, take
from wopr.runtime.timers import Timers
from wopr.runtime.tracing import Tracing
from wopr.runtime.wishes import CancelWish, PauseWish, read_wish
from wopr.store.port import RememberedAnswer

T = TypeVar("T")

# Events of one append: enough for any ordinary advance, small enough to let others commit.
LARGEST_BURST = 200
# How often a writer that lost a race looks again before it gives up.
MOST_RACES = 20

log = structlog.get_logger("wopr.advance")


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
    ) -> None:
        self.journal = journal
        self.http = http
        self.timers = Timers(journal.store, self.wake_soon, journal.now)
        self.runs: dict[str, ActiveRun] = {}
        self._metrics = metrics
        self._tracing = tracing
        self._provides = provides
        self._waking: set[str] = set()
        self._tasks: anyio.abc.TaskGroup | None = None

    async def start(self, tasks: anyio.abc.TaskGroup) -> None:
        """Start the timers and take up every run that has not ended."""
        self._tasks = tasks
        tasks.start_soon(self.timers.run_forever)
        after: tuple[str, str] | None = None
        while page := await self.journal.store.unfinished(after, PAGE):
            for tenant, run_id in page:
                await self.wake(tenant, run_id)
            after = page[-1]

    async def load(self, tenant: str, run_id: str) -> ActiveRun | None:
        """The run that this process works on, or one folded from its log."""
        kept = self.runs.get(run_id)
        if kept is not None:
            return kept if kept.state.identity.tenant == tenant else None
        run = await self.journal.load(tenant, run_id)
        # Another task may have taken it up while this one read.
        return self.runs.get(run_id, run)

    async def transact(self, run: ActiveRun, change: Callable[[Burst], T]) -> T:
        """Append what `change` adds and everything that follows from it. The caller holds the lock.

        When another process appended first, the run is reloaded and `change` is asked again; an
        error that it raises leaves nothing written.
        """
        for _ in range(MOST_RACES):
            burst = self.journal.burst(run)
            result = change(burst)
            try:
                await self.advance(run, burst)
            except SequenceTaken:
                await self.journal.reload(run)
                self.interrupt(run)
                continue
            return result
        raise Unavailable("the run is being written elsewhere; try again")

    async def advance(
        self, run: ActiveRun, burst: Burst, remember: RememberedAnswer | None = None
    ) -> None:
        """Take the steps that follow from a burst, commit, and go on while there are more."""
        more = self._take_steps(run, burst)
        if await self.journal.commit(run, burst, remember):
            self._committed(run, burst)
        self._launch(run)
        if more:
            await self.advance(run, self.journal.burst(run))

    def _committed(self, run: ActiveRun, burst: Burst) -> None:
        """Tell timers, parent and children what the store now knows."""
        identity = run.state.identity
        self._metrics.appended(burst.events)
        if run.row is not None:
            self.timers.note(run.row.wake_at)
        for wish in burst.wishes:
            self.wake_soon(identity.tenant, wish.run_id)
        for child in burst.children:
            self.wake_soon(identity.tenant, child.run.run_id)
        if run.state.is_terminal:
            self.runs.pop(identity.run_id, None)
            run.launch.clear()
            run.parked.clear()
            self.interrupt(run)
            self._metrics.ended(run.state.status)
            self._tracing.export(run.state)
            if identity.parent_run_id is not None:
                self.wake_soon(identity.tenant, identity.parent_run_id)

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
                    _pause_when_drained(run, burst)
            if not steps:
                return False
            for step in steps:
                if isinstance(step, Start):
                    self._start(run, burst, step)
                else:
                    take(run, burst, step)
        return False

    def _start(self, run: ActiveRun, burst: Burst, step: Start) -> None:
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
        payload: JsonObject = {"nodeId": node.id, "typeId": node.type_id, "attempt": step.attempt}
        if not isinstance(node.agent, Unset):
            payload["agent"] = msgspec.to_builtins(node.agent)
        burst.add("node.started", payload, node_id=node.id)
        self._call_or_launch(run, burst, node.id, node_type)

    def _call_or_launch(
        self, run: ActiveRun, burst: Burst, node_id: str, node_type: NodeType
    ) -> None:
        if node_type.is_async:
            run.launch.append(node_id)
            return
        call = NodeCall(self, run, node_id, burst.state, now=burst.now)
        _settle(run, burst, call, call_now(run, call, node_type))

    def call_again(self, run: ActiveRun, burst: Burst) -> None:
        """Call every running node that is due, or that nobody in this process is executing."""
        if burst.state.status == "paused":
            return
        for node_id, node in list(burst.state.nodes.items()):
            if node.status != "running" or node_id in run.in_flight:
                continue
            until = run.parked.get(node_id, 0)
            node_type = run.compiled.types[node_id]
            if node_type is not None and (until is None or until <= burst.now):
                self._call_or_launch(run, burst, node_id, node_type)

    # Nodes that wait

    def _launch(self, run: ActiveRun) -> None:
        """Start the async nodes whose start is now on the log."""
        if self._tasks is None or not run.launch:
            return
        self.runs[run.state.identity.run_id] = run
        for node_id in run.launch:
            run.in_flight[node_id] = anyio.CancelScope()
            self._tasks.start_soon(self._execute, run, node_id)
        run.launch.clear()

    async def _execute(self, run: ActiveRun, node_id: str) -> None:
        node = run.state.nodes[node_id]
        node_type = run.compiled.types[node_id]
        if node_type is None:
            return
        done: tuple[NodeCall, Outcome] | None = None
        with run.in_flight[node_id]:
            state = run.state
            now = self.journal.now()
            children = await child_views(self.journal, state, node_id) if node.children else ()
            call = NodeCall(self, run, node_id, state, now=now, children=children)
            done = (call, await call_and_wait(run, call, node_type, now))
        if done is None:
            run.in_flight.pop(node_id, None)
        else:
            await self._finish(run, *done, node.started_event)

    async def _finish(
        self, run: ActiveRun, call: NodeCall, outcome: Outcome, started_event: str
    ) -> None:
        """Append what came of an async node, unless the run has moved on without it."""
        async with run.lock:
            run.in_flight.pop(call.node_id, None)

            def change(burst: Burst) -> None:
                if is_current(burst.state, call.node_id, started_event):
                    _settle(run, burst, call, outcome)

            try:
                if not run.state.is_terminal:
                    await self.transact(run, change)
            except WoprError as error:
                # The store would not take it. The node stays running on the log and is called
                # again by the next wake-up or the next start.
                log.error("append failed", run_id=call.run_id, code=error.code, message=str(error))
            self._release(run)

    async def flush(self, run: ActiveRun, call: NodeCall) -> None:
        """Append what a node in flight has emitted so far."""
        async with run.lock:
            if not run.state.is_terminal:
                await self.transact(run, call.drain)

    def _release(self, run: ActiveRun) -> None:
        """Let go of a run that waits: the store knows all there is to know."""
        if run.is_idle and not run.lock.statistics().tasks_waiting:
            self.runs.pop(run.state.identity.run_id, None)

    # Wake-ups

    def wake_soon(self, tenant: str, run_id: str) -> None:
        """Advance a run in the background, once however often it is asked for."""
        if self._tasks is not None and run_id not in self._waking:
            self._waking.add(run_id)
            self._tasks.start_soon(self.wake, tenant, run_id)

    async def wake(self, tenant: str, run_id: str) -> None:
        """Advance a run: carry out what was wished, call what is due, and plan."""
        try:
            run = await self.load(tenant, run_id)
            self._waking.discard(run_id)
            if run is None or run.state.is_terminal:
                return
            self.runs[run_id] = run
            async with run.lock:
                if not run.state.is_terminal:
                    await self._wake_locked(run)
                self._release(run)
        except WoprError as error:
            self._waking.discard(run_id)
            log.error("advance failed", run_id=run_id, code=error.code, message=str(error))

    async def _wake_locked(self, run: ActiveRun) -> None:
        identity = run.state.identity
        run.row = await self.journal.store.run(identity.tenant, identity.run_id)
        wish = read_wish(run.row.wish if run.row is not None else None)
        if isinstance(wish, CancelWish):
            await self.transact(run, lambda burst: cancel_run(run, burst, wish))
            return
        run.pausing = None if run.state.status == "paused" else wish
        await self.transact(run, lambda burst: self.call_again(run, burst))
        if isinstance(wish, PauseWish) and run.state.status == "paused":
            await self.journal.store.set_wish(
                identity.tenant, identity.run_id, None, self.journal.now()
            )


def _settle(run: ActiveRun, burst: Burst, call: NodeCall, outcome: Outcome) -> None:
    try:
        call.drain(burst)
    except NodeFailure as failure:
        outcome = Failed(failure.error)
    settle(run, burst, call.node_id, outcome)


def _pause_when_drained(run: ActiveRun, burst: Burst) -> None:
    if any(node.status == "running" for node in burst.state.nodes.values()):
        return
    reason = {"reason": run.pausing.reason} if run.pausing and run.pausing.reason else {}
    run.pausing = None
    burst.add("run.paused", {**reason, "drainPolicy": "drain-current-node"})


def _not_provided(type_id: str, missing: list[str]) -> RunError:
    return RunError(
        code="capability_not_provided",
        message=f"{type_id} requires {', '.join(missing)}, which this host does not provide",
        details={"missing": missing},
    )
