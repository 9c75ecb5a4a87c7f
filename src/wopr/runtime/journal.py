"""Runs and the store: loads a run by folding its log, and makes bursts durable."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import msgspec

from wopr.engine.fold import fold_all, keeps_payload
from wopr.engine.limits import HostLimits
from wopr.engine.plan import wake_at
from wopr.engine.snapshot import snapshot
from wopr.engine.state import RunIdentity, RunState, initial
from wopr.fleet.observed_ids import require_own
from wopr.protocol.documents import encode
from wopr.protocol.events import RunEvent
from wopr.protocol.forks import Fork
from wopr.protocol.references import MARK
from wopr.runtime import inbox
from wopr.runtime.active import ActiveRun
from wopr.runtime.appender import Burst, DataLimits, Guard
from wopr.runtime.bus import Bus
from wopr.runtime.heavy_reads import off_loop
from wopr.runtime.library import Library
from wopr.runtime.quotas import Quotas
from wopr.runtime.replay_burst import ReplayBurst, Script
from wopr.runtime.sources import Sources
from wopr.runtime.spilling import Spilled, memory_of
from wopr.runtime.subscriptions import Subscriptions
from wopr.runtime.vault import Vault
from wopr.runtime.wishes import PauseWish, read_wish
from wopr.security.redact import Redactors
from wopr.security.seal import NONCE_BYTES, Seal, is_sealed_value
from wopr.store.port import Batch, Claim, RememberedAnswer, RunRow, Store, StoredEvent, StoredRun

PAGE = 1000
# The number of events that are read together with a run's row.
FIRST_EVENTS = 200
# How often a writer that lost a race looks again before it gives up.
MOST_RACES = 20
_EVENTS = msgspec.json.Decoder(RunEvent)


class Journal:
    """The only writer of logs in this process, and the reader that turns them into state."""

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
        subscriptions: Subscriptions,
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
        self._subscriptions = subscriptions
        # Told whenever a run has news for the fleet.
        self.has_lines: Callable[[], None] = lambda: None

    async def load(self, tenant: str, run_id: str) -> ActiveRun | None:
        """A run folded from its log; None when the tenant has no such run.

        Raises `Conflict` for an observed run, which nothing here can move.
        """
        stored = await self.store.load(tenant, (run_id,), FIRST_EVENTS)
        return await self.restore(tenant, stored[0]) if stored else None

    async def restore(self, tenant: str, stored: StoredRun) -> ActiveRun:
        """Fold the log of a run that was read from the store with up to `FIRST_EVENTS` events."""
        row = stored.row
        require_own(row.run_id)
        compiled = await self.library.version(tenant, row.workflow_id, row.workflow_version)
        state = initial(_identity(tenant, row), compiled.graph)
        run = ActiveRun(state, compiled, self._vault(row), row)
        await self._take_in(run, stored.events)
        if len(stored.events) == FIRST_EVENTS:
            await self._read_on(run)
        wish = read_wish(row.wish)
        run.pausing = wish if isinstance(wish, PauseWish) else None
        return run

    async def catch_up(self, run: ActiveRun) -> tuple[RunState, Spilled]:
        """Fold what the log holds beyond the state of a run, and leave the run as it is."""
        state, spilled = run.state, run.spilled.copy()
        async for page in self._pages(state):
            events = await self.whole(state.identity.tenant, state.identity.run_id, page, spilled)
            state = await off_loop(_size(page), partial(fold_all, state, events))
        return state, spilled

    async def _read_on(self, run: ActiveRun) -> None:
        """Fold what the log of a run in memory holds beyond its state."""
        async for page in self._pages(run.state):
            await self._take_in(run, page)

    async def _take_in(self, run: ActiveRun, page: Sequence[StoredEvent]) -> None:
        """Fold events that follow the state of a run in memory."""
        identity, before = run.state.identity, run.spilled.size
        events = await self.whole(identity.tenant, identity.run_id, page, run.spilled)
        size = _size(page) + run.spilled.size - before
        run.state = await off_loop(size, partial(fold_all, run.state, events))
        run.log_bytes += size
        run.memory += await off_loop(size, partial(_memory_of, page))

    async def whole(
        self, tenant: str, run_id: str, page: Sequence[StoredEvent], spilled: Spilled
    ) -> list[RunEvent]:
        """Decode events of a run with the values that they refer to; `spilled` learns these."""
        events = await off_loop(_size(page), partial(_decoded, page))
        for place, stored in enumerate(page):
            if MARK in stored.body:
                event = events[place]
                # References stand in the members of a payload; the payload itself is never one.
                payload = {
                    name: await spilled.resolve(self.store, tenant, run_id, value)
                    for name, value in event.payload.items()
                }
                events[place] = msgspec.structs.replace(event, payload=payload)
        return events

    async def _pages(self, state: RunState) -> AsyncGenerator[list[StoredEvent], None]:
        """Read what the log holds beyond a state."""
        tenant, run_id, start = state.identity.tenant, state.identity.run_id, state.next_sequence
        while page := await self.store.read(tenant, run_id, start, PAGE):
            yield page
            start += len(page)
            if len(page) < PAGE:
                break

    async def reload(self, run: ActiveRun) -> None:
        """Take in what another writer appended, and let readers know of it."""
        identity = run.state.identity
        await self._read_on(run)
        run.row = await self.store.run(identity.tenant, identity.run_id)
        self.undo(run)
        self._bus.publish(identity.run_id, ())

    def undo(self, run: ActiveRun) -> None:
        """Forget what a burst that was not committed has changed in memory."""
        nodes = run.state.nodes
        run.launch.clear()
        run.parked = {n: until for n, until in run.parked.items() if nodes[n].status == "running"}
        run.vault = self._vault(run.row)

    def _vault(self, row: RunRow | None) -> Vault:
        return Vault() if row is None else Vault.unseal(row.sealed, self._seal, row.run_id)

    def sealed(self, body: bytes, context: str) -> bytes:
        """Encrypt what a run keeps outside of its log."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        return self._seal.seal(body, nonce=nonce, context=context.encode())

    def opened(self, body: bytes, context: str) -> bytes:
        """Decrypt it; what was never sealed is JSON, and stays as it is."""
        is_sealed = is_sealed_value(body)
        return self._seal.open(body, context=context.encode()) if is_sealed else body

    async def put_off(self, tenant: str, run_id: str, until: int) -> RunRow | None:
        """Let a run that cannot be advanced wait, so that its wake-up is not due all the time."""
        row = await self.store.run(tenant, run_id)
        if row is None or row.ended_at is not None:
            return None
        later = replace(row, wake_at=until)
        await self.store.append(tenant, [Batch(run=later, first=row.last_sequence + 1)])
        return later

    def burst(self, run: ActiveRun) -> Burst:
        """An empty burst on top of the run's present state."""
        return Burst(
            run.state,
            vault=run.vault,
            redactor=self.redactors.of(run.state.identity.tenant),
            guard=self.guard,
            now=self.now(),
            new_id=self.new_id,
            code_version=self._code_version,
            limits=self.data_limits,
            log_bytes=run.log_bytes,
            spilled=run.spilled,
            refusal=self.quotas.beyond(run.state.identity.tenant),
        )

    def replay_burst(self, run: ActiveRun, script: Script) -> ReplayBurst:
        """An empty burst whose clock and expectations come from a record."""
        return ReplayBurst(
            run.state,
            vault=run.vault,
            redactor=self.redactors.of(run.state.identity.tenant),
            guard=self.guard,
            new_id=self.new_id,
            script=script,
            limits=self.data_limits,
            log_bytes=run.log_bytes,
            spilled=run.spilled,
            refusal=self.quotas.beyond(run.state.identity.tenant),
        )

    async def commit(
        self,
        run: ActiveRun,
        burst: Burst,
        remember: RememberedAnswer | None = None,
        claim: Claim | None = None,
    ) -> bool:
        """Make a burst durable and show it to readers; False when there was nothing to write."""
        row = self.row(run, burst)
        grants = run.pausing is not None and run.pausing.is_settled(burst.state)
        is_same = not burst.events and run.row is not None and run.row.wake_at == row.wake_at
        is_taken = claim is not None and claim.keeps != run.is_held
        known: Mapping[str, str] = {} if run.row is None else run.row.missing_types
        missing_types = None if row.missing_types == known else row.missing_types
        is_same = is_same and missing_types is None
        if is_same and not grants and not burst.audits and not is_taken:
            return False
        identity = burst.state.identity
        parent = identity.parent_run_id if burst.state.is_terminal else None
        agents = _agents(burst) - run.agents
        opened, closed = inbox.changes(run.state, burst.state) if burst.moves_waits else ((), ())
        batch = Batch(
            run=row,
            first=burst.first,
            suspends=opened,
            resumes=closed,
            events=tuple(burst.events),
            wakes=(parent,) if parent else (),
            wishes=tuple(burst.wishes),
            artifacts=tuple(burst.artifacts),
            remember=remember,
            grants=grants,
            audits=tuple(burst.audits),
            claim=claim,
            is_urgent=burst.is_urgent,
            agents=tuple(sorted(agents)),
            is_intervention=burst.is_intervention,
            projects=_has_lines(run, burst),
            missing_types=missing_types,
            limits=self.quotas.creation_limits(identity.tenant) if burst.first == 0 else None,
        )
        batches: Sequence[Batch] = [batch, *burst.children]
        # A replay tells nobody; that is decided by the run, whatever its events are.
        if identity.fork is None or identity.fork.mode != "replay":
            batches = self._subscriptions.address(identity.tenant, batches)
        is_held = await self.store.append(identity.tenant, batches)
        self.quotas.appended(identity.tenant, sum(len(each.events) for each in batches))
        run.state, run.row, run.log_bytes = burst.state, row, burst.size
        run.spilled = burst.spilled
        run.memory += burst.memory
        run.agents |= agents
        run.is_held = is_held and claim is not None and claim.keeps and not run.state.is_terminal
        if grants:
            run.pausing = None
        self._bus.publish(identity.run_id, burst.events)
        self._subscriptions.committed(identity.tenant, batches)
        if batch.projects:
            self.has_lines()
        return True

    def row(self, run: ActiveRun, burst: Burst) -> RunRow:
        """The run's row as it stands after the burst."""
        state = burst.state
        identity = state.identity
        ended = state.is_terminal
        # A run with children shows their present status, so its snapshot is made when asked for.
        keep = ended and not state.children
        # A replay's burst has the record's clock; the row is about this host's time.
        now = burst.now if identity.fork is None else self.now()
        return RunRow(
            run_id=identity.run_id,
            workflow_id=identity.workflow_id,
            workflow_version=identity.workflow_version,
            status=state.status,
            created_at=self._created_at(run, state),
            updated_at=now,
            last_sequence=state.next_sequence - 1,
            ended_at=self._ended_at(state) if ended else None,
            wake_at=None if ended else self._wake_at(run, burst, now),
            parent_run_id=identity.parent_run_id,
            parent_node_id=identity.parent_node_id,
            tags=state.tags,
            root_run_id=identity.root_run_id,
            crashes=0 if run.row is None else run.row.crashes,
            quarantined_at=None if run.row is None else run.row.quarantined_at,
            wish=None if run.pausing is None else msgspec.json.encode(run.pausing),
            sealed=None if ended else run.vault.sealed(self._seal, identity.run_id),
            snapshot=encode(burst.spilled.shown(snapshot(state))) if keep else None,
            source_run_id=None if identity.fork is None else identity.fork.source_run_id,
            fork=None if identity.fork is None else encode(identity.fork),
            wakes=run.heard,
            missing_types={} if ended else run.missing_types,
        )

    def _created_at(self, run: ActiveRun, state: RunState) -> int:
        """When the run came to be; a fork's first event may be older than the fork."""
        if run.row is not None:
            return run.row.created_at
        return state.started_at if state.identity.fork is None else self.now()

    def _ended_at(self, state: RunState) -> int:
        """When the run ended; a replay ends at the record's time, and is kept from now on."""
        return state.ended_at if state.identity.fork is None else self.now()

    def _wake_at(self, run: ActiveRun, burst: Burst, now: int) -> int | None:
        if run.due_in is not None:
            return now + run.due_in
        in_flight = {*run.in_flight, *run.launch}
        planned = wake_at(burst.state, burst.now, self.limits, in_flight=in_flight)
        due = [until for until in run.parked.values() if until is not None]
        if burst.state.status == "paused" or not due:
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
    """The bytes that events add to a state in memory, estimated."""
    return sum(memory_of(event.body) for event in page if keeps_payload(event.type))


def _decoded(page: Sequence[StoredEvent]) -> list[RunEvent]:
    return [_EVENTS.decode(event.body) for event in page]


def _agents(burst: Burst) -> set[str]:
    """The agents that take part: those that events name, the run's own, and its orchestrator."""
    own = (burst.state.agent, burst.state.run_orchestrator)
    return burst.agents | {agent.agent_id for agent in own if agent is not None}


def _has_lines(run: ActiveRun, burst: Burst) -> bool:
    """Whether the fleet shows what a burst did; a replay repeats what it has shown already."""
    if not (burst.has_audits or (run.compiled.has_agents and burst.events)):
        return False
    fork = burst.state.identity.fork
    return fork is None or fork.mode != "replay"
