"""Nodes that wait: executed in the background by the one process that has their run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import anyio

from wopr.engine.outcome import Failed, NodeFailure, Outcome, Waiting
from wopr.engine.state import NodeState
from wopr.protocol.errors import HoldLost
from wopr.runtime.active import HEARD_NONE, ActiveRun
from wopr.runtime.agent_call import AgentCall
from wopr.runtime.appender import Burst
from wopr.runtime.call import NodeCall
from wopr.runtime.calling import call_and_wait
from wopr.runtime.children import child_views
from wopr.runtime.steps import is_current

if TYPE_CHECKING:
    from wopr.runtime.advance import Advancer


class Executing:
    """Executions in flight: begun when their start is on the log, ended with what came of them."""

    def __init__(self, advancer: Advancer) -> None:
        self._advancer = advancer

    def launch(self, run: ActiveRun) -> None:
        """Start the async nodes whose start is now on the log."""
        if self._advancer.holding.is_shared and not run.is_held:
            # Another process executes them: it has the run, or will.
            self.drop(run)
        if self._advancer.wakeups.tasks is None or not run.launch:
            return
        self._advancer.runs[run.state.identity.run_id] = run
        for node_id in run.launch:
            scope = run.in_flight[node_id] = anyio.CancelScope()
            run.missed.discard(node_id)
            self._advancer.wakeups.tasks.start_soon(self._execute, run, node_id, scope)
        run.launch.clear()

    async def _execute(self, run: ActiveRun, node_id: str, scope: anyio.CancelScope) -> None:
        """Call an async node and append what came of it."""
        call = AgentCall(self._advancer, run, node_id, run.state, now=self._advancer.journal.now())
        outcome: Outcome | None = None
        try:
            with scope:
                outcome = await self._call(run, call)
            turns = self._advancer.wakeups.turns
            async with turns.turn(call.tenant), turns.locked(run.lock):
                try:
                    await self._finish(run, call, outcome, scope)
                finally:
                    self._advancer.release(run)
        except HoldLost:
            # Whatever came of it here: the process that has the run calls the node itself.
            self.drop(run)
            self._advancer.release(run)
        except Exception as error:  # the outer edge of a task
            # The node stays running on the log, and is called again.
            if run.in_flight.get(node_id) is scope:
                del run.in_flight[node_id]
            await self._advancer.wakeups.later(call.tenant, call.run_id, error)

    async def _call(self, run: ActiveRun, call: AgentCall) -> Outcome | None:
        node_type = run.compiled.types[call.node_id]
        if node_type is None:
            return None
        try:
            call.children = await child_views(self._advancer.journal, call.state, call.node_id)
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
                await self._advancer.transact(run, lambda _: None)
            return

        def change(burst: Burst) -> None:
            if not is_current(burst.state, call.node_id, call.started_event):
                return
            self._advancer.stepping.settle(run, burst, call, outcome)
            if isinstance(outcome, Waiting) and call.node_id in run.missed:
                # What it waits for may have happened, and only this process knows. It is called
                # again before the run is let go, so that whoever takes over calls it too.
                run.launch.append(call.node_id)

        await self._advancer.transact(run, change, is_fence=self._advancer.holding.is_shared)

    async def flush(self, run: ActiveRun, call: NodeCall) -> None:
        """Append what a node in flight has emitted so far."""

        def change(burst: Burst) -> int:
            is_awaited = is_current(burst.state, call.node_id, call.started_event)
            return call.write(burst) if is_awaited else 0

        async with run.lock:
            # A node whose time is up meanwhile is stopped after the commit and not during it, so
            # that what this process knows and what the store holds stay the same.
            with anyio.CancelScope(shield=True):
                call.forget(
                    await self._advancer.transact(
                        run, change, is_fence=self._advancer.holding.is_shared
                    )
                )

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
        self._advancer.holding.note(run)

    def interrupt(self, run: ActiveRun) -> None:
        """Stop executions that the log no longer waits for."""
        for node_id, in_flight in list(run.in_flight.items()):
            if run.state.is_terminal or run.state.nodes[node_id].status != "running":
                in_flight.cancel()

    def give_way(self, run: ActiveRun, before: Mapping[str, NodeState]) -> None:
        """Stop executions of nodes that were begun anew elsewhere: another one of each is due."""
        for node_id in list(run.in_flight):
            if run.state.nodes[node_id].started_event != before[node_id].started_event:
                run.in_flight.pop(node_id).cancel()
