"""Advances forked runs: copies their history, then replays the record or goes on by itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from wopr.engine.fold import INTERRUPTED_BY_FORK
from wopr.engine.limits import node_deadline
from wopr.engine.outcome import NodeFailure
from wopr.engine.plan import plan
from wopr.engine.replay import Record, is_about, is_command, still_planned
from wopr.engine.state import RunState, initial
from wopr.engine.steps import Resume, Skip, Start, Step
from wopr.protocol.documents import JsonObject, Unset
from wopr.protocol.errors import SequenceTaken, Unavailable
from wopr.protocol.events import RunEvent
from wopr.protocol.forks import Fork
from wopr.protocol.offloading import Results, WorkNeeded, known_results
from wopr.protocol.runs import RunError
from wopr.protocol.times import to_millis
from wopr.runtime.active import ActiveRun
from wopr.runtime.appender import Burst
from wopr.runtime.forking import COPIED_AT_ONCE, copy_events, read_events
from wopr.runtime.holding import SAFETY_MS
from wopr.runtime.journal import MOST_RACES
from wopr.runtime.replay_burst import ReplayBurst, Script
from wopr.runtime.steps import error_json, fail_node, stop_nodes, take

if TYPE_CHECKING:
    from wopr.runtime.advance import Advancer


class Forks:
    """What is left to do for a run that was forked from another."""

    def __init__(self, advancer: Advancer) -> None:
        self._advancer = advancer
        self._journal = advancer.journal

    async def advance(self, run: ActiveRun) -> bool:
        """Copy what is missing of the history, and replay; False for a branch that is on its own."""
        fork = run.state.identity.fork
        if fork is None:
            return False
        await self.complete(run)
        if run.state.is_terminal:
            return True
        if fork.mode != "replay":
            return False
        await self._look_for_tools(run, fork)
        has_code = all(run.has_code(node_id) for node_id in run.compiled.types)
        return await self._unless_taken(run, self._replay_all if has_code else self._wait_for_code)

    async def complete(self, run: ActiveRun) -> None:
        """Copy what is missing of a fork's history: nothing else may be written before it is there.

        A fork whose source is gone is ended. The caller holds the run's lock.
        """
        fork = run.state.identity.fork
        if fork is not None and run.state.next_sequence <= fork.from_seq:
            await self._unless_taken(run, self._complete)

    async def _unless_taken(
        self, run: ActiveRun, work: Callable[[ActiveRun, Fork], Awaitable[None]]
    ) -> bool:
        """Do a part of the work; once more from where the log ends if another process wrote too."""
        races = 0
        results = Results()
        while races < MOST_RACES:
            fork = run.state.identity.fork
            if fork is None or run.state.is_terminal:
                return True
            # A crash between two commits leaves a wake-up behind, where others can answer it.
            run.due_in = SAFETY_MS if self._journal.is_shared else None
            try:
                with known_results(results):
                    await work(run, fork)
            except WorkNeeded as needed:
                self._journal.undo(run)
                await self._advancer.add_result(run, needed, results)
            except SequenceTaken:
                races += 1
                await self._advancer.reload(run)
            else:
                return True
        raise Unavailable("the run is being written elsewhere; try again")

    async def _complete(self, run: ActiveRun, fork: Fork) -> None:
        if not await self._copy(run, fork):
            await self._fail(run, fork)
        elif fork.mode == "branch":
            await self._begin_anew(run, fork)

    async def _replay_all(self, run: ActiveRun, fork: Fork) -> None:
        if not await self._replay(run, fork):
            await self._fail(run, fork)
        elif self._journal.is_shared:
            run.due_in = None  # only timers wake it from now on
            await self._commit(run, self._journal.burst(run))

    async def _wait_for_code(self, run: ActiveRun, _: Fork) -> None:
        """Leave a replay to a process that has the code of all its nodes."""
        run.missing_types = {
            node_id: run.code(node_id)
            for node_id in run.compiled.types
            if not run.has_code(node_id)
        }
        run.due_in = None
        if await self._journal.commit(run, self._journal.burst(run)):
            await self._advancer.hand_over(run)

    async def _look_for_tools(self, run: ActiveRun, fork: Fork) -> None:
        """Find the nodes of a replay whose tools this process has not.

        A replay asks with the same tools as its source, by the manifests of the source's time.
        """
        if run.compiled.has_agents and run.lacking_tools is None:
            tenant = run.state.identity.tenant
            for event in await read_events(self._journal, tenant, fork.source_run_id, 1):
                self._advancer.stepping.look_for_tools(run, to_millis(event.timestamp))

    async def _copy(self, run: ActiveRun, fork: Fork) -> bool:
        """Copy the prefix in pieces; a crash in between leaves the rest to the next advance.

        False when the source is gone.
        """
        tenant = run.state.identity.tenant
        if run.state.next_sequence >= fork.from_seq:
            return True
        events = await read_events(self._journal, tenant, fork.source_run_id, fork.from_seq)
        if len(events) < fork.from_seq:
            return False
        ids = await self._known_ids(run, events)
        while run.state.next_sequence < fork.from_seq and not await self._is_stopped(run):
            burst = self._journal.burst(run)
            end = min(run.state.next_sequence + COPIED_AT_ONCE, fork.from_seq)
            copy_events(burst, events[run.state.next_sequence : end], ids)
            await self._commit(run, burst)
        return True

    async def _begin_anew(self, run: ActiveRun, fork: Fork) -> None:
        """Let the nodes that were under way at the fork point begin again from their start.

        A node that never waits is simply called again. An async node may have left half of its
        work behind, such as children of the source. A node whose result is on the log only ends.
        A node that was suspended before its question was on the log asks again.
        """
        if run.state.next_sequence != fork.from_seq or run.state.is_terminal:
            return
        burst = self._journal.burst(run)
        for node_id, node in run.state.nodes.items():
            is_effect = run.compiled.may_have_effect(node_id)
            is_unasked = node.interrupt is not None and not node.interrupt.data
            is_done = node.holds_outputs or node.decision is not None
            is_cut = node.status == "running" and is_effect and not is_done
            if is_cut or (node.status == "suspended" and is_unasked):
                payload: JsonObject = {"nodeId": node_id, "reason": INTERRUPTED_BY_FORK}
                burst.add("node.cancelled", payload, node_id=node_id)
        await self._commit(run, burst)

    async def _fail(self, run: ActiveRun, fork: Fork) -> None:
        """End a fork whose source was deleted before all of it was read."""
        burst = self._journal.burst(run)
        _end(run, burst, _incomplete(f"the source run {fork.source_run_id} is gone"))
        await self._commit(run, burst)

    async def _is_stopped(self, run: ActiveRun) -> bool:
        """End a fork that would write far beyond a quota of its tenant; whether it was."""
        burst = self._journal.burst(run)
        try:
            burst.check_room()
        except NodeFailure as failure:
            _end(run, burst, failure.error)
            await self._commit(run, burst)
            return True
        return False

    async def _commit(self, run: ActiveRun, burst: Burst) -> None:
        if await self._journal.commit(run, burst):
            self._advancer.committed(run, burst)

    async def _known_ids(self, run: ActiveRun, source: list[RunEvent]) -> dict[str, str]:
        """Which event of the source became which of the fork, for what is copied already."""
        identity = run.state.identity
        own = await read_events(
            self._journal, identity.tenant, identity.run_id, run.state.next_sequence
        )
        return {a.event_id: b.event_id for a, b in zip(source, own, strict=False)}

    async def _replay(self, run: ActiveRun, fork: Fork) -> bool:
        """Follow the record as far as it goes; False when the source is gone."""
        script = await self._script(run, fork)
        if script is None:
            return False
        while not run.state.is_terminal:
            # One that is paused waits on, also beyond a quota.
            if run.state.status != "paused" and await self._is_stopped(run):
                break
            burst = self._journal.replay_burst(run, script)
            self._fill(run, burst)
            run.launch.clear()
            if not burst.events:
                break
            await self._commit(run, burst)
        return True

    async def _script(self, run: ActiveRun, fork: Fork) -> Script | None:
        """The record, and the place in it that the fork's own log has reached."""
        tenant = run.state.identity.tenant
        row = await self._journal.store.run(tenant, fork.source_run_id)
        if row is None:
            return None
        source = await read_events(self._journal, tenant, row.run_id, row.last_sequence + 1)
        own = await read_events(
            self._journal, tenant, run.state.identity.run_id, run.state.next_sequence
        )
        repeated = [event for event in own if not event.type.startswith("replay.")]
        record = Record(source)
        return Script(
            source_run_id=fork.source_run_id,
            record=record,
            place=len(repeated),
            planned=self._still_planned(run, own),
            midway=frozenset(n for n, s in run.state.nodes.items() if s.status == "running"),
            has_diverged=len(repeated) != len(own),
            ids={a.event_id: b.event_id for a, b in zip(record.events, repeated, strict=False)},
        )

    def _still_planned(self, run: ActiveRun, history: list[RunEvent]) -> list[Step]:
        begin = initial(run.state.identity, run.compiled.graph)
        return still_planned(begin, history, self._journal.limits, run.vault.reveal)

    def _fill(self, run: ActiveRun, burst: ReplayBurst) -> None:
        """Work out events until the burst is full, the run ends, or nothing more can happen."""
        while not burst.state.is_terminal and not burst.is_full:
            if burst.script.has_diverged and _holds_masked_values(run):
                message = "the source run's sensitive values are on record only masked"
                _end(run, burst, _incomplete(message))
                return
            # The clock is that of what came next, also for what the engine makes of it.
            burst.look_up_time()
            if self._repeat_facts(run, burst) or self._work(run, burst):
                continue
            expected = burst.script.next
            if expected is not None:
                # The record has what this run does not come to: say so, and look at the next.
                burst.diverge(expected, "missing")
                burst.script.place += 1
            elif not self._go_beyond(run, burst):
                return

    def _repeat_facts(self, run: ActiveRun, burst: ReplayBurst) -> bool:
        """Repeat what came next if it came from outside; False when the run itself did it."""
        expected = burst.script.next
        if expected is None:
            return False
        if is_command(expected):
            # What an operator did at once is repeated at once: nothing starts in between.
            while expected is not None and is_command(expected):
                burst.repeat(expected)
                expected = burst.script.next
            return True
        if _is_fact(run, burst.state, expected) or expected.node_id in burst.script.midway:
            self._repeat(burst, expected)
            return True
        return False

    def _work(self, run: ActiveRun, burst: ReplayBurst) -> bool:
        """Do what the run does by itself; False when it comes to nothing."""
        expected = burst.script.next
        node = None if expected is None else burst.state.nodes.get(str(expected.node_id))
        if node is not None and node.status == "running":
            # A node that was due came first: whoever wakes a run calls those, then plans.
            return self._call_due(run, burst) or self._take_steps(run, burst)
        return self._take_steps(run, burst) or (expected is not None and self._call_due(run, burst))

    def _take_steps(self, run: ActiveRun, burst: ReplayBurst) -> bool:
        """Take the engine's next steps, in the order of the record as far as that has them."""
        before = len(burst.events)
        steps, burst.script.planned = burst.script.planned, []
        if not steps:
            state = run.vault.reveal(burst.state)
            steps = list(plan(state, burst.now, self._journal.limits).steps)
        left = list(steps)
        while (expected := burst.script.next) is not None and not burst.state.is_terminal:
            named = next((step for step in left if is_about(step, expected)), None)
            if named is None:
                break
            left.remove(named)
            self._take(run, burst, named)
        if len(burst.events) == before:
            for step in steps:
                self._take(run, burst, step)
        return len(burst.events) > before

    def _take(self, run: ActiveRun, burst: ReplayBurst, step: Step) -> None:
        expected = burst.script.next
        if expected is not None and _is_same_skip(step, expected):
            # Why it was skipped is told as it was seen then, before others were skipped as well.
            burst.repeat(expected)
        elif isinstance(step, Resume):
            self._advancer.stepping.resume_node(run, burst, step)
        elif isinstance(step, Start):
            self._advancer.stepping.start_node(run, burst, step)
            keys = self._advancer.stepping.asked_keys(run, burst, step.node_id)
            if keys is not None:
                burst.script.asked[step.node_id] = keys
        else:
            take(run, burst, step)

    def _call_due(self, run: ActiveRun, burst: ReplayBurst) -> bool:
        before = len(burst.events)
        with burst.standing_still():
            self._advancer.stepping.call_again(run, burst)
        return len(burst.events) > before

    def _repeat(self, burst: ReplayBurst, expected: RunEvent) -> None:
        """Repeat a fact, and with the answer to a held decision all that it led to."""
        node_id = expected.node_id
        node = None if isinstance(node_id, Unset) else burst.state.nodes.get(node_id)
        held = node is not None and node.holds_outputs
        burst.repeat(expected)
        if isinstance(node_id, str) and node_id in burst.script.midway:
            # Once it has ended it is a node like any other, should it start again.
            burst.script.midway -= {node_id} if _has_ended(burst.state, node_id) else set()
        while held and isinstance(node_id, str) and not _has_ended(burst.state, node_id):
            following = burst.script.next
            if following is None:
                return
            burst.repeat(following)

    def _go_beyond(self, run: ActiveRun, burst: ReplayBurst) -> bool:
        """Past the record: time goes on at once, and an effect that was not recorded fails."""
        state = burst.state
        if state.status == "paused":
            return False
        for node_id, node in state.nodes.items():
            node_type = run.compiled.types[node_id]
            if node.status == "running" and node_type is not None and node_type.is_async:
                fail_node(burst, node_id, _source_missing(node_id))
                return True
        due = [until for until in run.parked.values() if until is not None]
        due += [node.retry_at for node in state.nodes.values() if node.status == "retrying"]
        running = [node_id for node_id, node in state.nodes.items() if node.status == "running"]
        due += [at for each in running if (at := node_deadline(state, each)) is not None]
        if not due:
            return False
        burst.go_on_to(max(burst.now, min(due)))
        is_retry = any(node.status == "retrying" for node in state.nodes.values())
        return self._call_due(run, burst) or is_retry


