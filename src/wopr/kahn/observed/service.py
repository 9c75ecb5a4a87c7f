"""Observed runs: pushed KAHN runs as read-only runs of this host.

The response to a push is sent when its lines are durable. The log of the observed run is built
later, by a background task or for its first reader. After a failure, building continues where the
log ends.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, Protocol, TypeAlias

import anyio
import anyio.lowlevel
import anyio.to_thread
import msgspec

from wopr.feedback.annotations import announce
from wopr.kahn.observed.events import SOURCE
from wopr.kahn.observed.run import LogRules, ObservedRun
from wopr.kahn.projection_queue import BATCH_ENTRIES, SWEEP_SECONDS, ProjectionQueue
from wopr.protocol.documents import JsonObject
from wopr.protocol.errors import SequenceTaken
from wopr.protocol.events import RunEvent
from wopr.protocol.observed_ids import is_observed_run, observed_run_id, producer_run_id
from wopr.runs.event_bus import Bus
from wopr.store.port import Batch, RunLog
from wopr.store.port.fleet import Fleet, FleetMaintenance, Projections

# Number of observed runs in the cache, so that a push need not read the log again.
CACHED_RUNS: Final = 1024
PAGE: Final = 250
# Limit of the bytes of lines per transaction, which the last push may exceed.
MAX_BYTES: Final = 1_048_576
# More bytes are processed in a thread.
INLINE_BYTES: Final = 16 * 1024
# A list waits at most this long for runs that are not built yet.
LISTING_SECONDS: Final = 0.5
# Pushes have priority: the task waits at most this long for a moment without a push.
MAX_DELAY_SECONDS: Final = 1.0

# By the producer's id of the run: its lines in each push.
NewChunks: TypeAlias = dict[str, list[bytes]]

_EVENTS = msgspec.json.Decoder(RunEvent)


def run_source(run_id: str) -> JsonObject:
    """Return the source of an observed run; empty for the host's own runs."""
    return {"source": SOURCE} if is_observed_run(run_id) else {}


class ObservedRunsStore(RunLog, Fleet, FleetMaintenance, Projections, Protocol):
    """The parts of the store that `ObservedRuns` uses."""


