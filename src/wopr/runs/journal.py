"""Load runs by folding their logs, and commit their batches."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from wopr.engine.fold.fold import fold_all, keeps_payload
from wopr.engine.limits import HostLimits
from wopr.engine.plan import wake_at
from wopr.engine.snapshot import snapshot
from wopr.engine.state import RunIdentity, RunState, initial_state
from wopr.process.sources import Sources
from wopr.process.tenant_slots import run_by_size
from wopr.protocol.documents import encode
from wopr.protocol.events import RunEvent
from wopr.protocol.forks import Fork
from wopr.protocol.observed_ids import require_own_run
from wopr.protocol.references import REFERENCE_MARK
from wopr.runs.active import ActiveRun, PendingPause, read_pending_command
from wopr.runs.append import AppendRules, DataLimits, EventBatch, Guard
from wopr.runs.definitions.library import Library
from wopr.runs.event_bus import Bus
from wopr.runs.interrupts import inbox
from wopr.runs.large_values import LargeValues, memory_of
from wopr.runs.quotas import Quotas
from wopr.runs.sensitive_values import SensitiveValues
from wopr.security.encryption import NONCE_BYTES, Seal, is_sealed_value
from wopr.security.redact import Redactors
from wopr.store.port import Batch, Claim, IdempotencyRecord, RunRow, Store, StoredEvent, StoredRun

PAGE = 1000
# The number of events that are read together with a run's row.
FIRST_EVENTS = 200
# Number of lost races after which a writer gives up.
MAX_RACES = 20
_EVENTS = msgspec.json.Decoder(RunEvent)


@dataclass(frozen=True, slots=True)
class Commit:
    """A committed transaction. The first write is for the run, the others create children.

    `state` is the state of the run after the transaction.
    """

    tenant: str
    state: RunState
    writes: Sequence[Batch]


class Journal:
    """Loads and commits the runs of this process. Observed runs are written by `kahn.observed`."""

    def __init__(
        self,
        *,
        store: Store,
        library: Library,
        bus: Bus,
        guard: Guard,
        redactors: Redactors,
        seal: Seal,
        limits: HostLimits,
        quotas: Quotas,
        data_limits: DataLimits,
        code_version: str,
        sources: Sources,
        add_deliveries: Callable[[str, Sequence[Batch]], Sequence[Batch]],
    ) -> None:
        self.store = store
        self.library = library
        self.redactors = redactors
        self.limits = limits
        self.quotas = quotas
        self.data_limits = data_limits
        self._code_version = code_version
        self.now = sources.now
        self.new_id = sources.new_id
        # Whether other processes append to the same runs.
        self.is_shared = store.peers is not None
        self._bus = bus
        self.guard = guard
        self._seal = seal
        # Adds the webhook deliveries of events to the transaction that appends them.
        self._add_deliveries = add_deliveries
        self._subscribers: list[Callable[[Commit], None]] = []

    def on_committed(self, subscriber: Callable[[Commit], None]) -> None:
        """Call `subscriber` after every commit, in the order of subscription.

        It must return at once and must not raise: the events are durable already.
        """
        self._subscribers.append(subscriber)

    async def load(self, tenant: str, run_id: str) -> ActiveRun | None:
        """Return a run folded from its log; None when the tenant has no such run.

        Raises `Conflict` for an observed run, which this host does not execute.
        """
        stored = await self.store.load_runs(tenant, (run_id,), FIRST_EVENTS)
        return await self.restore(tenant, stored[0]) if stored else None

    async def restore(self, tenant: str, stored: StoredRun) -> ActiveRun:
        """Fold the log of a run that was read from the store with up to `FIRST_EVENTS` events."""
        row = stored.row
        require_own_run(row.run_id)
        compiled = await self.library.version(tenant, row.workflow_id, row.workflow_version)
        state = initial_state(_identity(tenant, row), compiled.graph)
        run = ActiveRun(state, compiled, self._sensitive_values(row), row)
        await self._fold_page(run, stored.events)
        if len(stored.events) == FIRST_EVENTS:
            await self._fold_rest(run)
        command = read_pending_command(row.pending_command)
        run.pending_pause = command if isinstance(command, PendingPause) else None
        return run

    async def newest_state(self, run: ActiveRun) -> tuple[RunState, LargeValues]:
        """Return the state after all events of the log. The run in memory does not change."""
        state, large_values = run.state, run.large_values.copy()
        async for page in self._pages(state):
            events = await self.decode_events(
                state.identity.tenant, state.identity.run_id, page, large_values
            )
            state = await run_by_size(_size(page), partial(fold_all, state, events))
        return state, large_values

    async def _fold_rest(self, run: ActiveRun) -> None:
        """Fold the events of the log after the state of a run in memory."""
        async for page in self._pages(run.state):
            await self._fold_page(run, page)

    async def _fold_page(self, run: ActiveRun, page: Sequence[StoredEvent]) -> None:
        """Fold events that follow the state of a run in memory."""
        identity, before = run.state.identity, run.large_values.size
        events = await self.decode_events(identity.tenant, identity.run_id, page, run.large_values)
        size = _size(page) + run.large_values.size - before
        run.state = await run_by_size(size, partial(fold_all, run.state, events))
        run.log_bytes += size
        run.memory += await run_by_size(size, partial(_memory_of, page))

    async def decode_events(
        self, tenant: str, run_id: str, page: Sequence[StoredEvent], large_values: LargeValues
    ) -> list[RunEvent]:
        """Decode events of a run, and add their referenced values to `large_values`."""
        events = await run_by_size(_size(page), partial(_decode, page))
        for place, stored in enumerate(page):
            if REFERENCE_MARK in stored.body:
                event = events[place]
                # Members of a payload have references. The payload itself is never one.
                payload = {
                    name: await large_values.resolve(self.store, tenant, run_id, value)
                    for name, value in event.payload.items()
                }
                events[place] = msgspec.structs.replace(event, payload=payload)
        return events

    async def _pages(self, state: RunState) -> AsyncGenerator[list[StoredEvent], None]:
        """Read the events of the log after a state."""
        tenant, run_id, start = state.identity.tenant, state.identity.run_id, state.next_sequence
        while page := await self.store.read(tenant, run_id, start, PAGE):
            yield page
            start += len(page)
            if len(page) < PAGE:
                break

    async def reload(self, run: ActiveRun) -> None:
        """Fold the events of another process, and wake readers."""
        identity = run.state.identity
        await self._fold_rest(run)
        run.row = await self.store.run(identity.tenant, identity.run_id)
        self.undo(run)
        self._bus.publish(identity.run_id, ())

    def undo(self, run: ActiveRun) -> None:
        """Undo the changes in memory of a batch that was not committed."""
        nodes = run.state.nodes
        run.to_launch.clear()
        run.parked = {n: until for n, until in run.parked.items() if nodes[n].status == "running"}
        run.sensitive = self._sensitive_values(run.row)

    def _sensitive_values(self, row: RunRow | None) -> SensitiveValues:
        return (
            SensitiveValues()
            if row is None
            else SensitiveValues.decrypt(row.sealed, self._seal, row.run_id)
        )

    def encrypt(self, body: bytes, context: str) -> bytes:
        """Encrypt a value that a run stores outside of its log."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        return self._seal.seal(body, nonce=nonce, context=context.encode())

    def decrypt(self, body: bytes, context: str) -> bytes:
        """Decrypt a value that `encrypt` has encrypted. Plain JSON is returned unchanged."""
        is_sealed = is_sealed_value(body)
        return self._seal.open(body, context=context.encode()) if is_sealed else body

    async def postpone(self, tenant: str, run_id: str, until: int) -> RunRow | None:
        """Set the next wake-up of a run that cannot be advanced now, and return its row."""
        row = await self.store.run(tenant, run_id)
        if row is None or row.ended_at is not None:
            return None
        later = replace(row, wake_at=until)
        await self.store.append(tenant, [Batch(run=later, first=row.last_sequence + 1)])
        return later

    def rules(self, tenant: str) -> AppendRules:
        """Return the checks and settings for every event of a tenant's runs."""
        return AppendRules(
            guard=self.guard,
            redactor=self.redactors.of_tenant(tenant),
            new_id=self.new_id,
            limits=self.data_limits,
            code_version=self._code_version,
            refusal=self.quotas.write_refusal(tenant),
        )

    def batch(self, run: ActiveRun) -> EventBatch:
        """Return an empty batch for the current state of a run."""
        return EventBatch(
            run.state,
            self.rules(run.state.identity.tenant),
            sensitive=run.sensitive,
            now=self.now(),
            log_bytes=run.log_bytes,
            large_values=run.large_values,
        )

    async def commit(
        self,
        run: ActiveRun,
        batch: EventBatch,
        record: IdempotencyRecord | None = None,
        claim: Claim | None = None,
    ) -> bool:
        """Write a batch and publish it to readers; False when there was nothing to write."""
        row = self.row(run, batch)
        completes_command = run.pending_pause is not None and run.pending_pause.is_settled(
            batch.state
        )
        is_unchanged = not batch.events and run.row is not None and run.row.wake_at == row.wake_at
        changes_lease = claim is not None and claim.keeps != run.is_held
        known: Mapping[str, str] = {} if run.row is None else run.row.missing_types
        missing_types = None if row.missing_types == known else row.missing_types
        is_unchanged = is_unchanged and missing_types is None
        if is_unchanged and not completes_command and not batch.audits and not changes_lease:
            return False
        identity = batch.state.identity
        parent = identity.parent_run_id if batch.state.is_terminal else None
        agents = _agents(batch) - run.agents
        opened, closed = inbox.changes(run.state, batch.state) if batch.changes_inbox else ((), ())
        write = Batch(
            run=row,
            first=batch.first,
            suspends=opened,
            resumes=closed,
            events=tuple(batch.events),
            wakes=(parent,) if parent else (),
            commands=tuple(batch.commands),
            artifacts=tuple(batch.artifacts),
            idempotency=record,
            completes_command=completes_command,
            audits=tuple(batch.audits),
            claim=claim,
            is_urgent=batch.is_urgent,
            agents=tuple(sorted(agents)),
            is_intervention=batch.is_intervention,
            projects=_is_projected(run, batch),
            missing_types=missing_types,
            limits=self.quotas.creation_limits(identity.tenant) if batch.first == 0 else None,
        )
        writes: Sequence[Batch] = [write, *batch.children]
        if not is_replay(batch.state):
            # The events of a replay were delivered for its source.
            writes = self._add_deliveries(identity.tenant, writes)
        is_held = await self.store.append(identity.tenant, writes)
        self.quotas.count_events(identity.tenant, sum(len(each.events) for each in writes))
        run.state, run.row, run.log_bytes = batch.state, row, batch.size
        run.large_values = batch.large_values
        run.memory += batch.memory
        run.agents |= agents
        run.is_held = is_held and claim is not None and claim.keeps and not run.state.is_terminal
        if completes_command:
            run.pending_pause = None
        self._bus.publish(identity.run_id, batch.events)
        commit = Commit(identity.tenant, run.state, writes)
        for on_committed in self._subscribers:
            on_committed(commit)
        return True

    def row(self, run: ActiveRun, batch: EventBatch) -> RunRow:
        """Return the run's row after the batch."""
        state = batch.state
        identity = state.identity
        ended = state.is_terminal
        # The snapshot of a run with children shows their current status, so it is not stored.
        stores_snapshot = ended and not state.children
        # A replay uses the clock of its record. The row has the time of this host.
        now = batch.now if identity.fork is None else self.now()
        return RunRow(
            run_id=identity.run_id,
            workflow_id=identity.workflow_id,
            workflow_version=identity.workflow_version,
            status=state.status,
            created_at=self._created_at(run, state),
            updated_at=now,
            last_sequence=state.next_sequence - 1,
            ended_at=self._ended_at(state) if ended else None,
            wake_at=None if ended else self._wake_at(run, batch, now),
            parent_run_id=identity.parent_run_id,
            parent_node_id=identity.parent_node_id,
            tags=state.tags,
            root_run_id=identity.root_run_id,
            crashes=0 if run.row is None else run.row.crashes,
            quarantined_at=None if run.row is None else run.row.quarantined_at,
            pending_command=None
            if run.pending_pause is None
            else msgspec.json.encode(run.pending_pause),
            sealed=None if ended else run.sensitive.encrypt(self._seal, identity.run_id),
            snapshot=encode(batch.large_values.snapshot_with_references(snapshot(state)))
            if stores_snapshot
            else None,
            source_run_id=None if identity.fork is None else identity.fork.source_run_id,
            fork=None if identity.fork is None else encode(identity.fork),
            wakes=run.last_wake,
            missing_types={} if ended else run.missing_types,
        )

    def _created_at(self, run: ActiveRun, state: RunState) -> int:
        """Return when the run was created. The first event of a fork may be older than the fork."""
        if run.row is not None:
            return run.row.created_at
        return state.started_at if state.identity.fork is None else self.now()

    def _ended_at(self, state: RunState) -> int:
        """Return when the run ended. A replay has older events, but its retention starts now."""
        return state.ended_at if state.identity.fork is None else self.now()

    def _wake_at(self, run: ActiveRun, batch: EventBatch, now: int) -> int | None:
        if run.due_in is not None:
            return now + run.due_in
        if batch.plan is not None:
            planned = batch.plan.wake_at
        else:
            in_flight = {*run.in_flight, *run.to_launch}
            planned = wake_at(batch.state, batch.now, self.limits, in_flight=in_flight)
        due = [until for until in run.parked.values() if until is not None]
        if batch.state.status == "paused" or not due:
            return planned
        return min(due) if planned is None else min([*due, planned])