def _is_fact(run: ActiveRun, state: RunState, event: RunEvent) -> bool:
    """Whether an event comes from outside the engine: an effect's outcome or a person's answer."""
    if isinstance(event.node_id, Unset):
        return False
    node, node_type = state.nodes.get(event.node_id), run.compiled.types.get(event.node_id)
    if node is None:
        return False
    is_effect = node_type is not None and node_type.is_async and node.status == "running"
    return is_effect or node.status in ("suspended", "resuming")


def _is_same_skip(step: Step, event: RunEvent) -> bool:
    return isinstance(step, Skip) and event.type == "node.skipped" and is_about(step, event)


def _incomplete(message: str) -> RunError:
    """The error of a fork that lacks what it needs of its source."""
    return RunError(code="replay_source_missing", message=message, retryable=False)


def _end(run: ActiveRun, burst: Burst, error: RunError) -> None:
    """Fail a fork."""
    stop_nodes(run, burst, "run-failed")
    burst.add("run.failed", {"error": error_json(error)})


def _holds_masked_values(run: ActiveRun) -> bool:
    graph = run.compiled.graph
    is_marked = any(any(n.output_sensitivity.values()) for n in graph.nodes.values())
    return bool(graph.sensitive_variables or graph.sensitive_channels) or is_marked


def _has_ended(state: RunState, node_id: str) -> bool:
    return state.nodes[node_id].status in ("completed", "failed", "cancelled")


def _source_missing(node_id: str) -> RunError:
    return RunError(
        code="replay_source_missing",
        message=f"the source run holds no recorded outcome of {node_id}",
        retryable=False,
    )