class ObservedRuns:
    """Builds observed runs from pushed lines.

    `project` stores the lines of the host's own runs. `queue` is the background task that builds
    observed runs with new lines.
    """

    def __init__(
        self,
        store: ObservedRunsStore,
        bus: Bus,
        rules: LogRules,
        *,
        now: Callable[[], int],
        new_id: Callable[[], str],
        count_events: Callable[[str, int], None],
        project: Callable[[Sequence[tuple[str, str]]], Awaitable[None]] | None = None,
        sweep_seconds: float = SWEEP_SECONDS,
    ) -> None:
        self.queue = ProjectionQueue(
            store, self.project, observed=True, sweep_seconds=sweep_seconds
        )
        self._project = project
        self._store = store
        self._bus = bus
        self._rules = rules
        self._now = now
        self._new_id = new_id
        # Counts the events that were appended for a tenant.
        self._count_events = count_events
        self._lock = anyio.Lock()
        self._cache: OrderedDict[str, ObservedRun] = OrderedDict()
        self._pushes = 0
        self._no_push = anyio.Event()

    # Calls of a push

    async def project_own(self, tenant: str, run_ids: Sequence[str]) -> set[str]:
        """Return those of the ids that are runs of this host, after their lines are stored.

        A run that this host exported must not be ingested as a second run.
        """
        own = await self._store.fleet_host_run_ids(tenant, run_ids)
        if own and self._project is not None:
            await self._project([(tenant, run_id) for run_id in sorted(own)])
        return own

    @contextmanager
    def during_push(self) -> Generator[None, None, None]:
        """Delay the background task during a push."""
        self._pushes += 1
        try:
            yield
        finally:
            self._pushes -= 1
            if not self._pushes:
                self._no_push.set()
                self._no_push = anyio.Event()

    def on_pushed(self, run_ids: Iterable[str]) -> None:
        """Wake the background task and the live readers of observed runs with new lines."""
        self.queue.wake()
        for run_id in run_ids:
            self._bus.publish(run_id, ())

    # Calls of readers

    async def catch_up(self, tenant: str, run_id: str) -> None:
        """Build an observed run from all pushed lines before it is read.

        Other runs are not changed.
        """
        if is_observed_run(run_id) and await self._store.is_projection_queued(tenant, run_id):
            await self._build(tenant, [producer_run_id(run_id)])

    async def catch_up_all(self, tenant: str) -> None:
        """Build the waiting runs of a tenant before its runs are listed, within a time limit."""
        deadline = anyio.current_time() + LISTING_SECONDS
        after = 0
        while page := await self._store.queued_projections_of_tenant(tenant, after, BATCH_ENTRIES):
            after = page[-1].place
            await self._build(tenant, [producer_run_id(each.run_id) for each in page])
            await self._store.remove_projections(page)
            if anyio.current_time() > deadline:
                return

    # Calls of the background task

    async def project(self, runs: Sequence[tuple[str, str]]) -> None:
        """Build these observed `(tenant, run_id)`, after current pushes or a time limit."""
        if self._pushes:
            with anyio.move_on_after(MAX_DELAY_SECONDS):
                await self._no_push.wait()
        by_tenant: dict[str, list[str]] = {}
        for tenant, run_id in runs:
            by_tenant.setdefault(tenant, []).append(producer_run_id(run_id))
        for tenant, run_ids in by_tenant.items():
            await self._build(tenant, run_ids)

    async def _build(self, tenant: str, run_ids: Sequence[str]) -> None:
        """Build these runs, given by their producer's ids."""
        async with self._lock:
            while not await self._try_build(tenant, run_ids):
                # Another process builds the same runs: read its progress.
                await anyio.lowlevel.checkpoint()

    async def _try_build(self, tenant: str, run_ids: Sequence[str]) -> bool:
        """Build from all pushed lines; False if another process wrote first."""
        # Loading removes a run from the cache, so that a failure leaves no wrong state there.
        loaded = {each: await self._load(tenant, each) for each in run_ids}
        try:
            while chunks := await self._new_chunks(tenant, loaded):
                # A cancelled append could be committed after the next read of the log.
                with anyio.CancelScope(shield=True):
                    await self._append(tenant, loaded, chunks)
        except SequenceTaken:
            return False
        self._cache.update((run.run_id, run) for run in loaded.values())
        while len(self._cache) > CACHED_RUNS:
            self._cache.popitem(last=False)
        return True

    async def _load(self, tenant: str, run_id: str) -> ObservedRun:
        """Return the run with the state of its log."""
        run = await self._take_cached(tenant, run_id)
        while page := await self._store.read(tenant, run.run_id, run.next_sequence, PAGE):
            run.restore_events(_EVENTS.decode(event.body) for event in page)
            # Reading a short log does not yield to the event loop, so let other tasks run.
            await anyio.lowlevel.checkpoint()
        if run.known_lines < run.lines:
            # The log is redacted, so the lines come from the archive.
            async for piece in self._store.fleet_lines(tenant, run_id, run.known_lines):
                run.restore_lines(piece)
                if run.known_lines == run.lines:
                    break
        return run

    async def _take_cached(self, tenant: str, run_id: str) -> ObservedRun:
        """Return the cached run, unless a process deleted it."""
        cached = self._cache.pop(observed_run_id(tenant, run_id), None)
        if cached is not None:
            last = await self._store.read(tenant, cached.run_id, cached.next_sequence - 1, 1)
            if last and _EVENTS.decode(last[0].body).event_id == cached.last_event_id:
                return cached
        return ObservedRun(tenant, run_id, self._rules)

    async def _new_chunks(self, tenant: str, loaded: dict[str, ObservedRun]) -> NewChunks:
        starts = {run_id: run.lines for run_id, run in loaded.items()}
        return await self._store.fleet_new_chunks(tenant, starts, MAX_BYTES)

    async def _append(self, tenant: str, loaded: dict[str, ObservedRun], chunks: NewChunks) -> None:
        take = partial(_take_pushes, loaded, chunks, self._now(), self._new_id)
        size = sum(len(body) for bodies in chunks.values() for body in bodies)
        batches = take() if size < INLINE_BYTES else await anyio.to_thread.run_sync(take)
        await self._store.append(tenant, batches)
        self._count_events(tenant, sum(len(batch.events) for batch in batches))
        begun = {batch.run.run_id for batch in batches if batch.first == 0}
        await self._delete_orphans(
            tenant, [each for each in chunks if loaded[each].run_id in begun]
        )
        for batch in batches:
            self._bus.publish(batch.run.run_id, batch.events)
            for row in batch.annotations:
                announce(self._bus, batch.run.run_id, row.annotation_id, row.body)

    async def _delete_orphans(self, tenant: str, run_ids: Sequence[str]) -> None:
        """Delete new runs whose lines were deleted while the runs were built."""
        for run_id in run_ids:
            if await self._store.fleet_run(tenant, run_id) is None:
                observed = observed_run_id(tenant, run_id)
                await self._store.fleet_delete([(tenant, run_id, observed)])


def _take_pushes(
    loaded: dict[str, ObservedRun], chunks: NewChunks, now: int, new_id: Callable[[], str]
) -> list[Batch]:
    return [
        loaded[run_id].take(bodies, now=now, new_id=new_id) for run_id, bodies in chunks.items()
    ]