def _identity(tenant: str, row: RunRow) -> RunIdentity:
    return RunIdentity(
        run_id=row.run_id,
        tenant=tenant,
        workflow_id=row.workflow_id,
        workflow_version=row.workflow_version,
        parent_run_id=row.parent_run_id,
        parent_node_id=row.parent_node_id,
        root_run_id=row.root_run_id,
        fork=None if row.fork is None else msgspec.json.decode(row.fork, type=Fork),
    )


def _size(page: Sequence[StoredEvent]) -> int:
    return sum(len(event.body) for event in page)


def _memory_of(page: Sequence[StoredEvent]) -> int:
    """Estimate the bytes that events add to a state in memory."""
    return sum(memory_of(event.body) for event in page if keeps_payload(event.type))


def _decode(page: Sequence[StoredEvent]) -> list[RunEvent]:
    return [_EVENTS.decode(event.body) for event in page]


def _agents(batch: EventBatch) -> set[str]:
    """Return the agents of the events, the agent of the run, and its orchestrator."""
    own = (batch.state.agent, batch.state.run_orchestrator)
    return batch.agents | {agent.agent_id for agent in own if agent is not None}


def _is_projected(run: ActiveRun, batch: EventBatch) -> bool:
    """Return whether the fleet shows the events of a batch. A replay repeats known events."""
    if not (batch.has_run_checks or (run.compiled.has_agents and batch.events)):
        return False
    return not is_replay(batch.state)


def is_replay(state: RunState) -> bool:
    """Return whether a run is a fork that repeats the record of its source."""
    fork = state.identity.fork
    return fork is not None and fork.mode == "replay"
