"""Advance forked runs: copy their history, then replay the record or continue as a branch."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from wopr.cluster.leases import RECOVERY_DELAY_MS
from wopr.engine.fold.fold import INTERRUPTED_BY_FORK
from wopr.engine.limits import node_deadline
from wopr.engine.outcome import NodeFailure
from wopr.engine.plan import Resume, Skip, Start, Step, plan
from wopr.engine.replay import (
    CHANGED_PROMPT,
    ReplayRecord,
    divergence,
    is_about,
    is_command,
    remaining_steps,
    request_key_of,
)
from wopr.engine.state import RunState, initial_state, time_shift
from wopr.protocol.documents import JsonObject, Unset, to_iso, to_millis
from wopr.protocol.events import RunEvent
from wopr.protocol.forks import Fork
from wopr.protocol.runs import RunError
from wopr.runs.active import ActiveRun
from wopr.runs.active_runs import ActiveRuns
from wopr.runs.append import AppendRules, EventBatch
from wopr.runs.execution.execute import Executor, apply_step
from wopr.runs.execution.node_events import fail_node, fail_run
from wopr.runs.forks.create import COPIED_AT_ONCE, copy_events, read_events
from wopr.runs.sensitive_values import has_sensitive_values


@dataclass(slots=True)
class ReplayCursor:
    """A record, and the position of a replay in it."""

    source_run_id: str
    record: ReplayRecord
    position: int = 0
    has_diverged: bool = False
    # Nodes that were running at the start of the replay. Their remaining events are copied.
    running_at_start: frozenset[str] = frozenset()
    # Steps that were planned before the start of the replay and not applied yet.
    planned: list[Step] = field(default_factory=list[Step])
    # Keys of the first model requests of running nodes, until they are compared.
    request_keys: dict[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    # Event ids of the source to event ids of the replay.
    ids: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def next(self) -> RunEvent | None:
        """The next event of the record."""
        return self.record.at(self.position)


class ReplayBatch(EventBatch):
    """Events of a replay. Each is compared with the record when it is appended."""

    # Larger than in `EventBatch`, because another attempt reads the record again.
    offloaded_bytes = 1024 * 1024

    def __init__(self, run: ActiveRun, rules: AppendRules, cursor: ReplayCursor) -> None:
        # With the time of the record, two replays of a run are equal, whenever they run.
        super().__init__(
            run.state,
            replace(rules, code_version=""),
            sensitive=run.sensitive,
            now=run.state.updated_at,
            log_bytes=run.log_bytes,
            large_values=run.large_values,
        )
        self.cursor = cursor
        self._copies_record = False
        self._has_stopped_clock = False
        self.follow_record_clock()

    @contextmanager
    def stopped_clock(self) -> Generator[None, None, None]:
        """Stop the clock, so that all nodes that are due are called at the same time."""
        self._has_stopped_clock = True
        yield
        self._has_stopped_clock = False
        self.follow_record_clock()

    def follow_record_clock(self) -> None:
        """Set the clock to the time of the next event of the record."""
        if self._has_stopped_clock:
            return
        if self.cursor.next is None:
            # After the record the clock moves only for timers.
            self.set_clock(max(self.now, self.state.updated_at))
            return
        at = self.cursor.record.time(self.cursor.position, 0)
        self.now = at + time_shift(self.state.identity, self.state.next_sequence)
        self.iso = to_iso(at)

    def set_clock(self, now: int) -> None:
        """Set the clock."""
        self.now = now
        self.iso = to_iso(now - time_shift(self.state.identity, self.state.next_sequence))

    def repeat(self, event: RunEvent) -> None:
        """Copy an event of the record, because it is not computed again."""
        self._copies_record = True
        self.copy(event, self.cursor.ids)
        self._copies_record = False
        self.cursor.position += 1
        self.cursor.planned = [s for s in self.cursor.planned if not is_about(s, event)]
        self.follow_record_clock()
        if not self._has_same_request(event):
            self.add_divergence(event, "output", point=CHANGED_PROMPT)

    def _has_same_request(self, event: RunEvent) -> bool:
        """Return whether a node would make the same first request as the recorded one."""
        key = request_key_of(event)
        wanted = None if key is None else self.cursor.request_keys.pop(str(event.node_id), None)
        return wanted is None or key in wanted

    def _fold(self, event: RunEvent) -> None:
        """Fold an event, and compare it with the record if it was not copied from there."""
        super()._fold(event)
        if self._copies_record or event.type.startswith("replay."):
            return
        expected = self.cursor.next
        if expected is None:
            cancelled = self.cursor.record.cancellation_at(self.cursor.position)
            self.cursor.position += 1
            if cancelled is not None:
                self.add_divergence(cancelled, divergence(cancelled, event) or "output")
            return
        self.cursor.ids[expected.event_id] = event.event_id
        self.cursor.position += 1
        kind = divergence(expected, event)
        if kind is not None:
            self.add_divergence(expected, kind)
        if event.type != "node.started":
            # A node is called at the time of its start, not at the time of the next event.
            self.follow_record_clock()

    def add_divergence(self, expected: RunEvent, kind: str, point: str = "") -> None:
        """Append the first difference. The replay continues."""
        if self.cursor.has_diverged:
            return
        self.cursor.has_diverged = True
        self.add(
            "replay.diverged",
            {
                "sourceRunId": self.cursor.source_run_id,
                "atSequence": expected.sequence,
                "originalEventId": expected.event_id,
                "divergenceKind": kind,
                **({"divergencePoint": point} if point else {}),
            },
        )


class ForkAdvancer:
    """Advances runs that were forked from another run."""

    def __init__(self, active: ActiveRuns, executor: Executor) -> None:
        self._active = active
        self._journal = active.journal
        self._executor = executor

    async def advance(self, run: ActiveRun) -> bool:
        """Copy the rest of the history, and replay; False when the run must be planned.

        A branch is planned like any run after its history is copied.
        """
        fork = run.state.identity.fork
        if fork is None:
            return False
        await self.complete(run)
        if run.state.is_terminal:
            return True
        if fork.mode != "replay":
            return False
        await self._find_lacking_tools(run, fork)
        has_code = all(run.has_code(node_id) for node_id in run.compiled.types)
        await self._repeat_after_races(run, self._replay_all if has_code else self._wait_for_code)
        return True

    async def complete(self, run: ActiveRun) -> None:
        """Copy the rest of a fork's history. No other event may be written before it is complete.

        A fork whose source was deleted fails. The caller holds the lock of the run.
        """
        fork = run.state.identity.fork
        if fork is not None and run.state.next_sequence <= fork.from_seq:
            await self._repeat_after_races(run, self._copy_history)

    async def _repeat_after_races(
        self, run: ActiveRun, work: Callable[[ActiveRun, Fork], Awaitable[None]]
    ) -> None:
        """Call `work`, and call it again from the end of the log after a lost race."""

        async def attempt() -> None:
            fork = run.state.identity.fork
            if fork is not None and not run.state.is_terminal:
                # After a crash between two commits another process is woken.
                run.due_in = RECOVERY_DELAY_MS if self._journal.is_shared else None
                await work(run, fork)

        await self._active.repeat_after_races(run, attempt)

    async def _copy_history(self, run: ActiveRun, fork: Fork) -> None:
        if not await self._copy_prefix(run, fork):
            await self._fail_without_source(run, fork)
        elif fork.mode == "branch":
            await self._restart_running_nodes(run, fork)

    async def _replay_all(self, run: ActiveRun, fork: Fork) -> None:
        if not await self._replay(run, fork):
            await self._fail_without_source(run, fork)
        elif self._journal.is_shared:
            run.due_in = None  # only timers wake it from now on
            await self._active.commit(run, self._journal.batch(run))

    async def _wait_for_code(self, run: ActiveRun, _: Fork) -> None:
        """Leave a replay to a process that has the code of all nodes."""
        run.missing_types = {
            node_id: run.needed_code(node_id)
            for node_id in run.compiled.types
            if not run.has_code(node_id)
        }
        run.due_in = None
        if await self._active.commit(run, self._journal.batch(run)):
            await self._active.hand_over(run)

    async def _find_lacking_tools(self, run: ActiveRun, fork: Fork) -> None:
        """Find the nodes of a replay whose tools this process does not have.

        A replay has the tools of its source, with the manifests of the source's time.
        """
        if run.compiled.has_agents and run.lacking_tools is None:
            tenant = run.state.identity.tenant
            for event in await read_events(self._journal, tenant, fork.source_run_id, 1):
                self._executor.find_lacking_tools(run, to_millis(event.timestamp))

    async def _copy_prefix(self, run: ActiveRun, fork: Fork) -> bool:
        """Copy the prefix in several commits; False when the source was deleted.

        After a crash the next advance copies the rest.
        """
        tenant = run.state.identity.tenant
        if run.state.next_sequence >= fork.from_seq:
            return True
        events = await read_events(self._journal, tenant, fork.source_run_id, fork.from_seq)
        if len(events) < fork.from_seq:
            return False
        ids = await self._known_ids(run, events)
        while run.state.next_sequence < fork.from_seq and not await self._fail_beyond_quota(run):
            batch = self._journal.batch(run)
            end = min(run.state.next_sequence + COPIED_AT_ONCE, fork.from_seq)
            copy_events(batch, events[run.state.next_sequence : end], ids)
            await self._active.commit(run, batch)
        return True

    async def _restart_running_nodes(self, run: ActiveRun, fork: Fork) -> None:
        """Restart the nodes that were running at the fork point.

        A plain node is called again. An async node may have left partial work, such as children of
        the source, so it is cancelled and starts again. A node whose result is on the log ends. A
        node that was suspended before its request was on the log is restarted too.
        """
        if run.state.next_sequence != fork.from_seq or run.state.is_terminal:
            return
        batch = self._journal.batch(run)
        for node_id, node in run.state.nodes.items():
            is_effect = run.compiled.may_have_effect(node_id)
            has_no_request = node.interrupt is not None and not node.interrupt.data
            is_done = node.holds_outputs or node.decision is not None
            is_cut = node.status == "running" and is_effect and not is_done
            if is_cut or (node.status == "suspended" and has_no_request):
                payload: JsonObject = {"nodeId": node_id, "reason": INTERRUPTED_BY_FORK}
                batch.add("node.cancelled", payload, node_id=node_id)
        await self._active.commit(run, batch)

    async def _fail_without_source(self, run: ActiveRun, fork: Fork) -> None:
        """Fail a fork whose source was deleted before it was copied."""
        batch = self._journal.batch(run)
        fail_run(
            run,
            batch,
            _source_incomplete(f"the source run {fork.source_run_id} was deleted"),
            "run-failed",
        )
        await self._active.commit(run, batch)

    async def _fail_beyond_quota(self, run: ActiveRun) -> bool:
        """Fail a fork that would write far beyond a quota of its tenant; True when it failed."""
        batch = self._journal.batch(run)
        try:
            batch.check_quota()
        except NodeFailure as failure:
            fail_run(run, batch, failure.error, "run-failed")
            await self._active.commit(run, batch)
            return True
        return False

    async def _known_ids(self, run: ActiveRun, source: list[RunEvent]) -> dict[str, str]:
        """Map event ids of the source to those of the fork, for the events that are copied."""
        identity = run.state.identity
        own = await read_events(
            self._journal, identity.tenant, identity.run_id, run.state.next_sequence
        )
        return {a.event_id: b.event_id for a, b in zip(source, own, strict=False)}

    async def _replay(self, run: ActiveRun, fork: Fork) -> bool:
        """Follow the record to its end; False when the source was deleted."""
        cursor = await self._open_cursor(run, fork)
        if cursor is None:
            return False
        while not run.state.is_terminal:
            # A paused run stays paused, also beyond a quota.
            if run.state.status != "paused" and await self._fail_beyond_quota(run):
                break
            batch = ReplayBatch(run, self._journal.rules(run.state.identity.tenant), cursor)
            self._fill_batch(run, batch)
            run.to_launch.clear()
            if not batch.events:
                break
            await self._active.commit(run, batch)
        return True

    async def _open_cursor(self, run: ActiveRun, fork: Fork) -> ReplayCursor | None:
        """Return the record, and the position in it that the fork's log has reached."""
        tenant = run.state.identity.tenant
        row = await self._journal.store.run(tenant, fork.source_run_id)
        if row is None:
            return None
        source = await read_events(self._journal, tenant, row.run_id, row.last_sequence + 1)
        own = await read_events(
            self._journal, tenant, run.state.identity.run_id, run.state.next_sequence
        )
        repeated = [event for event in own if not event.type.startswith("replay.")]
        record = ReplayRecord(source)
        return ReplayCursor(
            source_run_id=fork.source_run_id,
            record=record,
            position=len(repeated),
            planned=self._remaining_steps(run, own),
            running_at_start=frozenset(
                n for n, s in run.state.nodes.items() if s.status == "running"
            ),
            has_diverged=len(repeated) != len(own),
            ids={a.event_id: b.event_id for a, b in zip(record.events, repeated, strict=False)},
        )

    def _remaining_steps(self, run: ActiveRun, history: list[RunEvent]) -> list[Step]:
        begin = initial_state(run.state.identity, run.compiled.graph)
        return remaining_steps(begin, history, self._journal.limits, run.sensitive.unmask)

    def _fill_batch(self, run: ActiveRun, batch: ReplayBatch) -> None:
        """Add events until the batch is full, the run ends, or no event can follow."""
        while not batch.state.is_terminal and not batch.is_full:
            if batch.cursor.has_diverged and has_sensitive_values(run.compiled.graph):
                message = "the sensitive values of the source run are masked in its log"
                fail_run(run, batch, _source_incomplete(message), "run-failed")
                return
            # Steps are planned at the time of the next recorded event.
            batch.follow_record_clock()
            if self._repeat_facts(run, batch) or self._compute_events(run, batch):
                continue
            expected = batch.cursor.next
            if expected is not None:
                # The replay did not produce the recorded event. Report it and continue.
                batch.add_divergence(expected, "missing")
                batch.cursor.position += 1
            elif not self._continue_after_record(run, batch):
                return

    def _repeat_facts(self, run: ActiveRun, batch: ReplayBatch) -> bool:
        """Repeat the next recorded event if it came from outside; False if the run produced it."""
        expected = batch.cursor.next
        if expected is None:
            return False
        if is_command(expected):
            # The events of one command are repeated together. No node starts between them.
            while expected is not None and is_command(expected):
                batch.repeat(expected)
                expected = batch.cursor.next
            return True
        if (
            _is_fact(run, batch.state, expected)
            or expected.node_id in batch.cursor.running_at_start
        ):
            self._repeat(batch, expected)
            return True
        return False

    def _compute_events(self, run: ActiveRun, batch: ReplayBatch) -> bool:
        """Apply planned steps and call nodes that are due; False when no event follows."""
        expected = batch.cursor.next
        node = None if expected is None else batch.state.nodes.get(str(expected.node_id))
        if node is not None and node.status == "running":
            # A node that is due comes first: a wake-up calls nodes, then plans.
            return self._call_due_nodes(run, batch) or self._apply_steps(run, batch)
        return self._apply_steps(run, batch) or (
            expected is not None and self._call_due_nodes(run, batch)
        )

    def _apply_steps(self, run: ActiveRun, batch: ReplayBatch) -> bool:
        """Apply the next planned steps, in the order of the record where it has them."""
        before = len(batch.events)
        steps, batch.cursor.planned = batch.cursor.planned, []
        if not steps:
            state = run.sensitive.unmask(batch.state)
            steps = list(plan(state, batch.now, self._journal.limits).steps)
        left = list(steps)
        while (expected := batch.cursor.next) is not None and not batch.state.is_terminal:
            named = next((step for step in left if is_about(step, expected)), None)
            if named is None:
                break
            left.remove(named)
            self._apply(run, batch, named)
        if len(batch.events) == before:
            for step in steps:
                self._apply(run, batch, step)
        return len(batch.events) > before

    def _apply(self, run: ActiveRun, batch: ReplayBatch, step: Step) -> None:
        expected = batch.cursor.next
        if expected is not None and _is_same_skip(step, expected):
            # The recorded reason was computed before other nodes were skipped, so it is kept.
            batch.repeat(expected)
        elif isinstance(step, Resume):
            self._executor.resume_node(run, batch, step)
        elif isinstance(step, Start):
            self._executor.start_node(run, batch, step)
            keys = self._executor.first_request_keys(run, batch, step.node_id)
            if keys is not None:
                batch.cursor.request_keys[step.node_id] = keys
        else:
            apply_step(run, batch, step)

    def _call_due_nodes(self, run: ActiveRun, batch: ReplayBatch) -> bool:
        before = len(batch.events)
        with batch.stopped_clock():
            self._executor.call_running_nodes(run, batch)
        return len(batch.events) > before

    def _repeat(self, batch: ReplayBatch, expected: RunEvent) -> None:
        """Repeat a fact. After the resolution of a held decision, repeat its consequences too."""
        node_id = expected.node_id
        node = None if isinstance(node_id, Unset) else batch.state.nodes.get(node_id)
        held = node is not None and node.holds_outputs
        batch.repeat(expected)
        if isinstance(node_id, str) and node_id in batch.cursor.running_at_start:
            # A node that has ended is computed like any other if it starts again.
            batch.cursor.running_at_start -= (
                {node_id} if _has_ended(batch.state, node_id) else set()
            )
        while held and isinstance(node_id, str) and not _has_ended(batch.state, node_id):
            following = batch.cursor.next
            if following is None:
                return
            batch.repeat(following)

    def _continue_after_record(self, run: ActiveRun, batch: ReplayBatch) -> bool:
        """Continue after the record: timers fire at once, and an effect without a record fails."""
        state = batch.state
        if state.status == "paused":
            return False
        for node_id, node in state.nodes.items():
            node_type = run.compiled.types[node_id]
            if node.status == "running" and node_type is not None and node_type.is_async:
                fail_node(batch, node_id, _source_missing(node_id))
                return True
        due = [until for until in run.parked.values() if until is not None]
        due += [node.retry_at for node in state.nodes.values() if node.status == "retrying"]
        running = [node_id for node_id, node in state.nodes.items() if node.status == "running"]
        due += [at for each in running if (at := node_deadline(state, each)) is not None]
        if not due:
            return False
        batch.set_clock(max(batch.now, min(due)))
        is_retry = any(node.status == "retrying" for node in state.nodes.values())
        return self._call_due_nodes(run, batch) or is_retry


def _is_fact(run: ActiveRun, state: RunState, event: RunEvent) -> bool:
    """Return whether an event comes from outside: an outcome of an effect or a resume value."""
    if isinstance(event.node_id, Unset):
        return False
    node, node_type = state.nodes.get(event.node_id), run.compiled.types.get(event.node_id)
    if node is None:
        return False
    is_effect = node_type is not None and node_type.is_async and node.status == "running"
    return is_effect or node.status in ("suspended", "resuming")


def _is_same_skip(step: Step, event: RunEvent) -> bool:
    return isinstance(step, Skip) and event.type == "node.skipped" and is_about(step, event)


def _source_incomplete(message: str) -> RunError:
    """Return the error of a fork whose source is incomplete."""
    return RunError(code="replay_source_missing", message=message, retryable=False)


def _has_ended(state: RunState, node_id: str) -> bool:
    return state.nodes[node_id].status in ("completed", "failed", "cancelled")


def _source_missing(node_id: str) -> RunError:
    return RunError(
        code="replay_source_missing",
        message=f"the log of the source run has no outcome of node {node_id!r}",
        retryable=False,
    )
